"""What images add to a forward of rows that are text else."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.decoder.batch import ForwardBatch
from pipelines.text.vision.prompt_images import PromptImages


class Showing(Protocol):
    """Rows of one sequence, at its places `start … start + length - 1`."""

    @property
    def start(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def images(self) -> PromptImages | None:
        """Those that the sequence's prompt shows."""
        ...


def with_images(batch: ForwardBatch, rows: Sequence[Showing]) -> ForwardBatch:
    """`batch`: a segment for each of `rows`, as if all of them were text."""
    positions: list[NDArray[np.int64]] = []
    embeds: list[tuple[int, NDArray[np.float32]]] = []
    deepstack: list[tuple[int, NDArray[np.float32]]] = []
    segments = list(batch.segments)
    first = 0
    for number, each in enumerate(rows):
        images, start, end = each.images, each.start, each.start + each.length
        if images is None:
            positions.append(np.arange(start, end))
        else:
            positions.append(images.positions(start, each.length))
            for part in images.rows(start, each.length):
                embeds.append((first + part.offset, part.embeds))
                if part.deepstack is not None:
                    deepstack.append((first + part.offset, part.deepstack))
            spans = tuple(span for span in images.spans if start <= span[0] and span[1] <= end)
            segments[number] = replace(segments[number], spans=spans)
        first += each.length
    return replace(batch, positions=_joined(positions), segments=segments, embeds=embeds, deepstack=deepstack)


def _joined(positions: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Side by side: [rows], or [axes, rows] where any of them has several axes; what has one is equal on all."""
    axes = max((len(each) for each in positions if each.ndim == 2), default=0)
    if not axes:
        return np.concatenate(positions)
    return np.concatenate([np.broadcast_to(each, (axes, each.shape[-1])) for each in positions], axis=1)
