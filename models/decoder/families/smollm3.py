"""SmolLM3: some layers have no rope (NoPE, https://arxiv.org/abs/2305.19466)."""

from collections.abc import Sequence

from models.decoder.families.family import Family, HFForm
from models.decoder.families.windows import switched_on
from models.errors import require
from models.files.fields import Fields

_CLASS = "SmolLM3ForCausalLM"


def _with_rope(fields: Fields, count: int) -> Sequence[bool]:
    given = fields.items("no_rope_layers", int, "integers")  # 1: with, whatever the name says
    if given is not None:
        require(len(given) >= count, _CLASS, f"{len(given)} no_rope_layers for {count} layers")
        return [bool(each) for each in given[:count]]
    interval = fields.maybe_integer("no_rope_layer_interval")
    return [interval is None or (index + 1) % interval != 0 for index in range(count)]


def _slides(fields: Fields, with_rope: Sequence[bool]) -> Sequence[bool]:
    return [switched_on(fields) and not each for each in with_rope]


SMOLLM3 = Family(
    "smollm3",
    hf=(HFForm(_CLASS, "smollm3"),),
    defaults={"no_rope_layer_interval": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
    with_rope=_with_rope,
    slides=_slides,
)
