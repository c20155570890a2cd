"""What is refused before it costs a step, and the field that the refusal names."""

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, current_thread, main_thread

import pytest

from models.decoder.loading import GenerationDefaults
from pipelines.base import InvalidRequest, Ticket
from pipelines.messages.sampling import SamplingDefaults, SamplingOptions
from pipelines.messages.text import (
    ChatPrompt,
    FunctionCall,
    Message,
    StringPrompt,
    TextPart,
    TokenPrompt,
    ToolCall,
)
from pipelines.text.sample.defaults import sampling_defaults
from pipelines.text.sample.sampler import is_plain
from tests.pipelines.text.fakes import BOS, CONTEXT, EOS, USER, VOCAB, ByteTokenizer, create_pipeline, request

TICKET = Ticket("r", "interactive", 0.0)


def prepare(asked, **pipeline):
    return create_pipeline(**pipeline).prepare(TICKET, asked)


def chat(*texts: str) -> ChatPrompt:
    return ChatPrompt([Message("user", [TextPart(text)]) for text in texts])


@pytest.mark.parametrize("param", ["logit_bias", "stop_token_ids"])
def test_a_setting_about_a_token_that_the_model_has_not_is_named(param):
    def ids(*ids):
        return {param: dict.fromkeys(ids, 5.0) if param == "logit_bias" else list(ids)}

    assert prepare(request("prompt", **ids(0, VOCAB - 1)))
    with pytest.raises(InvalidRequest, match=f"token id {VOCAB} is out of range") as caught:
        prepare(request("prompt", **ids(3, VOCAB)))
    assert (caught.value.param, caught.value.code) == (param, "invalid_request")


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0, "echo": True}, {"seed": -1}, {"n": 128}, {"logprobs": 20}, {"stop": "a"}]
)
def test_the_borders_themselves_are_legal(fields):
    assert prepare(request("prompt", **fields))


@pytest.mark.parametrize(
    ("param", "prompt"),
    [
        ("prompt", TokenPrompt([1, VOCAB])),
    ],
)
def test_a_prompt_that_can_not_be_read_is_named(param, prompt):
    with pytest.raises(InvalidRequest) as caught:
        prepare(request(prompt))
    assert caught.value.param == param


@pytest.mark.parametrize(("param", "prompt"), [("prompt", "a <pad> b"), ("messages", chat("a <pad> b"))])
def test_a_token_that_the_model_has_no_row_for_is_named(param, prompt):
    class Padded(ByteTokenizer):
        """With a token behind the model's vocabulary."""

        def encode(self, text, **options):
            before, found, after = text.partition("<pad>")
            return [*super().encode(before, **options), *[VOCAB] * bool(found), *super().encode(after, **options)]

        def clone(self):
            return Padded()

    with pytest.raises(InvalidRequest, match=f"token id {VOCAB} is out of range") as caught:
        prepare(request(prompt), tokenizer=Padded())
    assert caught.value.param == param


@pytest.mark.parametrize(("param", "prompt"), [("prompt", "x" * CONTEXT), ("messages", chat("x" * CONTEXT))])
def test_a_prompt_that_never_fits_is_refused_at_once(param, prompt):
    with pytest.raises(InvalidRequest) as caught:
        prepare(request(prompt, max_tokens=None))
    assert (caught.value.param, caught.value.code) == (param, "context_length_exceeded")


def test_max_tokens_that_never_fit_are_refused():
    with pytest.raises(InvalidRequest) as caught:
        prepare(request("x" * 100, max_tokens=CONTEXT - 99))
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")
    assert prepare(request("x" * 100, max_tokens=CONTEXT - 100))


def test_a_full_context_can_still_be_scored():
    assert prepare(request("x" * CONTEXT, max_tokens=0, echo=True))


def test_the_cache_bounds_the_context_too():
    pipeline = create_pipeline(kv_cache_tokens=64)
    assert pipeline.ready().context_length == 64
    with pytest.raises(InvalidRequest):
        pipeline.prepare(TICKET, request("x" * 64))


def test_no_chat_without_a_template():
    with pytest.raises(InvalidRequest) as caught:
        prepare(request(chat("hi")), tokenizer=ByteTokenizer(chat_template=None))
    assert caught.value.param == "messages"


def test_a_chat_is_the_template_read_as_tokens():
    (sequence,) = prepare(request(chat("hi")))
    assert sequence.tokens == [USER, *b"user:hi\n", USER, *b"assistant:"]


def test_an_empty_prompt_begins_a_text():
    (sequence,) = prepare(request(""))
    assert sequence.tokens == [BOS]
    with pytest.raises(InvalidRequest) as caught:
        prepare(request(""), tokenizer=ByteTokenizer(bos_id=None))
    assert caught.value.param == "prompt"


def test_what_is_not_asked_is_the_models_default():
    generation = GenerationDefaults(
        {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1}
    )
    pipeline = create_pipeline(generation=generation)
    (sequence,) = pipeline.prepare(TICKET, request("x", temperature=None, max_tokens=None))
    params = sequence.params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 40)
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.1)
    assert params.max_tokens == CONTEXT - 1
    asked = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    (sequence,) = pipeline.prepare(TICKET, request("x", **asked))
    assert is_plain(sequence)


