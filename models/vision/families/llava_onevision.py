"""LLaVA-OneVision: a picture as a whole, then as tiles whose rows are put together and cut to its shape; each line of
these ends with a learned row."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.errors import ModelLoadError, require
from models.vision.families.family import (
    LLAVA_WEIGHTS,
    SIGLIP,
    Description,
    Family,
    Features,
    ImageTokens,
    Inputs,
    Overrides,
)

_LIMIT = "anyres_max_"  # before the number of tiles beyond which rows are scaled down


def _tokens(description: Description) -> ImageTokens:
    fields = description.config
    image = description.token("image_token_index", fields.maybe_integer("image_token_id", least=0))
    strategy = fields.text("vision_feature_select_strategy", "full")
    require(strategy == "full", fields.where, f"vision_feature_select_strategy={strategy}")
    size = description.vision.integer("image_size")
    side = size // description.vision.integer("patch_size")
    ratio = fields.text("vision_aspect_ratio", f"{_LIMIT}9")
    if not ratio.removeprefix(_LIMIT).isdigit():
        raise fields.refused("vision_aspect_ratio", f"{_LIMIT} and a number")
    most = int(ratio.removeprefix(_LIMIT))
    pinpoints = _pinpoints(description, size)

    def expand(inputs: Inputs) -> Sequence[int]:
        tiles = inputs["pixel_values"].shape[1]
        if tiles == 1:
            return [image] * (side**2 + 1)
        height, width = (int(edge) for edge in inputs["image_sizes"][0])
        lines, length = _cut(height, width, pinpoints(height, width), side / size)
        shrink = math.sqrt(lines * length / (most * side**2))
        if shrink > 1.1:
            lines, length = int(lines // shrink), int(length // shrink)
        return [image] * (side**2 + lines * (length + 1))

    return ImageTokens(image, image, expand)


def _cut(height: int, width: int, resolution: tuple[int, int], rows_per_pixel: float) -> tuple[int, int]:
    """Lines of rows, and rows of each, that a picture has of those of all its tiles: bars beside it are left out."""
    lines, length = (round(edge * rows_per_pixel) for edge in resolution)
    if width / height > length / lines:
        bar = (lines - int(round(height * (length / width), 7))) // 2
        return lines - 2 * bar, length
    bar = (length - int(round(width * (lines / height), 7))) // 2
    return lines, length - 2 * bar


def _pinpoints(description: Description, size: int) -> Callable[[int, int], tuple[int, int]]:
    """(height, width) of a picture -> that of all its tiles. The image processor and the model both have them."""
    both = [
        fields.items("image_grid_pinpoints", list, "sizes") for fields in (description.config, description.processor)
    ]
    default = [[high, wide] for high in range(384, 2305, 384) for wide in range(384, 2305, 384)]
    ours, theirs = (default if each is None else list(each) for each in both)
    where = description.config.where
    if ours != theirs:
        raise ModelLoadError(f"{where}: image_grid_pinpoints are other than those of the image processor")
    for each in ours:
        if len(each) != 2 or any(not isinstance(edge, int) or edge < size or edge % size for edge in each):
            raise ModelLoadError(f"{where}: image_grid_pinpoints has {each}, not two multiples of {size}")

    def best(height: int, width: int) -> tuple[int, int]:
        from transformers.image_processing_utils import select_best_resolution

        high, wide = select_best_resolution((height, width), ours)
        return high, wide

    return best


def _process(processor: Any, picture: Any, overrides: Overrides) -> Mapping[str, Any]:
    """One of several pictures has no tiles, and a second one makes them several."""
    if not overrides:
        found: Mapping[str, Any] = processor(picture)
        return found
    found = processor([[picture, picture.crop((0, 0, 1, 1))]])
    return {name: values[:1] for name, values in found.items()}


def _low(_: Any) -> Overrides:
    return {"tiles": False}


def _features(model: Any, inputs: Mapping[str, Any]) -> Features:
    count, tiles = inputs["pixel_values"].shape[:2]
    batches = [1] * count if tiles > 1 else [count + 1]
    found = model.get_image_features(**inputs, batch_num_images=batches)
    return Features(list(found.pooler_output))


LLAVA_ONEVISION = Family(
    "llava_onevision",
    classes="LlavaOnevision",
    architecture="LlavaOnevisionForConditionalGeneration",
    model_type="llava_onevision",
    processors=("LlavaOnevisionImageProcessor",),
    weights={**LLAVA_WEIGHTS, "image_newline": ("model.image_newline", "image_newline")},
    tokens=_tokens,
    towers={"siglip_vision_model": SIGLIP},
    config=(
        "projector_hidden_act",
        "vision_feature_select_strategy",
        "vision_feature_layer",
        "multimodal_projector_bias",
        "image_grid_pinpoints",
        "vision_aspect_ratio",
    ),
    inputs=("pixel_values", "image_sizes"),
    process=_process,
    low=_low,
    features=_features,
)
