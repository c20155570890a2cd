"""One picture on its way into a model: prepared for the tower, then encoded by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """What the tower reads of a picture, and what stands for it in a prompt."""

    # `pixel_values` and what goes with them, by the names of the tower's arguments, as the family's processor gives
    # them for one picture.
    inputs: Mapping[str, NDArray[Any]]
    tokens: tuple[int, ...]  # what the placeholder in a prompt is replaced by, separators included
    rows: NDArray[np.int64]  # [n], ascending: which of `tokens` are rows that the tower gives
    grid: tuple[int, int, int] | None  # (time, height, width) of rows, for ropes with several axes
    identity: bytes  # 16 bytes, of the decoded pixels, the processor's settings and the detail
    pixels: int  # that the tower reads


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImage:
    """What the tower makes of a picture."""

    rows: NDArray[np.float32]  # [n, hidden], as they enter the language model's first layer
    deepstack: NDArray[np.float32] | None = None  # [layers, n, hidden], added to what the first layers give

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + (0 if self.deepstack is None else self.deepstack.nbytes)


class ImageProcessor(Protocol):
    """For any number of threads at once."""

    def prepare(self, rgb: NDArray[np.uint8], detail: str) -> PreparedImage:
        """`rgb`: [height, width, 3]. `detail`: auto | low | high; what has one form for all gives the same for each.

        Raises ValueError where a picture can't be made what the tower reads, as one that is too long for its width.
        """
        ...


class Tower(Protocol):
    """For one thread at a time."""

    def encode(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        """In the order of the pictures. On a CPU a picture's rows are the same bits whatever comes with it."""
        ...