def test_the_configuration_goes_before_the_models_own_and_that_before_the_catalogue():
    configured = SamplingOptions(temperature=0.5, presence_penalty=1.5, top_k=-1)
    generation = GenerationDefaults({"temperature": 0.6, "top_p": None, "repetition_penalty": 1.1})
    pipeline = create_pipeline(generation=generation, sampling=configured)
    asked = {"temperature": None, "max_tokens": None}
    (sequence,) = pipeline.prepare(TICKET, request("x", **asked))
    params = sequence.params
    assert (params.temperature, params.presence_penalty, params.top_k) == (0.5, 1.5, -1)
    assert (params.repetition_penalty, params.top_p, params.frequency_penalty) == (1.1, 1.0, 0.0)
    (sequence,) = pipeline.prepare(TICKET, request("x", **asked, presence_penalty=0.0, repetition_penalty=1.0))
    assert not sequence.rules
    assert pipeline.ready().sampling.temperature == 0.5

    catalogued = sampling_defaults(SamplingOptions(top_p=0.8), {"min_p": 0.1}, "embedded:smollm2-135m-instruct")
    assert (catalogued.temperature, catalogued.top_p, catalogued.min_p) == (0.2, 0.8, 0.1)
    over = sampling_defaults(SamplingOptions(), {"temperature": 0.7}, "embedded:smollm2-135m-instruct")
    assert (over.temperature, over.top_p) == (0.7, 0.9)
    assert sampling_defaults(SamplingOptions(), {}, "/models/other") == SamplingDefaults()


def test_what_the_models_files_recommend_and_no_request_may_ask_for_is_left_out(caplog):
    wrong = {"temperature": 7, "top_p": math.nan, "min_p": "0.1", "repetition_penalty": 10**400}
    pipeline = create_pipeline(generation=GenerationDefaults({**wrong, "top_k": -1}))
    assert pipeline.ready().sampling == SamplingDefaults(top_k=-1)
    assert [record.args[0] for record in caplog.records if "left out" in record.message] == list(wrong)


def test_a_nucleus_of_nothing_is_greedy():
    (sequence,) = prepare(request("x", top_p=0.0, temperature=1.5))
    assert sequence.params.greedy


def test_both_the_tokenizers_and_the_generation_configs_eos_end_a_text():
    pipeline = create_pipeline(generation=GenerationDefaults(eos_ids=frozenset({5})))
    (sequence,) = pipeline.prepare(TICKET, request("x", ignore_eos=False))
    assert sequence.params.eos_ids == {EOS, 5}
    (sequence,) = pipeline.prepare(TICKET, request("x", ignore_eos=True))
    assert sequence.params.eos_ids == frozenset()


def test_seeds_of_choices_follow_on_and_unseeded_ones_differ():
    sequences = prepare(request([StringPrompt("a"), StringPrompt("b")], n=3, seed=2**64 - 1))
    assert [s.params.seed for s in sequences] == [2**64 - 1, 0, 1] * 2
    seeds = {s.params.seed for _ in range(4) for s in prepare(request("a", n=3))}
    assert len(seeds) == 12


def test_a_prompt_counts_once():
    sequences = prepare(request([StringPrompt("four"), StringPrompt("sixsix")], n=3))
    assert sum(sequence.prompt_tokens for sequence in sequences) == 10
    assert sequences[0].group.prompt_tokens == 10


def test_threads_share_no_tokenizer_at_the_same_time_and_make_no_more_than_they_need():
    used: list[object] = []
    together = Barrier(3)

    class Recorded(ByteTokenizer):
        def encode(self, *args, **options):
            if current_thread() is not main_thread():  # which loads
                used.append(self)
                together.wait(10)
            return super().encode(*args, **options)

    pipeline = create_pipeline(tokenizer=Recorded())
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda number: pipeline.prepare(TICKET, request(f"prompt {number}")), range(60)))
    assert all(len(set(used[i : i + 3])) == 3 for i in range(0, 60, 3))
    assert len(set(used)) == 3


def test_a_text_model_takes_no_feed():
    with pytest.raises(InvalidRequest):
        create_pipeline().feed(TICKET, b"")


LONG = "x" * 3_000


@pytest.mark.parametrize(
    ("brief", "prompt", "n"),
    [
        (True, "prompt", 1),
        (True, chat("hi", "hello"), 1),
        (False, LONG, 1),
        (False, TokenPrompt([1] * 3_000), 1),
        (False, "prompt", 20),
        (False, [StringPrompt("prompt")] * 20, 1),
        (False, chat(*["hi"] * 20), 1),
        (False, chat(LONG), 1),
        (False, ChatPrompt([Message("user", [TextPart("")] * 20)]), 1),
        (False, ChatPrompt([Message("user", [TextPart("hi")], name=LONG)]), 1),
        (False, ChatPrompt([Message("tool", [TextPart("hi")], tool_call_id=LONG)]), 1),
        (False, ChatPrompt([Message("assistant", tool_calls=[ToolCall(LONG, FunctionCall("f", "{}"))])]), 1),
        (False, ChatPrompt([Message("assistant", tool_calls=[ToolCall("1", FunctionCall(LONG, "{}"))])]), 1),
        (False, ChatPrompt([Message("assistant", tool_calls=[ToolCall("1", FunctionCall("f", LONG))])]), 1),
        (False, ChatPrompt([Message("assistant", tool_calls=[ToolCall("1", FunctionCall("f", "{}"))] * 20)]), 1),
    ],
)
def test_a_prompt_is_brief_where_all_that_it_has_is_little(brief, prompt, n):
    assert create_pipeline().brief(request(prompt, n=n)) is brief


@pytest.mark.parametrize("fields", [{"logit_bias": dict.fromkeys(range(3_000), 1.0)}, {"stop_token_ids": [1] * 3_000}])
def test_many_token_ids_beside_a_prompt_are_not_brief(fields):
    assert not create_pipeline().brief(request("prompt", **fields))
