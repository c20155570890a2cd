"""How each layer attends, by a model's description and its family's rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.decoder.families.family import Family
from models.decoder.frequencies import NO_ROPE, Rope, divided, rope_from_hf
from models.errors import require
from models.files.fields import MOST_LAYERS, Fields

FULL, SLIDING = "full_attention", "sliding_attention"
AXES = 3  # of a rope that has several: time, height, width


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    rope: Rope
    window: int | None = None  # positions that a row attends to, its own the last; None: all up to its own
    scale: float | None = None  # of query · key; None: 1 / sqrt(head_dim)


def layers_of(
    fields: Fields,
    family: Family,
    *,
    head_dim: int,
    named: str,
    rope_factors: tuple[float, ...] | None = None,
) -> tuple[LayerSpec, ...]:
    """`named`: the model's class, for messages. `rope_factors`: by which the frequencies of layers without a window are
    divided. Raises ModelLoadError naming what is not supported."""
    window, query_scalar = fields.get("sliding_window"), fields.maybe_number("query_pre_attn_scalar")
    scale = None if query_scalar is None else query_scalar**-0.5
    turned = family.with_rope(fields, fields.integer("num_hidden_layers", most=MOST_LAYERS))
    kinds = _layer_types(fields, family, turned, named)
    if SLIDING in kinds:
        known = isinstance(window, int) and not isinstance(window, bool) and window > 0
        require(known, named, f"layers of {SLIDING} and sliding_window={window}")
    ropes = {kind: _rope(fields, family, kind, head_dim, named) for kind in dict.fromkeys(kinds)}
    if rope_factors is not None and FULL in ropes:
        ropes[FULL] = divided(ropes[FULL], rope_factors, "rope_freqs.weight")
    return tuple(
        LayerSpec(ropes[kind] if with_rope else NO_ROPE, window if kind == SLIDING else None, scale)
        for kind, with_rope in zip(kinds, turned, strict=True)
    )


def _layer_types(fields: Fields, family: Family, turned: Sequence[bool], named: str) -> Sequence[str]:
    """Of each layer FULL or SLIDING: as the description lists them, else by the family's rule."""
    given = fields.items("layer_types", str, "texts")
    if given is None:
        return [SLIDING if slides else FULL for slides in family.slides(fields, turned)]
    require(len(given) == len(turned), named, f"{len(given)} layer_types for {len(turned)} layers")
    for kind in given:
        require(kind in (FULL, SLIDING), named, f"layers of {kind}")
    return given


def _rope(fields: Fields, family: Family, kind: str, head_dim: int, named: str) -> Rope:
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
    if family.axes is None:
        return rope_from_hf(fields.within(rope), fields, theta=theta, head_dim=head_dim, named=named)
    if (rope.get("rope_type") or rope.get("type")) == "mrope":  # older descriptions say by it that there are axes
        rope = {**rope, "rope_type": "default"}
    one_axis = rope_from_hf(fields.within(rope), fields, theta=theta, head_dim=head_dim, named=named)
    sections = _sections(fields.within(rope), fields, len(one_axis.inv_freq), named)
    return replace(one_axis, axes=family.axes(sections))


def _sections(rope: Fields, fields: Fields, frequencies: int, named: str) -> Sequence[int]:
    """How many frequencies each axis has."""
    key = "mrope_section"
    given = rope.items(key, int, "integers") or fields.items(key, int, "integers") or ()
    known = len(given) == AXES and all(each >= 0 for each in given) and sum(given) == frequencies
    require(known, named, f"{key}={list(given)} for {frequencies} frequencies")
    return given
