"""What a request asks and what a model has, resolved: no setting is lost on the way."""

import msgspec
import pytest

from pipelines.messages.grammar import Grammar
from pipelines.messages.sampling import Sampling, SamplingDefaults, SamplingOptions
from pipelines.text.sample.sampling import SamplingParams, resolve

ASKED = Sampling(
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=-1.0,
    frequency_penalty=1.5,
    logit_bias={7: 3.5},
    seed=-5,
    max_tokens=9,
    min_tokens=2,
    stop=["a", "b"],
    stop_token_ids=[3],
    ignore_eos=False,
    logprobs=4,
    grammar=Grammar("json_object"),
)
COMPILED = object()
RENAMED = {"stop_token_ids": "stop_ids", "ignore_eos": "eos_ids"}
EOS = frozenset({2})


def resolved(asked: Sampling, defaults: SamplingDefaults | None = None) -> SamplingParams:
    compiled = COMPILED if asked.grammar else None
    return resolve(asked, defaults or SamplingDefaults(), room=100, eos_ids=EOS, grammar=compiled)


@pytest.mark.parametrize("field", Sampling.__struct_fields__)
def test_every_setting_that_is_asked_for_counts(field: str) -> None:
    value = True if field == "ignore_eos" else getattr(ASKED, field)
    assert value is not None, "a new setting belongs into ASKED"
    nothing = resolved(Sampling(seed=0))
    found = resolved(msgspec.structs.replace(Sampling(seed=0), **{field: value}))
    changed = {name for name in found.__struct_fields__ if getattr(found, name) != getattr(nothing, name)}
    assert changed == {RENAMED.get(field, field)}


@pytest.mark.parametrize("field", SamplingOptions.__struct_fields__)
def test_a_models_default_holds_where_the_request_does_not_say(field: str) -> None:
    defaults = msgspec.structs.replace(SamplingDefaults(), **{field: getattr(ASKED, field)})
    assert getattr(resolved(Sampling(), defaults), field) == getattr(ASKED, field)
    off = getattr(SamplingDefaults(), field)
    assert getattr(resolved(msgspec.structs.replace(Sampling(), **{field: off}), defaults), field) == off


def test_one_stop_string_is_a_list_of_one_and_seeds_are_unsigned() -> None:
    params = resolved(Sampling(stop="STOP", seed=-5))
    assert (params.stop, params.seed, params.max_tokens, params.eos_ids) == (("STOP",), 2**64 - 5, 100, EOS)
