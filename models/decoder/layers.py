"""How each layer attends, read from a model's `config.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.decoder.frequencies import NO_ROPE, Rope, rope_from_hf
from models.errors import require
from models.files.fields import MOST_LAYERS, Fields

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    rope: Rope
    window: int | None = None  # positions that a row attends to, its own the last; None: all up to its own
    scale: float | None = None  # of query · key; None: 1 / sqrt(head_dim)


def layers_from_hf(fields: Fields, *, architecture: str, head_dim: int, named: str) -> tuple[LayerSpec, ...]:
    """`named`: the model's class, for messages. Raises ModelLoadError naming what is not supported."""
    window, query_scalar = fields.get("sliding_window"), fields.maybe_number("query_pre_attn_scalar")
    scale = None if query_scalar is None else query_scalar**-0.5
    turned = _layers_with_rope(fields, named)
    kinds = _layer_types(fields, architecture, turned, named)
    if SLIDING in kinds:
        known = isinstance(window, int) and not isinstance(window, bool) and window > 0
        require(known, named, f"layers of {SLIDING} and sliding_window={window}")
    ropes = {kind: _rope(fields, kind, head_dim, named) for kind in dict.fromkeys(kinds)}
    return tuple(
        LayerSpec(ropes[kind] if with_rope else NO_ROPE, window if kind == SLIDING else None, scale)
        for kind, with_rope in zip(kinds, turned, strict=True)
    )


def _layer_types(fields: Fields, architecture: str, turned: list[bool], named: str) -> Sequence[str]:
    """Of each layer FULL or SLIDING: as the config lists them, else by the architecture's rule."""
    count = len(turned)
    given = fields.items("layer_types", str, "texts")
    if given is not None:
        require(len(given) == count, named, f"{len(given)} layer_types for {count} layers")
        for kind in given:
            require(kind in (FULL, SLIDING), named, f"layers of {kind}")
        return given
    window = fields.get("sliding_window")
    switched_on = fields.boolean("use_sliding_window") and window is not None
    first_sliding = fields.integer("max_window_layers", 0, least=0)
    pattern = fields.integer("sliding_window_pattern", 1)

    def slides(index: int) -> bool:
        match architecture:
            case "mistral" | "phi3":
                return window is not None
            case "qwen2" | "qwen3":
                return switched_on and index >= first_sliding
            case "smollm3":
                return switched_on and not turned[index]
            case "gemma3":
                return bool((index + 1) % pattern)
        return False

    return [SLIDING if slides(index) else FULL for index in range(count)]


def _layers_with_rope(fields: Fields, named: str) -> list[bool]:
    """SmolLM3 leaves out the rope of some layers (NoPE, https://arxiv.org/abs/2305.19466)."""
    count = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    interval = fields.maybe_integer("no_rope_layer_interval")
    given = fields.items("no_rope_layers", int, "integers")  # 1: with, whatever the name says
    if given is not None:
        require(len(given) >= count, named, f"{len(given)} no_rope_layers for {count} layers")
        return [bool(each) for each in given[:count]]
    return [interval is None or (index + 1) % interval != 0 for index in range(count)]


def _rope(fields: Fields, kind: str, head_dim: int, named: str) -> Rope:
    """Of layers of one kind: Gemma 3's differ, by `rope_parameters` of each or by a `rope_local_base_freq`."""
    rope: Mapping[str, Any] = fields.table("rope_parameters") or fields.table("rope_scaling") or {}
    theta = fields.number("rope_theta", 10000.0)
    local_theta = fields.maybe_number("rope_local_base_freq")
    if any(isinstance(value, Mapping) for value in rope.values()):
        rope = fields.within(rope).table(kind) or {}
    elif kind == SLIDING and local_theta is not None:
        rope = {}  # the scaling is that of the other layers
    if kind == SLIDING and local_theta is not None:
        theta = local_theta
    return rope_from_hf(fields.within(rope), fields, theta=theta, head_dim=head_dim, named=named)
