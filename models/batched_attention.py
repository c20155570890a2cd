"""Decode attention over all rows in one call a layer, for devices where starting a call costs more than its work.

A forward's rows are told by tensors alone (`RowTables`), so that the same code runs from a captured CUDA graph. Results
agree with `models.attention.DecodeAttention`, its reference, within rounding: shapes follow from the whole batch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from models.attention import KVCache
from models.batch import Segment


class AttentionSpec(Protocol):
    """What attention asks of a layer."""

    @property
    def window(self) -> int | None:
        """Positions that a row attends to, its own the last; None: all up to its own."""
        ...

    @property
    def scale(self) -> float | None:
        """Of query · key; None: 1 / sqrt(head_dim)."""
        ...


@dataclass(frozen=True, slots=True)
class FullAttention:
    """A layer that attends to everything; an `AttentionSpec`."""

    window: int | None = None
    scale: float | None = None


@dataclass(frozen=True, slots=True)
class RowTables:
    """Where the rows of a decode forward stand, and where the keys and values of their sequences are."""

    positions: Tensor  # [rows] int64: a row attends to the positions up to its own
    blocks: Tensor  # [rows, width] int64: its sequence's blocks, then any others

    @staticmethod
    def of(segments: Sequence[Segment], positions: Tensor, block_size: int) -> "RowTables":
        """`positions`: [rows] int64, of the segments' rows in order."""
        used = [each.blocks[: -(-(each.context + each.length) // block_size)] for each in segments]
        width = max(map(len, used))
        tables: list[list[int]] = []
        for each, blocks in zip(segments, used, strict=True):
            tables.extend(repeat([*blocks, *repeat(blocks[-1], width - len(blocks))], each.length))
        return RowTables(positions, torch.tensor(tables, dtype=torch.int64).to(positions.device))

    def slots(self, block_size: int) -> Tensor:
        """[rows] int64: where each row's own keys and values go."""
        block = torch.div(self.positions, block_size, rounding_mode="floor")
        return self.blocks.gather(1, block[:, None])[:, 0] * block_size + self.positions % block_size


class BatchedAttention:
    """Gathers the blocks of all rows, then attends once with a mask of each row's length."""

    def __init__(
        self, cache: KVCache, layers: Sequence[AttentionSpec], tables: RowTables, queries: Tensor, outputs: Tensor
    ) -> None:
        """`queries`, `outputs`: [rows, kv_heads, group, head_dim].

        Query heads that share a KV head become the rows of one head.
        """
        self._cache = cache
        self._layers = layers
        self._queries, self._outputs = queries, outputs
        self._slots = tables.slots(cache.block_size)
        self._index = tables.blocks.flatten()
        rows, width = tables.blocks.shape
        kv_heads, head_dim = queries.shape[1], queries.shape[3]
        self._shape = (rows, width * cache.block_size, 2, kv_heads, head_dim)
        self._hidden = {window: self._hide(tables, window) for window in {None, *(layer.window for layer in layers)}}
        # What stands there may be anything, and zero times infinity is no number.
        self._stale = self._hidden[None][:, :, None, None, None]
        self._masks = {window: self._mask(hidden) for window, hidden in self._hidden.items()}

    def _hide(self, tables: RowTables, window: int | None) -> Tensor:
        """[rows, capacity] bool: positions that a row does not attend to."""
        here = tables.positions[:, None]
        positions = torch.arange(self._shape[1], device=here.device)
        hidden = positions > here
        return hidden if window is None else hidden | (positions <= here - window)

    def _mask(self, hidden: Tensor) -> Tensor:
        """[rows, 1, 1, capacity], additive"""
        zeros = torch.zeros(hidden.shape, dtype=self._queries.dtype, device=hidden.device)
        return zeros.masked_fill_(hidden, float("-inf"))[:, None, None, :]

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim], the rows' own, written to the cache before attending."""
        self._cache.rows[layer].index_copy_(0, self._slots, keys_values)
        gathered = self._cache.blocks[layer].index_select(0, self._index).view(self._shape)
        gathered.masked_fill_(self._stale, 0)
        keys, values = gathered.permute(2, 0, 3, 1, 4).unbind(0)  # [rows, kv_heads, capacity, head_dim]
        spec = self._layers[layer]
        out = scaled_dot_product_attention(
            self._queries, keys, values, attn_mask=self._masks[spec.window], scale=spec.scale
        )
        self._outputs.copy_(out)
