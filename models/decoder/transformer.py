"""One decoder-only transformer, switched by a frozen config.

It knows rows, positions and block tables; not what a request is, nor who owns a block.

Rows go through the layers in tiles. A decode forward is one tile of all its rows, through kernels whose result for a
row doesn't depend on the number of rows. A prefill forward has one tile for each `TILE` positions of each sequence,
padded to a multiple of 16 rows, so that every kernel sees shapes that follow from the sequence alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from models.decoder.assembly import DecoderWeights, LayerWeights
from models.decoder.attention.batched import RowTables
from models.decoder.attention.paged import (
    TILE,
    DecodeAttention,
    KVCache,
    PrefillAttention,
    Span,
    attending_together,
    causal_masks,
)
from models.decoder.attention.tile import Tile, TilePool
from models.decoder.batch import BLOCK_SIZE, ForwardBatch
from models.decoder.config import Activation, DecoderConfig
from models.decoder.decode_path import choose_path
from models.decoder.native import library as native
from models.decoder.native.library import Engine
from models.decoder.native_binding import bind
from models.decoder.rope import RopeTable
from models.decoder.weights.linear import Kernel

_PADDING = 16  # rows of a prefill tile are a multiple of it: few shapes to prepare kernels for

_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {  # may work in place
    "silu": partial(silu, inplace=True),
    "gelu_tanh": partial(gelu, approximate="tanh"),
}

Attend = Callable[[int, Tensor], None]
Added = Sequence[tuple[int, Tensor]]  # (first row, [layers, n, hidden]): to residuals behind the first layers


class _Work(NamedTuple):
    """A tile on its way through the layers."""

    tile: Tile
    attend: Attend
    added: Added = ()


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's weights, its linears bound to the kernels of one kind of forward."""

    attention_norm: Tensor  # [2 · hidden]: for the residual and its negative
    qkv: Kernel
    qk_norm: Tensor | None
    rope: int  # index of the config's
    output: Kernel
    output_norm: Tensor | None  # [hidden]
    mlp_norm: Tensor  # [2 · hidden]
    gate_up: Kernel
    down: Kernel
    down_norm: Tensor | None  # [hidden]

    @staticmethod
    def bind(layer: LayerWeights, rope: int, kind: Literal["decode", "prefill"]) -> "_Layer":
        return _Layer(
            attention_norm=layer.attention_norm.repeat(2),
            qkv=getattr(layer.qkv, kind),
            qk_norm=layer.qk_norm,
            rope=rope,
            output=getattr(layer.output, kind),
            output_norm=layer.output_norm,
            mlp_norm=layer.mlp_norm.repeat(2),
            gate_up=getattr(layer.gate_up, kind),
            down=getattr(layer.down, kind),
            down_norm=layer.down_norm,
        )


