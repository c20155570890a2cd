"""Rotary positions: https://arxiv.org/abs/2104.09864, a head's first half against its second (as GPT-NeoX has it).

Heads that are turned in part are held in an order in which that is so, too (`models.weights`).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from models.frequencies import Rope

_FIRST_LENGTH = 2048


class RopeTable:
    """Cosines and sines by position; grows up to the model's context as positions are used.

    Pairs that the rope leaves alone have a cosine of one and a sine of zero.
    """

    def __init__(self, rope: Rope, head_dim: int, limit: int, dtype: torch.dtype, device: torch.device) -> None:
        """`limit`: positions of the longest sequence."""
        self._inv_freq = torch.tensor(rope.inv_freq, dtype=torch.float64, device=device)
        self._half = head_dim // 2
        self._scale = rope.scale
        self._dtype = dtype
        self._limit = limit
        self._table = self._make(min(_FIRST_LENGTH, self._limit))

    def _make(self, length: int) -> Tensor:
        """[length, 1, 3 · head_dim / 2]: cosines twice, for both halves of a head; sines once."""
        angles = torch.outer(torch.arange(length, dtype=torch.float64, device=self._inv_freq.device), self._inv_freq)
        padding = (0, self._half - angles.shape[1])
        cos, sin = pad(angles.cos() * self._scale, padding, value=1), pad(angles.sin() * self._scale, padding)
        return torch.cat((cos, cos, sin), 1).to(self._dtype).unsqueeze(1)

    def reserve(self, length: int) -> None:
        """Make sure that positions below `length` are there."""
        if length > self._table.shape[0]:
            self._table = self._make(max(length, min(2 * self._table.shape[0], self._limit)))

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[n] -> cosines [n, 1, head_dim], sines [n, 1, head_dim / 2]"""
        rows = self.packed(positions)
        return rows[..., : 2 * self._half], rows[..., 2 * self._half :]

    def packed(self, positions: Tensor) -> Tensor:
        """[n] -> [n, 1, 3 · head_dim / 2]: cosines twice, sines once."""
        return self._table.index_select(0, positions)
