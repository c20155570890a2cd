"""What a model sees with, described by its files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.vision.image import ImageProcessor, PreparedImage, Tower


@dataclass(frozen=True, slots=True)
class PlacedImage:
    start: int  # index, in the expanded prompt, of the first of the image's tokens
    image: PreparedImage


# (ids of an expanded prompt, its images by place) -> rope positions [axes, length], and delta: the position on every
# axis of the token at i behind the prompt is i + delta.
Positions = Callable[[Sequence[int], Sequence[PlacedImage]], tuple[NDArray[np.int64], int]]


@dataclass(frozen=True, slots=True, eq=False)
class Vision:
    """`load_processor` and `load_tower` import torch and transformers; they raise ModelLoadError."""

    family: str  # for people
    placeholder: int  # id of the token that the chat template writes once for each picture
    bidirectional: bool  # rows of one picture attend to each other in both directions
    chat_template: str | None  # of the vision half, where it has its own
    positions: Positions | None  # None: one axis, on which the token at i is at i
    load_processor: Callable[[], ImageProcessor]
    load_tower: Callable[[], Tower]
    # Text that goes before and behind each placeholder before a prompt is made tokens: it may become one token with
    # what is beside it, so that `PreparedImage.tokens` can't have it.
    around: tuple[str, str] = ("", "")
