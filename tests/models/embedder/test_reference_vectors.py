from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.embedder import reference_vectors
from models.embedder.reference_vectors import LEAST_COSINE, ReferenceBatch, disagreement

Rows = NDArray[np.float32]
MULTIPLE, PAD_ID = 16, 7


def vectors(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Rows:
    total = (ids * mask).sum(1, keepdims=True).astype(np.float32)
    found: Rows = np.concatenate([np.cos(total), np.sin(total)], axis=1)
    return found


class SmallSession:
    """A graph of our own, and what is done to its vectors. See `models.embedder.session.Session`."""

    provider = "small"
    inputs = frozenset({"input_ids", "attention_mask"})
    streams = 1
    multiple = MULTIPLE

    def __init__(self, change: Callable[[Rows], Rows] = lambda rows: rows) -> None:
        self.outputs: dict[str, Any] = {"vectors": (None, 2)}
        self._change = change

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: list[str] | None = None) -> list[Rows]:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        assert ids.shape[1] % MULTIPLE == 0
        assert (ids[mask == 0] == PAD_ID).all()
        return [self._change(vectors(ids, mask))]


@pytest.fixture
def batches() -> list[ReferenceBatch]:
    made = []
    for rows, length in ((1, 3), (3, 20), (2, 32)):
        ids = np.arange(rows * length).reshape(rows, length)
        mask = (np.arange(length) < length - np.arange(rows)[:, None]).astype(np.int64)
        ids[mask == 0] = PAD_ID
        made.append(ReferenceBatch(ids, mask, vectors(ids, mask)))
    return made


def turned(rows: Rows, angle: float) -> Rows:
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return (rows @ turn).astype(np.float32)


def test_what_is_kept_is_what_was_saved(tmp_path: Path, batches: list[ReferenceBatch]) -> None:
    reference_vectors.save(tmp_path, batches)
    for saved, read in zip(batches, reference_vectors.load(tmp_path), strict=True):
        for name in ("ids", "mask", "vectors"):
            np.testing.assert_array_equal(getattr(saved, name), getattr(read, name))


def test_a_session_is_held_to_each_vector(batches: list[ReferenceBatch]) -> None:
    assert disagreement(SmallSession(), batches, PAD_ID) is None
    near, far = 0.9 * np.arccos(LEAST_COSINE), 1.1 * np.arccos(LEAST_COSINE)
    assert disagreement(SmallSession(lambda rows: turned(rows, near)), batches, PAD_ID) is None
    assert "cosine 0.99988" in str(disagreement(SmallSession(lambda rows: turned(rows, far)), batches, PAD_ID))
    assert "cosine nan" in str(disagreement(SmallSession(lambda rows: rows * np.float32("nan")), batches, PAD_ID))

    def one_is_wrong(rows: Rows) -> Rows:
        return np.concatenate([rows[:-1], turned(rows[-1:], far)]) if len(rows) == 3 else rows

    assert "(3, 20)" in str(disagreement(SmallSession(one_is_wrong), batches, PAD_ID))


def test_a_session_whose_rows_touch_is_found(batches: list[ReferenceBatch]) -> None:
    found = disagreement(SmallSession(lambda rows: turned(rows, 1e-6 * len(rows))), batches, PAD_ID)
    assert "beside others at (3, 20)" in str(found)
