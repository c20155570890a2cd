"""Rotary positions: https://arxiv.org/abs/2104.09864, in the half-split form (GPT-NeoX's)."""

import torch
from torch import Tensor

from models.config import DecoderConfig


class RopeTable:
    """Rows of cosines and signed sines by position; grows up to the model's context as positions are used."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._inv_freq = torch.tensor(config.inv_freq, dtype=torch.float64, device=device)
        self._dtype = dtype
        self._limit = config.max_position_embeddings
        self._rows = self._make(min(2048, self._limit))

    def _make(self, length: int) -> Tensor:
        """[length, 2, head_dim]: cosines; sines, negated where they multiply the second half."""
        angles = torch.outer(torch.arange(length, dtype=torch.float64, device=self._inv_freq.device), self._inv_freq)
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), 1).to(self._dtype)

    def reserve(self, length: int) -> None:
        """Make sure that positions below `length` are there."""
        if length > self._rows.shape[0]:
            grown = 2 * self._rows.shape[0]
            self._rows = self._make(max(length, min(grown, self._limit)))

    def rows(self, positions: Tensor) -> Tensor:
        """[rows] -> [rows, 2, head_dim]"""
        return self._rows.index_select(0, positions)
