"""How each layer attends, read from a model's `config.json`. Free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import ModelLoadError, require
from models.frequencies import NO_ROPE, Rope, rope_from_hf

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    rope: Rope
    window: int | None = None  # positions that a row attends to, its own the last; None: all up to its own
    scale: float | None = None  # of query · key; None: 1 / sqrt(head_dim)


def layers_from_hf(config: Mapping[str, Any], *, architecture: str, head_dim: int, named: str) -> tuple[LayerSpec, ...]:
    """`named`: the model's class, for messages. Raises ModelLoadError naming what is not supported."""
    window, query_scalar = config.get("sliding_window"), config.get("query_pre_attn_scalar")
    scale = None if query_scalar is None else float(query_scalar) ** -0.5
    turned = _layers_with_rope(config, named)
    kinds = _layer_types(config, architecture, turned, named)
    if SLIDING in kinds:
        require(isinstance(window, int) and window > 0, named, f"layers of {SLIDING} and sliding_window={window}")
    ropes = {kind: _rope(config, kind, head_dim, named) for kind in dict.fromkeys(kinds)}
    return tuple(
        LayerSpec(ropes[kind] if with_rope else NO_ROPE, window if kind == SLIDING else None, scale)
        for kind, with_rope in zip(kinds, turned, strict=True)
    )


def _layer_types(config: Mapping[str, Any], architecture: str, turned: list[bool], named: str) -> list[str]:
    """Of each layer FULL or SLIDING: as the config lists them, else by the architecture's rule."""
    count = config["num_hidden_layers"]
    given: list[str] | None = config.get("layer_types")
    if given is not None:
        require(len(given) == count, named, f"{len(given)} layer_types for {count} layers")
        for kind in given:
            require(kind in (FULL, SLIDING), named, f"layers of {kind}")
        return given
    window = config.get("sliding_window")
    switched_on = bool(config.get("use_sliding_window")) and window is not None

    def slides(index: int) -> bool:
        match architecture:
            case "mistral" | "phi3":
                return window is not None
            case "qwen2" | "qwen3":
                return bool(switched_on and index >= config["max_window_layers"])
            case "smollm3":
                return switched_on and not turned[index]
            case "gemma3":
                return bool((index + 1) % config["sliding_window_pattern"])
        return False

    return [SLIDING if slides(index) else FULL for index in range(count)]


def _layers_with_rope(config: Mapping[str, Any], named: str) -> list[bool]:
    """SmolLM3 leaves out the rope of some layers (NoPE, https://arxiv.org/abs/2305.19466)."""
    count, interval = config["num_hidden_layers"], config.get("no_rope_layer_interval")
    given: list[int] | None = config.get("no_rope_layers")  # 1: with, whatever the name says
    if given is not None:
        require(len(given) >= count, named, f"{len(given)} no_rope_layers for {count} layers")
        return [bool(each) for each in given[:count]]
    return [interval is None or (index + 1) % interval != 0 for index in range(count)]


def _rope(config: Mapping[str, Any], kind: str, head_dim: int, named: str) -> Rope:
    """Of layers of one kind: Gemma 3's differ, by `rope_parameters` of each or by a `rope_local_base_freq`."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = config.get("rope_theta") or 10000.0
    local_theta = config.get("rope_local_base_freq")
    if any(isinstance(value, Mapping) for value in rope.values()):
        rope = rope.get(kind) or {}
    elif kind == SLIDING and local_theta is not None:
        rope = {}  # the scaling is that of the other layers
    if kind == SLIDING and local_theta is not None:
        theta = local_theta
    try:
        return rope_from_hf(rope, config, theta=theta, head_dim=head_dim, named=named)
    except KeyError as missing:
        raise ModelLoadError(f"the rope parameters of {named} lack {missing}") from missing
