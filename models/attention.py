"""The paged KV cache, and attention over it.

Every attention call sees one sequence only, with a shape that follows from that sequence alone: prefill runs one aligned
query tile at a time, decode one position at a time. So a row's result can't depend on what else is in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from models.batch import Segment

BLOCK_SIZE = 16  # positions a block
TILE = 64  # query rows of one prefill attention call


class KVCache:
    """Keys and values of all layers in one pool: [layers, blocks · block_size, 2, kv_heads, head_dim].

    A position's key and value lie side by side, so that one copy writes both.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = BLOCK_SIZE
        self.num_blocks = num_blocks
        shape = (num_layers, num_blocks * BLOCK_SIZE, 2, kv_heads, head_dim)
        self.pool = torch.zeros(shape, dtype=dtype, device=device)
        self.bytes_per_block = self.pool.nbytes // num_blocks
        self.layers = self.pool.flatten(2).unbind(0)  # of each layer [slots, 2 · kv_heads · head_dim]


@dataclass(frozen=True, slots=True)
class Span:
    """Where a sequence's first positions lie in the pool: `[start, start + length)`, or `slots` where its blocks are no run."""

    length: int
    start: int
    slots: Tensor | None  # [length] int64

    @staticmethod
    def of(blocks: Sequence[int], length: int, device: torch.device) -> "Span":
        used = list(blocks[: -(-length // BLOCK_SIZE)])
        first = used[0]
        if used == list(range(first, first + len(used))):
            return Span(length, first * BLOCK_SIZE, None)
        starts = torch.tensor(used, dtype=torch.int64, device=device).mul_(BLOCK_SIZE)
        offsets = torch.arange(BLOCK_SIZE, device=device)
        return Span(length, 0, (starts[:, None] + offsets).flatten()[:length])

    def prefix(self, length: int) -> "Span":
        return Span(length, self.start, None if self.slots is None else self.slots[:length])

    def keys_values(self, cache: KVCache) -> "Sequence[tuple[Tensor, Tensor]] | Tensor":
        """Of each layer (keys, values), both [1, kv_heads, length, head_dim] views; or the slots to gather."""
        if self.slots is not None:
            return self.slots
        views = cache.pool[:, self.start : self.start + self.length].permute(2, 0, 3, 1, 4).unsqueeze(2)
        return list(zip(views[0].unbind(0), views[1].unbind(0), strict=True))


def _gather(cache: KVCache, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
    """(keys, values), both [1, kv_heads, length, head_dim], copied out of scattered blocks."""
    keys, values = cache.pool[layer].index_select(0, slots).permute(1, 2, 0, 3).unsqueeze(1)
    return keys, values


@dataclass(frozen=True, slots=True)
class _Position:
    """One decode attention call: one query position against all positions up to it."""

    query: Tensor  # [1, kv_heads, group, head_dim]: the query heads that share a KV head are rows of one head
    output: Tensor  # [1, kv_heads, group, head_dim]
    views: "Sequence[tuple[Tensor, Tensor]] | Tensor"


class DecodeAttention:
    """One call a position. `queries` and `outputs`: [rows, kv_heads, group, head_dim]."""

    def __init__(self, cache: KVCache, segments: Sequence[Segment], queries: Tensor, outputs: Tensor) -> None:
        self._cache = cache
        self._calls: list[_Position] = []
        slots: list[int] = []
        row = 0
        for segment in segments:
            for length in range(segment.context + 1, segment.context + segment.length + 1):
                span = Span.of(segment.blocks, length, cache.pool.device)
                self._calls.append(
                    _Position(queries[row : row + 1], outputs[row : row + 1], span.keys_values(cache))
                )
                block, offset = divmod(length - 1, BLOCK_SIZE)
                slots.append(segment.blocks[block] * BLOCK_SIZE + offset)
                row += 1
        self._slots = torch.tensor(slots, dtype=torch.int64, device=cache.pool.device)

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim], the rows' own, written to the cache before attending."""
        self._cache.layers[layer].index_copy_(0, self._slots, keys_values)
        for call in self._calls:
            views = call.views
            keys, values = _gather(self._cache, layer, views) if isinstance(views, Tensor) else views[layer]
            call.output.copy_(scaled_dot_product_attention(call.query, keys, values))


class PrefillAttention:
    """One query tile of one sequence against all positions up to its end.

    `queries` and `outputs`: [rows, kv_heads, group, head_dim] with at least `length` rows. `mask`: [length, context + length].
    """

    def __init__(
        self, cache: KVCache, span: Span, length: int, queries: Tensor, outputs: Tensor, mask: Tensor
    ) -> None:
        self._cache = cache
        self._length = length
        self._mask = mask
        self._query = queries[:length].permute(1, 2, 0, 3)  # [kv_heads, group, length, head_dim]
        self._output = outputs[:length].permute(1, 2, 0, 3)
        self._views = span.keys_values(cache)
        context = span.length - length
        self._slots = (
            torch.arange(span.start + context, span.start + span.length, device=cache.pool.device)
            if span.slots is None
            else span.slots[context:]
        )

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim]; the first `length` rows count."""
        self._cache.layers[layer].index_copy_(0, self._slots, keys_values[: self._length])
        views = self._views
        keys, values = _gather(self._cache, layer, views) if isinstance(views, Tensor) else views[layer]
        group = self._query.shape[1]
        out = scaled_dot_product_attention(
            self._query,
            keys.transpose(0, 1).expand(-1, group, -1, -1),  # [kv_heads, group, context + length, head_dim]
            values.transpose(0, 1).expand(-1, group, -1, -1),
            attn_mask=self._mask,
        )
        self._output.copy_(out)


class CausalMask:
    """Additive masks of query tiles: views of one [TILE, context + TILE] tensor that grows as contexts do."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._corner = torch.full((TILE, TILE), float("-inf"), dtype=dtype, device=device).triu_(1)
        self._mask = self._corner

    def tile(self, length: int, context: int) -> Tensor:
        """[length, context + length]: all of the context, then the lower triangle."""
        while self._mask.shape[1] - TILE < context:
            self._mask = torch.cat((self._mask.new_zeros(TILE, max(1024, self._mask.shape[1])), self._mask), 1)
        begin = self._mask.shape[1] - TILE - context
        return self._mask[:length, begin : begin + context + length]
