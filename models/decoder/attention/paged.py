"""The paged KV cache, and attention over it.

Every attention call sees one sequence only, with a shape that follows from that sequence alone: prefill runs one
aligned query tile at a time, decode one position at a time. A row's result can't depend on what else is in the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from models.decoder.batch import BLOCK_SIZE, Segment
from models.decoder.layers import LayerSpec

TILE = 64  # query rows of one prefill attention call; larger ones are faster, but find fewer prefixes


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


class CausalMask:
    """Additive masks of query tiles: views of one [TILE · group, context + TILE] tensor that grows as contexts do."""

    def __init__(self, group: int, window: int | None, dtype: torch.dtype, device: torch.device) -> None:
        """`window`: positions that a row attends to, its own the last; None: all."""
        self._group, self._window = group, window
        self._dtype, self._device = dtype, device
        self._context = 0
        self._mask = self._make()

    def _make(self) -> Tensor:
        rows = torch.arange(TILE, device=self._device)[:, None]
        positions = torch.arange(-self._context, TILE, device=self._device)  # counted from the tile's first row
        hidden = positions > rows
        if self._window is not None:
            hidden |= positions <= rows - self._window
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, float("-inf"))
        return mask.repeat_interleave(self._group, 0)

    def tile(self, length: int, context: int) -> Tensor:
        """[length · group, context + length]: of the context what is in the window, then the lower triangle."""
        if context > self._context:
            self._context = max(context, 2 * self._context, 1024)
            self._mask = self._make()
        begin = self._context - context
        return self._mask[: length * self._group, begin : begin + context + length]

    def looking_ahead(self, tile: Tensor, start: int, end: int, spans: Sequence[tuple[int, int]]) -> Tensor:
        """The mask of a tile whose first row stands at `start`, of positions up to `end`: rows in one of `spans` see
        those behind them in it, too."""
        length = tile.shape[0] // self._group
        rows, columns = torch.arange(start, start + length), torch.arange(start, end)
        last = rows.clone()  # that each row sees
        for begin, stop in spans:
            last[max(begin - start, 0) : stop - start] = stop - 1
        ahead = (columns > rows[:, None]) & (columns <= last[:, None])
        context = tile.shape[1] - length
        mask = torch.full((tile.shape[0], context + end - start), float("-inf"), dtype=tile.dtype, device=tile.device)
        mask[:, : tile.shape[1]] = tile
        mask.view(length, self._group, -1)[..., context:].masked_fill_(ahead[:, None].to(tile.device), 0)
        return mask


CausalMasks = Mapping[int | None, CausalMask]  # by window


def causal_masks(layers: Sequence[LayerSpec], group: int, dtype: torch.dtype, device: torch.device) -> CausalMasks:
    """A mask for each of the layers' windows."""
    windows = dict.fromkeys(layer.window for layer in layers)
    return {window: CausalMask(group, window, dtype, device) for window in windows}


_T = TypeVar("_T")


def _by_layer(layers: Sequence[LayerSpec], make: Callable[[int | None], _T]) -> list[_T]:
    """What is made of each layer's window, once for all layers that share it."""
    made = {window: make(window) for window in dict.fromkeys(layer.window for layer in layers)}
    return [made[layer.window] for layer in layers]


class DecodeAttention:
    """One call a position, of one query against all positions of the layer's window up to it."""

    def __init__(
        self,
        cache: KVCache,
        layers: Sequence[LayerSpec],
        segments: Sequence[Segment],
        queries: Tensor,
        outputs: Tensor,
    ) -> None:
        """`queries`, `outputs`: [rows, kv_heads, group, head_dim].

        Query heads that share a KV head become the rows of one head.
        """
        device = cache.pool.device
        wholes = [Span.of(each.blocks, each.context + each.length, device, cache.block_size) for each in segments]
        own = [whole.part(each.context, whole.length) for each, whole in zip(segments, wholes, strict=True)]
        rows = [(queries[row : row + 1], outputs[row : row + 1]) for row in range(queries.shape[0])]

        def calls(window: int | None) -> list[tuple[Tensor, Tensor, _Reader]]:
            readers = (
                _Reader(cache, whole.part(_first(length, window), length))
                for each, whole in zip(segments, wholes, strict=True)
                for length in range(each.context + 1, whole.length + 1)
            )
            return [(query, output, reader) for (query, output), reader in zip(rows, readers, strict=True)]

        self._layers = layers
        self._calls = _by_layer(layers, calls)
        self._write = _Writer(cache, own[0] if len(own) == 1 else _together(own, device))

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim], the rows' own, written to the cache before attending."""
        self._write(layer, keys_values)
        scale = self._layers[layer].scale
        for query, output, reader in self._calls[layer]:
            keys, values = reader(layer)
            output.copy_(scaled_dot_product_attention(query, keys, values, scale=scale))


def _first(length: int, window: int | None) -> int:
    """The first of `length` positions that the last one attends to."""
    return 0 if window is None else max(0, length - window)


def _together(spans: Sequence[Span], device: torch.device) -> Span:
    """Spans of several sequences, one after the other."""
    slots = torch.cat([span.all_slots(device) for span in spans])
    return Span(slots.shape[0], 0, slots)


class PrefillAttention:
    """One query tile of one sequence against all positions that a row of it attends to."""

    def __init__(
        self,
        cache: KVCache,
        layers: Sequence[LayerSpec],
        masks: CausalMasks,
        span: Span,
        start: int,
        length: int,
        queries: Tensor,
        outputs: Tensor,
        ahead: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`span`: all positions of the segment, of which `length` from `start` on are the tile's own.

        `queries`, `outputs`: [rows, kv_heads, group, head_dim], rows ≥ length. `ahead`: the segment's spans that have
        rows of the tile.
        """
        end = max([start + length, *(end for _, end in ahead)])

        def attended(window: int | None) -> tuple[_Reader, Tensor]:
            first = _first(start + 1, window)
            mask = masks[window].tile(length, start - first)
            if ahead:
                mask = masks[window].looking_ahead(mask, start, end, ahead)
            return _Reader(cache, span.part(first, end)), mask

        self._length = length
        self._layers = layers
        self._attended = _by_layer(layers, attended)
        self._query = queries[:length].transpose(0, 1)  # [kv_heads, length, group, head_dim]
        self._output = outputs[:length].transpose(0, 1)
        self._write = _Writer(cache, span.part(start, start + length))

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim]; the first `length` rows count."""
        self.write(layer, keys_values)
        self.attend(layer)

    def write(self, layer: int, keys_values: Tensor) -> None:
        self._write(layer, keys_values[: self._length])

    def attend(self, layer: int) -> None:
        """When all is written that a row attends to."""
        read, mask = self._attended[layer]
        keys, values = read(layer)
        query = self._query.flatten(1, 2).unsqueeze(0)  # [1, kv_heads, length · group, head_dim]
        out = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=self._layers[layer].scale)
        self._output.copy_(out.view(self._output.shape))


class _Waiting:
    """Of a tile: writes its own rows, and attends for those tiles that have waited for them."""

    def __init__(self, own: PrefillAttention, waiting: Sequence[PrefillAttention]) -> None:
        self._own = own
        self._waiting = waiting

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        self._own.write(layer, keys_values)
        for each in self._waiting:
            each.attend(layer)


def attending_together(tiles: Sequence[PrefillAttention]) -> Sequence[Callable[[int, Tensor], None]]:
    """Of consecutive tiles that attend to each other's rows: all attend when the last one has written its own."""
    if len(tiles) == 1:
        return tiles
    return [_Waiting(tile, tiles if tile is tiles[-1] else ()) for tile in tiles]