class Decoder:
    """`forward` is not reentrant: one thread owns a decoder."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        *,
        dtype: torch.dtype,
        device: torch.device,
        engine: Engine | None = None,
    ) -> None:
        """`engine`: of the native library, which is used where it has code for the model."""
        self.config = config
        self.device = device
        self.gpu = device if device.type == "cuda" else None
        self.dtype = dtype  # of activations and of the KV cache
        linears = [each for layer in weights.layers for each in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        self.weight_bytes = sum(linear.weight_bytes for linear in (*linears, weights.head))
        self._weights = weights
        limit = config.max_position_embeddings
        self._ropes = [RopeTable(rope, config.head_dim, limit, dtype, device) for rope in config.ropes]
        self._masks = causal_masks(config.layers, config.group, dtype, device)
        self._activate = _ACTIVATIONS[config.activation]
        # As the embeddings are, so the scale is rounded: Gemma was trained so.
        self._embedding_scale = float(torch.tensor(config.embedding_scale, dtype=dtype))
        self._tiles = TilePool(config, dtype, device)
        self.decode_path = choose_path(config, dtype, device)  # None: a call a position
        self._norm = weights.norm.repeat(2)
        ropes = [config.ropes.index(spec.rope) for spec in config.layers]
        bound = list(zip(weights.layers, ropes, strict=True))
        self._decode_layers = [_Layer.bind(layer, rope, "decode") for layer, rope in bound]
        self._native = bind(engine, config, weights) if engine else None
        self._native_prefill = self._native is not None and not any(linear.has_dense_copy for linear in linears)
        # Chunk borders and prefix reuse fall on multiples of it.
        self.tile = native.TILE if self._native_prefill else TILE
        self._prefill_layers = [_Layer.bind(layer, rope, "prefill") for layer, rope in bound]

    def new_cache(self, num_blocks: int) -> KVCache:
        """An empty pool of `num_blocks` blocks. The caller hands out its blocks."""
        config = self.config
        block_size = self.decode_path.block_size if self.decode_path else BLOCK_SIZE
        heads = (config.num_kv_heads, config.head_dim)
        return KVCache(config.num_layers, num_blocks, *heads, self.dtype, self.device, block_size)

    @property
    def captures(self) -> bool:
        """Whether `decode_rows` works."""
        return self.decode_path is not None

    def new_tile(self, rows: int) -> Tile:
        """For `decode_rows`."""
        return Tile(self.config, rows, self.dtype, self.device)

    def reserve(self, positions: int) -> None:
        """Make sure that `decode_rows` can be called with positions below that. Captured forwards read the tables that
        are there at their capture: what is reserved before has to last."""
        for table in self._ropes:
            table.reserve(positions)

    def details(self) -> dict[str, str]:
        """For people: what was loaded and how it runs."""
        first = self._weights.layers[0]
        in_prefill = "native" if self._native_prefill else f"tiles of {TILE}"
        in_decode = "native" if self._native else self.decode_path.name if self.decode_path else "a call a position"
        return {
            "architecture": self.config.architecture,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": str(first.gate_up),
            "head": str(self._weights.head),
            "weight_bytes": str(self.weight_bytes),
            "attention": f"paged, {in_prefill} in prefill, {in_decode} in decode",
        }

    def forward(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """[k, vocab] float32: the logits of `batch.logit_rows`, of all rows where that is None."""
        with torch.inference_mode():
            longest = int(batch.positions.max()) + 1
            for table in self._ropes:
                table.reserve(longest)
            self._tiles.reset()
            embedded = self._embed(torch.as_tensor(batch.ids, device=self.device))
            for first, embeds in batch.embeds:
                embedded[first : first + len(embeds)] = torch.as_tensor(embeds)
            if self._native and (batch.kind == "decode" or self._native_prefill):
                residual = embedded.float()
                logits = self._native(batch, residual.numpy(), cache.pool.data_ptr(), cache.pool.shape[1])
                if self._native.has_head:
                    return torch.from_numpy(logits)
                hidden = self._wanted(batch, residual)
                hidden = torch.rms_norm(hidden, hidden.shape[-1:], self._weights.norm.float(), self.config.rms_norm_eps)
                return self._weights.head.decode(hidden.to(self.dtype)).float()
            positions = torch.as_tensor(batch.positions, device=self.device)
            run = self._decode if batch.kind == "decode" else self._prefill
            return self._weights.head.decode(self._wanted(batch, run(batch, positions, embedded, cache))).float()

    def _wanted(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [k, hidden]"""
        rows = batch.logit_rows
        return hidden if rows is None else hidden.index_select(0, torch.as_tensor(rows, device=self.device))

    def _embed(self, ids: Tensor) -> Tensor:
        """[rows] -> [rows, hidden]"""
        embedded = self._weights.embedding(ids)
        return embedded if self._embedding_scale == 1 else embedded * self._embedding_scale

    def _decode(self, batch: ForwardBatch, positions: Tensor, embedded: Tensor, cache: KVCache) -> Tensor:
        """-> [rows, hidden], normed"""
        tile = self._tiles.take(embedded.shape[0])
        tile.enter(embedded, positions, self._ropes)
        layers = self.config.layers
        attend: Attend
        if self.decode_path:
            tables = RowTables.of(batch.segments, cache.block_size, self.device)
            attend = self.decode_path.attention(cache, layers, tables, tile.query, tile.attended_heads)
        else:
            attend = DecodeAttention(cache, layers, batch.segments, tile.query, tile.attended_heads)
        self._layers(self._decode_layers, [_Work(tile, attend, self._added(batch, 0, tile.rows))])
        return tile.normed(self._norm, self.config.rms_norm_eps)

    def decode_rows(self, tile: Tile, ids: Tensor, positions: Tensor, tables: RowTables, cache: KVCache) -> Tensor:
        """[rows, vocab] float32: a decode forward that reads nothing on the host, so that it can be captured.

        ids, positions: [rows] int64, as many as `tile` has; the latter for ropes, and reserved. Only with a
        `decode_path`.
        """
        assert self.decode_path is not None
        tile.enter(self._embed(ids), positions, self._ropes)
        attend = self.decode_path.attention(cache, self.config.layers, tables, tile.query, tile.attended_heads)
        self._layers(self._decode_layers, [_Work(tile, attend)])
        return self._weights.head.decode(tile.normed(self._norm, self.config.rms_norm_eps)).float()

    def _prefill(self, batch: ForwardBatch, positions: Tensor, embedded: Tensor, cache: KVCache) -> Tensor:
        """-> [rows, hidden], normed"""
        work: list[_Work] = []
        lengths: list[int] = []
        row = 0
        for segment in batch.segments:
            whole = Span.of(segment.blocks, segment.context + segment.length, self.device, cache.block_size)
            together: list[tuple[Tile, PrefillAttention, Added]] = []  # tiles that a span goes on from
            for start in range(segment.context, whole.length, TILE):
                length = min(TILE, whole.length - start)
                end = start + length
                tile = self._tiles.take(-(-length // _PADDING) * _PADDING)
                tile.enter(embedded[row : row + length], positions[..., row : row + length], self._ropes)
                ahead = [span for span in segment.spans if span[0] < end and start < span[1]]
                views = tile.query, tile.attended_heads
                attend = PrefillAttention(cache, self.config.layers, self._masks, whole, start, length, *views, ahead)
                together.append((tile, attend, self._added(batch, row, length)))
                if all(stop <= end for _, stop in ahead):
                    tiles, attending, added = zip(*together, strict=True)
                    work.extend(map(_Work, tiles, attending_together(attending), added))
                    together = []
                lengths.append(length)
                row += length
        self._layers(self._prefill_layers, work)
        normed = [each.tile.normed(self._norm, self.config.rms_norm_eps) for each in work]
        return torch.cat([each[:length] for each, length in zip(normed, lengths, strict=True)])

    def _added(self, batch: ForwardBatch, row: int, length: int) -> Added:
        """To `length` rows of the batch from `row` on, counted from there."""
        found = []
        for first, features in batch.deepstack:
            begin, end = max(first, row), min(first + features.shape[1], row + length)
            if begin < end:
                here = torch.as_tensor(features[:, begin - first : end - first])
                found.append((begin - row, here.to(self.device, self.dtype)))
        return found

    def _layers(self, layers: Sequence[_Layer], work: Sequence[_Work]) -> None:
        """Each linear takes all tiles before the next one does: its weights stay in the processor's cache meanwhile."""
        eps = self.config.rms_norm_eps
        for index, layer in enumerate(layers):
            for tile, attend, _ in work:
                self._project(layer, tile)
                attend(index, tile.keys_values)
            for tile, _, _ in work:
                tile.add(self._normed(layer.output(tile.attended), layer.output_norm))
            for tile, _, _ in work:
                gate, up = tile.halves(layer.gate_up(tile.normed(layer.mlp_norm, eps)))
                torch.mul(self._activate(gate), up, out=tile.activated)
            for tile, _, added in work:
                tile.add(self._normed(layer.down(tile.activated), layer.down_norm))
                for first, features in added:
                    if index < len(features):
                        tile.add_rows(first, features[index])

    def _project(self, layer: _Layer, tile: Tile) -> None:
        """The residual -> q, k and v with their positions."""
        eps = self.config.rms_norm_eps
        tile.projected.copy_(layer.qkv(tile.normed(layer.attention_norm, eps)))
        if layer.qk_norm is not None:
            heads = tile.projected_heads
            heads.copy_(torch.rms_norm(heads, heads.shape[-1:], None, eps).mul_(layer.qk_norm))
        tile.rotate(layer.rope)

    def _normed(self, branch: Tensor, weight: Tensor | None) -> Tensor:
        """What a branch gives, [rows, hidden], before it is added to the residual."""
        if weight is None:
            return branch
        return torch.rms_norm(branch, weight.shape, weight, self.config.rms_norm_eps)
