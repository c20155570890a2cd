"""Vectors that a checkpoint's own float32 gives, kept beside its export: what a coarser form of it is held to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.embedder.session import Session

FILE = "reference.npz"
LEAST_COSINE = 0.9999

_FIELDS = ("ids", "mask", "vectors")


@dataclass(frozen=True, slots=True)
class ReferenceBatch:
    ids: NDArray[np.int64]  # [rows, length]
    mask: NDArray[np.int64]  # [rows, length]
    vectors: NDArray[np.float32]  # [rows, dimensions]

    def padded(self, multiple: int, pad_id: int) -> "ReferenceBatch":
        """At a length that is a multiple."""
        more = ((0, 0), (0, -self.ids.shape[1] % multiple))
        return ReferenceBatch(np.pad(self.ids, more, constant_values=pad_id), np.pad(self.mask, more), self.vectors)


def save(folder: Path, batches: Sequence[ReferenceBatch]) -> None:
    arrays = {f"{name}_{index}": getattr(each, name) for index, each in enumerate(batches) for name in _FIELDS}
    np.savez(folder / FILE, **arrays)


def load(folder: Path) -> list[ReferenceBatch]:
    with np.load(folder / FILE) as arrays:
        count = len(arrays.files) // len(_FIELDS)
        return [ReferenceBatch(*(arrays[f"{name}_{index}"] for name in _FIELDS)) for index in range(count)]


def disagreement(session: Session, batches: Sequence[ReferenceBatch], pad_id: int) -> str | None:
    """Why a session can't stand for the float32 graph: a vector that is too far from it, or that is another one beside
    other texts. None: it can."""
    for batch in batches:
        asked = batch.padded(session.multiple, pad_id)
        found = _vectors(session, asked.ids, asked.mask)
        cosine = float(((found * batch.vectors).sum(1) / np.linalg.norm(found, axis=1)).min())
        if not cosine >= LEAST_COSINE:  # nor where it is not a number
            return f"cosine {cosine:.5f} to float32 at {batch.ids.shape}, and {LEAST_COSINE} is needed"
        alone = [_vectors(session, asked.ids[row : row + 1], asked.mask[row : row + 1]) for row in range(len(found))]
        difference = float(np.abs(np.concatenate(alone) - found).max())
        if difference > 0:
            return f"a vector changes by {difference:.2g} beside others at {batch.ids.shape}"
    return None


def _vectors(session: Session, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
    (found,) = session.run({"input_ids": ids, "attention_mask": mask})
    return found
