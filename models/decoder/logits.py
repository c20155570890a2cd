"""Logits as decoders give them: in the host's memory, or in a GPU's. Imports torch for the latter alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Union, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]
Logits = Union[Floats, "Tensor"]  # [rows, vocab] float32


def on_host(logits: Logits) -> Floats:
    """Without a copy where they are there already."""
    if isinstance(logits, np.ndarray):
        return logits
    array: Floats = logits.cpu().numpy()
    return array


def joined(parts: Sequence[Logits]) -> Logits:
    """The rows of all, one after the other. All are of one kind."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(cast(Sequence[Floats], parts))
    import torch

    return torch.cat(list(cast(Sequence["Tensor"], parts)))


def largest(logits: Logits) -> tuple[Floats, NDArray[np.int64]]:
    """Of each row its largest value, and the first id that has it; NaN counts as the largest."""
    if isinstance(logits, np.ndarray) or logits.device.type == "cpu":
        # No thread pool for a reduction of microseconds: beside a busy neighbour its barrier costs a time slice.
        rows = on_host(logits)
        ids = rows.argmax(axis=-1)
        return rows[np.arange(len(ids)), ids], ids
    import torch

    best, where = logits.max(dim=-1)
    packed = torch.stack((best, where.to(best.dtype))).cpu().numpy()  # one transfer; ids are exact below 2^24
    return packed[0], packed[1].astype(np.int64)
