"""Qwen2.5-VL and Qwen3-VL: a picture in about its own size; its rows have positions on three axes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelLoadError
from models.files.fields import MOST_WIDTH
from models.vision.families.family import Description, Family, Features, ImageTokens, Inputs, Overrides
from models.vision.vision import PlacedImage

_AXES = 3  # time, height, width
_LOW_PIXELS = 512 * 512  # of a picture of low detail


def _tokens(description: Description) -> ImageTokens:
    image = description.token("image_token_id")
    merge = _same(description, "merge_size", "spatial_merge_size")
    _same(description, "patch_size", "patch_size")
    frames = _same(description, "temporal_patch_size", "temporal_patch_size")

    def grid(inputs: Inputs) -> tuple[int, int, int]:
        time, height, width = (int(size) for size in inputs["image_grid_thw"][0])
        return time, height // merge, width // merge

    def expand(inputs: Inputs) -> Sequence[int]:
        time, height, width = grid(inputs)
        return [image] * (time * height * width)

    return ImageTokens(image, image, expand, grid, values=3 * frames)


def _same(description: Description, key: str, of_tower: str) -> int:
    """What image processor and tower have to agree on."""
    default = {"patch_size": 14}.get(key, 2)
    processor, tower = description.processor.integer(key, default), description.vision.integer(of_tower)
    if processor != tower:
        raise ModelLoadError(
            f"{description.processor.where}: {key} is {processor}, where the tower's {of_tower} is {tower}"
        )
    return tower


def _low(processor: Any) -> Overrides:
    least, most = processor.size["shortest_edge"], processor.size["longest_edge"]  # of the area, whatever it says
    fewer = max(least, min(most, _LOW_PIXELS))
    return {"size": {"shortest_edge": least, "longest_edge": fewer}} if fewer != most else {}


def _width(description: Description) -> int | None:
    return description.vision.maybe_integer("out_hidden_size", most=MOST_WIDTH)


def _deepstack_features(model: Any, inputs: Mapping[str, Any]) -> Features:
    found = model.get_image_features(**inputs)
    return Features(list(found.pooler_output), found.deepstack_features)


def _positions(ids: Sequence[int], images: Sequence[PlacedImage]) -> tuple[NDArray[np.int64], int]:
    """Text moves on all axes alike. In a picture, time stands still while the others count its lines and columns; what
    is behind it goes on from the longer of the two."""
    parts: list[NDArray[np.int64]] = []
    index = position = 0
    for placed in images:
        parts.append(_text(position, placed.start - index))
        position += placed.start - index
        if placed.image.grid is None:
            raise ValueError("a picture without a grid")
        parts.append(np.indices(placed.image.grid, dtype=np.int64).reshape(_AXES, -1) + position)
        position += max(placed.image.grid[1:])
        index = placed.start + len(placed.image.tokens)
    parts.append(_text(position, len(ids) - index))
    found = np.concatenate(parts, axis=1)
    return found, int(found.max(initial=-1)) + 1 - len(ids)


def _text(position: int, length: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(position, position + length, dtype=np.int64), (_AXES, length))


QWEN2_5_VL = Family(
    "qwen2.5-vl",
    classes="Qwen2_5_VL",
    architecture="Qwen2_5_VLForConditionalGeneration",
    model_type="qwen2_5_vl",
    processors=("Qwen2VLImageProcessor",),
    weights={"visual.": ("model.visual.", "visual.")},
    tokens=_tokens,
    towers={"": {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}},
    inputs=("pixel_values", "image_grid_thw"),
    packs=True,
    width=_width,
    low=_low,
    positions=_positions,
)

QWEN3_VL = replace(
    QWEN2_5_VL,
    name="qwen3-vl",
    classes="Qwen3VL",
    architecture="Qwen3VLForConditionalGeneration",
    model_type="qwen3_vl",
    towers={"": {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}},
    features=_deepstack_features,
)
