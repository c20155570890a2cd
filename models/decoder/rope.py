"""Rotary positions: https://arxiv.org/abs/2104.09864, a head's first half against its second (as GPT-NeoX has it).

Heads that are turned in part are held in an order in which that is so, too (`models.decoder.tensors`).
"""

import torch
from torch import Tensor

from models.decoder.frequencies import FIRST_POSITIONS, Rope, column_axes, grown, rotations


class RopeTable:
    """Cosines and sines by position; grows up to the model's context as positions are used."""

    def __init__(self, rope: Rope, head_dim: int, limit: int, dtype: torch.dtype, device: torch.device) -> None:
        """`limit`: positions of the longest sequence."""
        self._rope = rope
        self._head_dim = head_dim
        self._dtype = dtype
        self._device = device
        self._limit = limit
        self._axes = torch.from_numpy(column_axes(rope, head_dim)).to(device)
        self._columns = torch.arange(len(self._axes), device=device)
        self._table = self._make(min(FIRST_POSITIONS, self._limit))

    def _make(self, length: int) -> Tensor:
        """[length, 1, 3 · head_dim / 2]"""
        table = torch.from_numpy(rotations(self._rope, self._head_dim, length))
        return table.to(self._device, self._dtype).unsqueeze(1)

    def reserve(self, length: int) -> None:
        """Make sure that positions below `length` are there."""
        if length > self._table.shape[0]:
            self._table = self._make(grown(self._table.shape[0], length, self._limit))

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[n] or [axes, n] -> cosines [n, 1, head_dim], sines [n, 1, head_dim / 2]"""
        if positions.ndim == 1:
            rows = self._table.index_select(0, positions)
        else:
            rows = self._table[positions[self._axes].T, 0, self._columns].unsqueeze(1)
        return rows[..., : self._head_dim], rows[..., self._head_dim :]
