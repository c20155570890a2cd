"""The paged KV cache, and attention over it.

Every attention call sees one sequence only, with a shape that follows from that sequence alone: prefill runs one
aligned query tile at a time, decode one position at a time. A row's result can't depend on what else is in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from models.batch import Segment

BLOCK_SIZE = 16  # positions a block
TILE = 64  # query rows of one prefill attention call; 128 is a sixth faster, but finds fewer prefixes


class KVCache:
    """Keys and values of all layers in one pool: [layers, blocks · block_size, 2, kv_heads, head_dim].

    A position's key and value lie side by side, so that one copy writes both.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        shape = (num_layers, num_blocks * block_size, 2, kv_heads, head_dim)
        self.pool = torch.zeros(shape, dtype=dtype, device=device)
        self.bytes_per_block = self.pool.nbytes // num_blocks
        # Of each layer: [slots, 2 · kv_heads · head_dim], and keys and values, [1, kv_heads, slots, head_dim].
        self.rows = self.pool.flatten(2).unbind(0)
        # The same by blocks: [blocks, block_size, 2, kv_heads, head_dim].
        self.blocks = self.pool.view(num_layers, num_blocks, block_size, 2, kv_heads, head_dim).unbind(0)
        keys, values = self.pool.permute(2, 0, 3, 1, 4).unsqueeze(2).unbind(0)
        self.keys_values = list(zip(keys.unbind(0), values.unbind(0), strict=True))


@dataclass(frozen=True, slots=True)
class Span:
    """Positions of one sequence: a run of slots from `start` on, or `slots` where their blocks are no run."""

    length: int
    start: int
    slots: Tensor | None  # [length] int64

    @staticmethod
    def of(blocks: Sequence[int], length: int, device: torch.device, block_size: int = BLOCK_SIZE) -> "Span":
        """The first `length` positions."""
        used = list(blocks[: -(-length // block_size)])
        first = used[0]
        if used == list(range(first, first + len(used))):
            return Span(length, first * block_size, None)
        starts = torch.tensor(used, dtype=torch.int64, device=device).mul_(block_size)
        return Span(length, 0, (starts[:, None] + torch.arange(block_size, device=device)).flatten()[:length])

    def all_slots(self, device: torch.device) -> Tensor:
        """[length] int64"""
        if self.slots is None:
            return torch.arange(self.start, self.start + self.length, device=device)
        return self.slots

    def part(self, begin: int, end: int) -> "Span":
        if self.slots is None:
            return Span(end - begin, self.start + begin, None)
        return Span(end - begin, 0, self.slots[begin:end])


class _Reader:
    """Keys and values of a span: views of a run, copies of anything else."""

    def __init__(self, cache: KVCache, span: Span) -> None:
        self._layers = cache.keys_values
        self._start, self._length, self._slots = span.start, span.length, span.slots

    def __call__(self, layer: int) -> tuple[Tensor, Tensor]:
        """(keys, values), both [1, kv_heads, length, head_dim]"""
        keys, values = self._layers[layer]
        if self._slots is None:
            return keys.narrow(2, self._start, self._length), values.narrow(2, self._start, self._length)
        return keys.index_select(2, self._slots), values.index_select(2, self._slots)


class _Writer:
    """Where rows put their keys and values."""

    def __init__(self, cache: KVCache, span: Span) -> None:
        self._layers = cache.rows
        self._start, self._length, self._slots = span.start, span.length, span.slots

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """keys_values: [length, 2 · kv_heads · head_dim]"""
        if self._slots is None:
            self._layers[layer].narrow(0, self._start, self._length).copy_(keys_values)
        else:
            self._layers[layer].index_copy_(0, self._slots, keys_values)


class DecodeAttention:
    """One call a position, of one query against all positions up to it."""

    def __init__(self, cache: KVCache, segments: Sequence[Segment], queries: Tensor, outputs: Tensor) -> None:
        """`queries`, `outputs`: [rows, kv_heads, group, head_dim].

        Query heads that share a KV head become the rows of one head.
        """
        device = cache.pool.device
        self._calls: list[tuple[Tensor, Tensor, _Reader]] = []
        own: list[Span] = []
        for segment in segments:
            whole = Span.of(segment.blocks, segment.context + segment.length, device, cache.block_size)
            own.append(whole.part(segment.context, whole.length))
            for length in range(segment.context + 1, whole.length + 1):
                row = len(self._calls)
                reader = _Reader(cache, whole.part(0, length))
                self._calls.append((queries[row : row + 1], outputs[row : row + 1], reader))
        self._write = _Writer(cache, own[0] if len(own) == 1 else _together(own, device))

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim], the rows' own, written to the cache before attending."""
        self._write(layer, keys_values)
        for query, output, reader in self._calls:
            keys, values = reader(layer)
            output.copy_(scaled_dot_product_attention(query, keys, values))


def _together(spans: Sequence[Span], device: torch.device) -> Span:
    """Spans of several sequences, one after the other."""
    slots = torch.cat([span.all_slots(device) for span in spans])
    return Span(slots.shape[0], 0, slots)


class PrefillAttention:
    """One query tile of one sequence against all positions up to its end."""

    def __init__(self, cache: KVCache, span: Span, length: int, queries: Tensor, outputs: Tensor, mask: Tensor) -> None:
        """`span`: all positions up to the tile's end, of which the last `length` are the tile's own.

        `queries`, `outputs`: [rows, kv_heads, group, head_dim], rows ≥ length. `mask`: [length · group, span.length].
        """
        self._length = length
        self._mask = mask
        self._query = queries[:length].transpose(0, 1)  # [kv_heads, length, group, head_dim]
        self._output = outputs[:length].transpose(0, 1)
        self._read = _Reader(cache, span)
        self._write = _Writer(cache, span.part(span.length - length, span.length))

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim]; the first `length` rows count."""
        self._write(layer, keys_values[: self._length])
        keys, values = self._read(layer)
        query = self._query.flatten(1, 2).unsqueeze(0)  # [1, kv_heads, length · group, head_dim]
        out = scaled_dot_product_attention(query, keys, values, attn_mask=self._mask)
        self._output.copy_(out.view(self._output.shape))


class CausalMask:
    """Additive masks of query tiles: views of one [TILE · group, context + TILE] tensor that grows as contexts do."""

    def __init__(self, group: int, dtype: torch.dtype, device: torch.device) -> None:
        corner = torch.full((TILE, TILE), float("-inf"), dtype=dtype, device=device).triu_(1)
        self._group = group
        self._mask = corner.repeat_interleave(group, 0)

    def tile(self, length: int, context: int) -> Tensor:
        """[length · group, context + length]: all of the context, then the lower triangle."""
        missing = context - (self._mask.shape[1] - TILE)
        if missing > 0:
            wider = max(missing, 1024, self._mask.shape[1])
            self._mask = torch.cat((self._mask.new_zeros(self._mask.shape[0], wider), self._mask), 1)
        begin = self._mask.shape[1] - TILE - context
        return self._mask[: length * self._group, begin : begin + context + length]
