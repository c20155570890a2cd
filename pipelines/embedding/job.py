"""One request under way: what it still owes, and what it says at its end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.embedder.embedder import Vectors as Rows
from models.embedder.embedder import unit
from pipelines.base import non_finite
from pipelines.embedding.batching import Request
from pipelines.messages.embedding import Scores, Vectors
from pipelines.messages.frames import Done, Event, Timing, Usage
from pipelines.messages.text import ChoiceDone


@dataclass(slots=True, eq=False)
class Job(Request):
    dimensions: int | None = None  # of its vectors; None: all that the model has
    rows: Rows | None = None  # of a rerank: results so far, by index
    places: NDArray[np.int64] | None = (
        None  # of a rerank: which input each document is; by cosine, the query before them
    )
    cosine: bool = False  # a rerank by vectors
    left: int = 0  # inputs without a result
    prompt_tokens: int = 0
    prepared: float = 0.0  # monotonic seconds, as below
    started: float = 0.0

    def take(self, indices: Sequence[int], rows: Rows, began: float, now: float) -> list[Event]:
        """Results of some inputs, of a step from `began` to `now`; the last ones end the request."""
        id = self.ticket.id
        self.started = min(self.started or began, began)  # steps may overlap
        self.left -= len(indices)
        broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if broken.size:
            index = indices[int(broken[0])]
            self.left = 0
            return [non_finite(id, f" for input {index}")]
        events: list[Event] = []
        if self.rows is None:
            vectors = shortened(rows, self.dimensions).astype("<f4", copy=False)
            events.append(Vectors(id, list(indices), vectors.tobytes()))
        else:
            self.rows[indices] = rows
        return events if self.left else [*events, *self._ending(now)]

    def _ending(self, now: float) -> list[Event]:
        id, received = self.ticket.id, self.ticket.received
        timing = Timing(
            prepare=self.prepared - received,
            queue=self.started - self.prepared,
            compute=now - self.started,
            total=now - received,
        )
        ending: list[Event] = [ChoiceDone(id, 0, "stop"), Done(id, Usage(prompt_tokens=self.prompt_tokens), timing)]
        if self.rows is None:
            return ending
        assert self.places is not None
        if self.cosine:
            query, *documents = self.places
            return [Scores(id, "cosine", cosines(self.rows, query)[documents].tolist()), *ending]
        return [Scores(id, "cross_encoder", self.rows[self.places, 0].tolist()), *ending]


def cosines(vectors: Rows, with_row: int) -> Rows:
    """Of unit vectors [rows, dimensions] with one of them. Each is summed by itself: the last bit of a matrix product
    depends on the row that it is for."""
    wide = vectors.astype(np.float64)
    found: Rows = (wide * wide[with_row]).sum(axis=1).clip(-1, 1).astype(np.float32)
    return found


def shortened(vectors: Rows, dimensions: int | None) -> Rows:
    """The first components, as unit vectors again (https://arxiv.org/abs/2205.13147)."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    return unit(vectors[:, :dimensions])
