"""What a record of a family says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.decoder.families.layout import GGUF_LAYOUT, HF_LAYOUT, Layout
from models.files.fields import Fields

# (config, number of layers) -> of each layer, whether its queries and keys are turned by their positions
RopeRule = Callable[[Fields, int], Sequence[bool]]
# (config, of each layer whether it has a rope) -> of each layer, whether it has the config's sliding window
WindowRule = Callable[[Fields, Sequence[bool]], Sequence[bool]]

# How many frequencies each axis of a rope has -> the axis of each frequency
AxesRule = Callable[[Sequence[int]], tuple[int, ...]]


def every_layer(_: Fields, count: int) -> Sequence[bool]:
    return [True] * count


def no_layer(_: Fields, with_rope: Sequence[bool]) -> Sequence[bool]:
    return [False] * len(with_rope)


@dataclass(frozen=True, slots=True)
class HFForm:
    """Folders of safetensors with a `config.json` of one class of transformers."""

    architecture: str | None  # the class, in `architectures`; None: it is a part of others alone (`vision`)
    model_type: str  # where the config names no class
    layout: Layout = HF_LAYOUT


@dataclass(frozen=True, slots=True)
class GGUFForm:
    """GGUF files of one `general.architecture`, the prefix of their metadata too."""

    architecture: str
    layout: Layout = GGUF_LAYOUT


@dataclass(frozen=True, slots=True)
class Family:
    """What decoders of one family have of their own. What a record leaves out is as Llama has it."""

    name: str  # for people
    hf: tuple[HFForm, ...]
    gguf: GGUFForm | None = None  # None: GGUF files of it are not served
    # What a description leaves to the class that it names, by the keys of `config.json`.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # What a `text_config` inside of another description leaves to it, beside those.
    text_defaults: Mapping[str, Any] = field(default_factory=dict)
    with_rope: RopeRule = every_layer
    slides: WindowRule = no_layer  # asked where a config has no `layer_types`
    axes: AxesRule | None = None  # of ropes with several; a config's `mrope_section` has the numbers of frequencies
    qkv_bias: bool = False  # q, k and v have biases, the output has none; else `attention_bias` says it of all four
    qk_norm: bool = False  # RMSNorm over head_dim on q and k, before the rope
    branch_norms: bool = False  # RMSNorm of what attention and MLP give, too, before it is added to the residual
    scaled_embedding: bool = False  # by the square root of the hidden size
