"""Which layers have a sliding window: rules that several families share."""

from collections.abc import Sequence

from models.files.fields import Fields


def all_with_one(fields: Fields, with_rope: Sequence[bool]) -> Sequence[bool]:
    """All layers, where the config has a `sliding_window` at all."""
    return [fields.get("sliding_window") is not None] * len(with_rope)


def from_layer_on(fields: Fields, with_rope: Sequence[bool]) -> Sequence[bool]:
    """Where it is switched on, those from `max_window_layers` on."""
    first = fields.integer("max_window_layers", 0, least=0)
    return [switched_on(fields) and index >= first for index in range(len(with_rope))]


def switched_on(fields: Fields) -> bool:
    return fields.boolean("use_sliding_window") and fields.get("sliding_window") is not None
