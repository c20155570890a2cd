"""Decode attention over all rows in one call a layer, for devices where starting a call costs more than its work.

A forward's rows are told by tensors alone (`RowTables`), so that the same code runs from a captured CUDA graph. Results
agree with `DecodeAttention` of `paged`, its reference, within rounding: shapes follow from the whole batch here.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from models.decoder.attention.paged import KVCache
from models.decoder.batch import Segment
from models.decoder.layers import LayerSpec

GATHERED_BYTES = 256 << 20  # the most that is gathered at once, but for a single row: what lies beside the cache


@dataclass(frozen=True, slots=True)
class RowTables:
    """Where the rows of a decode forward stand, and where the keys and values of their sequences are."""

    positions: Tensor  # [rows] int64, in the sequence: a row attends to the positions up to its own
    blocks: Tensor  # [rows, width] int64: its sequence's blocks, then any others

    @staticmethod
    def of(segments: Sequence[Segment], block_size: int, device: torch.device) -> "RowTables":
        """Of the segments' rows in order."""
        used = [each.blocks[: -(-(each.context + each.length) // block_size)] for each in segments]
        width = max(map(len, used))
        rows: list[list[int]] = []  # position, then blocks: one transfer
        for each, blocks in zip(segments, used, strict=True):
            table = [*blocks, *repeat(blocks[-1], width - len(blocks))]
            rows.extend([position, *table] for position in range(each.context, each.context + each.length))
        tables = torch.tensor(rows, dtype=torch.int64).to(device)
        return RowTables(tables[:, 0], tables[:, 1:])

    def slots(self, block_size: int) -> Tensor:
        """[rows] int64: where each row's own keys and values go."""
        block = torch.div(self.positions, block_size, rounding_mode="floor")
        return self.blocks.gather(1, block[:, None])[:, 0] * block_size + self.positions % block_size


class BatchedAttention:
    """Gathers the blocks of rows, all of them where memory allows, and attends with a mask of each row's length."""

    def __init__(
        self, cache: KVCache, layers: Sequence[LayerSpec], tables: RowTables, queries: Tensor, outputs: Tensor
    ) -> None:
        """`queries`, `outputs`: [rows, kv_heads, group, head_dim].

        Query heads that share a KV head become the rows of one head.
        """
        self._cache = cache
        self._layers = layers
        self._slots = tables.slots(cache.block_size)
        self._block_shape = cache.blocks[0].shape[1:]
        windows = {layer.window for layer in layers}
        rows, width = tables.blocks.shape
        at_once = max(1, GATHERED_BYTES // (width * cache.blocks[0][0].nbytes))
        self._parts = [
            _Part.of(tables, windows, width * cache.block_size, slice(first, first + at_once), queries, outputs)
            for first in range(0, rows, at_once)
        ]

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim], the rows' own, written to the cache before attending."""
        self._cache.rows[layer].index_copy_(0, self._slots, keys_values)
        spec = self._layers[layer]
        for part in self._parts:
            rows, capacity = part.stale.shape[:2]
            gathered = self._cache.blocks[layer].index_select(0, part.blocks)
            gathered = gathered.view(rows, capacity, *self._block_shape[1:]).masked_fill_(part.stale, 0)
            keys, values = gathered.permute(2, 0, 3, 1, 4).unbind(0)  # [rows, kv_heads, capacity, head_dim]
            mask = part.masks[spec.window]
            out = scaled_dot_product_attention(part.queries, keys, values, attn_mask=mask, scale=spec.scale)
            part.outputs.copy_(out)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that are gathered together."""

    queries: Tensor
    outputs: Tensor
    blocks: Tensor  # [rows · width]
    # [rows, capacity, 1, 1, 1] bool, behind a row. What stands there may be anything, and zero times infinity is no
    # number.
    stale: Tensor
    masks: Mapping[int | None, Tensor]  # by window: [rows, 1, 1, capacity], additive

    @staticmethod
    def of(
        tables: RowTables, windows: Set[int | None], capacity: int, rows: slice, queries: Tensor, outputs: Tensor
    ) -> "_Part":
        here = tables.positions[rows, None]
        positions = torch.arange(capacity, device=here.device)
        stale = positions > here

        def mask(window: int | None) -> Tensor:
            hidden = stale if window is None else stale | (positions <= here - window)
            zeros = torch.zeros(hidden.shape, dtype=queries.dtype, device=here.device)
            return zeros.masked_fill_(hidden, float("-inf"))[:, None, None, :]

        return _Part(
            queries[rows],
            outputs[rows],
            tables.blocks[rows].flatten(),
            stale[:, :, None, None, None],
            {window: mask(window) for window in windows},
        )
