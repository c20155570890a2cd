"""Idefics 3 and SmolVLM: a picture as tiles, row by row, and as a whole; or as a whole alone.

The half that sees in a folder of its own, for a language model of other files, is of this family. Its config.json may
name by id what stands around the rows: `fake_image_token_id`, before and behind, and `global_image_token_id`, between
the first of these and the rows. Without them the tokenizer has these tokens by their spellings.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.errors import ModelLoadError
from models.vision.families.family import Description, Family, Features, ImageTokens, Inputs, Overrides

_FAKE, _GLOBAL = "<fake_token_around_image>", "<global-img>"
_LARGEST = 4096  # pixels of an edge, whatever the settings say: MAX_IMAGE_SIZE of the image processor
_MOST_TILES = 32  # of a row, and of a column


@dataclass(frozen=True, slots=True)
class _Separators:
    """Ids of what stands before each run of rows, and behind the last."""

    alone: Sequence[int]  # before a picture that has no tiles
    tiles: Sequence[Sequence[Sequence[int]]]  # before a tile, by row and column
    whole: Sequence[int]  # before the picture behind its tiles
    end: Sequence[int]


def _tokens(description: Description) -> ImageTokens:
    image = description.token("image_token_id")
    separators = _separators(description, image)
    patch = description.vision.integer("patch_size")
    merged = description.config.integer("scale_factor", 2) ** 2

    def expand(inputs: Inputs) -> Sequence[int]:
        *_, height, width = inputs["pixel_values"].shape
        patches = (height // patch) * (width // patch)
        if patches % merged:
            raise ValueError(f"a tile has {patches} patches, no multiple of {merged}")
        run = [image] * (patches // merged)
        rows, columns = int(inputs["rows"].flat[0]), int(inputs["cols"].flat[0])
        if not rows or not columns:
            return [*separators.alone, *run, *separators.end]
        found: list[int] = []
        for row in separators.tiles[:rows]:
            for before in row[:columns]:
                found += [*before, *run]
        return [*found, *separators.whole, *run, *separators.end]

    return ImageTokens(image, image, expand)


def _separators(description: Description, image: int) -> _Separators:
    tiles = _most_tiles(description)
    fields = description.config
    if fields.get("fake_image_token_id") is not None:
        fake, whole = description.token("fake_image_token_id"), description.token("global_image_token_id")
        if tiles:
            raise ModelLoadError(f"{fields.where}: fake_image_token_id is for pictures without tiles")
        return _Separators([fake, whole], [], [], [fake])
    tokenizer = description.tokenizer
    spelled = next(token for token, id in tokenizer.token_ids().items() if id == image)
    alone = _split(tokenizer.encode(f"{_FAKE}{_GLOBAL}{spelled}{_FAKE}", add_special=False), image)
    rows = [
        "".join(f"{_FAKE}<row_{row}_col_{column}>{spelled}" for column in range(1, tiles + 1))
        for row in range(1, tiles + 1)
    ]
    text = "".join(f"{row}\n" for row in rows) + f"\n{_FAKE}{_GLOBAL}{spelled}{_FAKE}"
    tiled = _split(tokenizer.encode(text, add_special=False), image) if tiles else alone
    if (len(alone), len(tiled)) != (2, tiles**2 + 2):
        raise ModelLoadError(f"{fields.where}: {spelled} is not one token beside {_FAKE}")
    by_row = [tiled[row * tiles : (row + 1) * tiles] for row in range(tiles)]
    return _Separators(alone[0], by_row, tiled[-2], tiled[-1])


def _split(ids: Sequence[int], at: int) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for id in ids:
        if id == at:
            found.append([])
        else:
            found[-1].append(id)
    return found


def _most_tiles(description: Description) -> int:
    """Of a row, and of a column. Raises ModelLoadError."""
    fields = description.processor
    if not fields.boolean("do_image_splitting", True):
        return 0
    longest = fields.within(fields.table("size") or {}).integer("longest_edge", 4 * 364)
    tile = fields.within(fields.table("max_image_size") or {}).integer("longest_edge", 364)
    tiles = math.ceil(min(longest, _LARGEST) / tile)
    if tiles > _MOST_TILES:
        raise ModelLoadError(f"{fields.where}: tiles of {tile} pixels, where a picture has up to {longest}")
    return tiles


def _process(processor: Any, picture: Any, overrides: Overrides) -> Mapping[str, Any]:
    found: Mapping[str, Any] = processor(picture, return_row_col_info=True, **overrides)
    return found


def _low(processor: Any) -> Overrides:
    """The picture as a whole."""
    return {"do_image_splitting": False} if processor.do_image_splitting else {}


def _features(model: Any, inputs: Mapping[str, Any]) -> Features:
    """As the class's own `get_image_features`, but for tiles that are all zeros: it takes these for padding, and a
    picture may have them."""
    tiles = inputs["pixel_values"]  # [pictures, tiles, channels, height, width]
    states = model.vision_model(pixel_values=tiles.flatten(0, 1)).last_hidden_state
    rows = model.connector(states)
    return Features(list(rows.reshape(tiles.shape[0], -1, rows.shape[-1])))


IDEFICS3 = Family(
    "idefics3",
    classes="Idefics3",
    architecture="Idefics3ForConditionalGeneration",
    model_type="idefics3",
    processors=("Idefics3ImageProcessor", "SmolVLMImageProcessor"),
    weights={
        "vision_model.": ("model.vision_model.", "vision_model."),
        "connector.": ("model.connector.", "connector."),
    },
    tokens=_tokens,
    towers={"": {"patch_size": 32}},
    config=("scale_factor",),
    language="text_model",
    process=_process,
    low=_low,
    features=_features,
)

SMOLVLM = replace(
    IDEFICS3,
    name="smolvlm",
    classes="SmolVLM",
    architecture="SmolVLMForConditionalGeneration",
    model_type="smolvlm",
    processors=("SmolVLMImageProcessor", "Idefics3ImageProcessor"),
)
