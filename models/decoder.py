"""One decoder-only transformer, switched by a frozen config.

It knows rows, positions and block tables; not what a request is, nor who owns a block.

Rows go through the layers in tiles. A decode forward is one tile of all its rows, through kernels whose result for a row
doesn't depend on the number of rows. A prefill forward has one tile for each `TILE` positions of each sequence, padded to
a multiple of 16 rows, so that every kernel sees shapes that follow from the sequence alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import silu

from models.attention import TILE, CausalMask, DecodeAttention, KVCache, PrefillAttention, Span
from models.batch import ForwardBatch
from models.config import DecoderConfig
from models.linear import Linear
from models.rope import RopeTable

__all__ = ["Decoder", "DecoderConfig", "DecoderWeights", "LayerWeights"]

_PADDING = 16  # rows of a prefill tile are a multiple of it: few shapes to prepare kernels for

Attend = Callable[[int, Tensor], None]
Kernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 · kv_heads) · head_dim
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    output: Linear  # heads · head_dim -> hidden
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 · intermediate
    down: Linear  # intermediate -> hidden


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Callable[[Tensor], Tensor]  # [rows] int64 -> [rows, hidden]
    layers: Sequence[LayerWeights]
    norm: Tensor  # [hidden]
    head: Linear  # hidden -> vocab


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's weights, its linears bound to the kernels of one kind of forward."""

    attention_norm: Tensor  # [2 · hidden]: for the residual and its negative
    qkv: Kernel
    qk_norm: Tensor | None
    output: Kernel
    mlp_norm: Tensor  # [2 · hidden]
    gate_up: Kernel
    down: Kernel

    @staticmethod
    def bind(layer: LayerWeights, kind: Literal["decode", "prefill"]) -> "_Layer":
        return _Layer(
            attention_norm=layer.attention_norm.repeat(2),
            qkv=getattr(layer.qkv, kind),
            qk_norm=layer.qk_norm,
            output=getattr(layer.output, kind),
            mlp_norm=layer.mlp_norm.repeat(2),
            gate_up=getattr(layer.gate_up, kind),
            down=getattr(layer.down, kind),
        )


class Tile:
    """Buffers for rows on their way through the layers, and views of them: a view costs as much as a small operation.

    The residual stream is kept beside its negative: the pair's mean is zero, so LayerNorm over it *is* RMSNorm over one half,
    in one kernel (`rms_norm` on a CPU is six).
    """

    def __init__(self, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        total, turned = heads + 2 * kv_heads, heads + kv_heads
        zeros = partial(torch.zeros, dtype=dtype, device=device)
        self.rows = rows
        self.residual = zeros(rows, 2, config.hidden_size)
        self.pair = self.residual.view(rows, 2 * config.hidden_size)
        # Each head twice over: from the middle of the first copy on, its halves are exchanged.
        self.twice = zeros(rows, total, 2, head_dim)
        half = head_dim // 2
        self.exchanged = self.twice.view(rows, total, 2 * head_dim)[:, :, half : half + head_dim]
        self.single_shape = (rows, total, 1, head_dim)
        # Values are turned by the angle zero, so that one operation serves q, k and v.
        cos, self.sin = zeros(rows, total, head_dim).fill_(1), zeros(rows, total, head_dim)
        self.cos = cos.view(rows, total * head_dim)
        self.turning = (cos[:, :turned], self.sin[:, :turned])
        self.heads = zeros(rows, total, head_dim)
        self.qkv = self.heads.view(rows, total * head_dim)
        self.query = self.heads[:, :heads].view(rows, kv_heads, config.group, head_dim)
        self.keys_values = self.qkv[:, heads * head_dim :]
        self.attended = zeros(rows, heads * head_dim)
        self.attention_out = self.attended.view(rows, kv_heads, config.group, head_dim)
        self.hidden = zeros(rows, config.intermediate_size)


class Decoder:
    """`forward` is not reentrant: one thread owns a decoder."""

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.tile = TILE  # chunk borders and prefix reuse fall on multiples of it
        self.device = device
        self.dtype = dtype  # of activations and of the KV cache
        linears = [each for layer in weights.layers for each in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        self.weight_bytes = sum(linear.weight_bytes for linear in (*linears, weights.head))
        self._weights = weights
        self._rope = RopeTable(config, dtype, device)
        self._mask = CausalMask(dtype, device)
        self._sign = torch.tensor([[1.0], [-1.0]], dtype=dtype, device=device)
        self._pair_shape = (2 * config.hidden_size,)
        self._row_shape, self._row_stride = (1, config.hidden_size), (config.hidden_size, 1)
        self._norm = weights.norm.repeat(2)
        self._decode_layers = [_Layer.bind(layer, "decode") for layer in weights.layers]
        self._prefill_layers = [_Layer.bind(layer, "prefill") for layer in weights.layers]
        self._decode_tiles: dict[int, Tile] = {}

    def new_cache(self, num_blocks: int) -> KVCache:
        """An empty pool of `num_blocks` blocks. The caller hands out its blocks."""
        config = self.config
        return KVCache(
            config.num_layers, num_blocks, config.num_kv_heads, config.head_dim, self.dtype, self.device
        )

    def details(self) -> dict[str, str]:
        """For people: what was loaded and how it runs."""
        first = self._weights.layers[0]
        return {
            "architecture": self.config.architecture,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": str(first.gate_up),
            "head": str(self._weights.head),
            "weight_bytes": str(self.weight_bytes),
            "attention": f"paged, tiles of {TILE} in prefill, a call a position in decode",
        }

    def forward(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """[k, vocab] float32: the logits of `batch.logit_rows`, of all rows where that is None."""
        with torch.inference_mode():
            longest = max(segment.context + segment.length for segment in batch.segments)
            self._rope.reserve(longest)
            embedded = self._weights.embedding(batch.ids)
            for first, embeds in batch.embeds:
                embedded[first : first + embeds.shape[0]] = embeds
            hidden = (self._decode if batch.kind == "decode" else self._prefill)(batch, embedded, cache)
            if batch.logit_rows is not None:
                hidden = hidden.index_select(0, batch.logit_rows)
            return self._weights.head.decode(self._normed(hidden.flatten(1), self._norm)).float()

    def _decode(self, batch: ForwardBatch, embedded: Tensor, cache: KVCache) -> Tensor:
        """-> [rows, 2, hidden]"""
        tile = self._decode_tile(embedded.shape[0])
        self._enter(tile, embedded, batch.positions)
        attend = DecodeAttention(cache, batch.segments, tile.query, tile.attention_out)
        for index, layer in enumerate(self._decode_layers):
            self._layer(index, layer, tile, attend)
        return tile.residual

    def _prefill(self, batch: ForwardBatch, embedded: Tensor, cache: KVCache) -> Tensor:
        """-> [rows, 2, hidden]. Tiles go one after the other through each layer: its weights stay in the cache meanwhile."""
        tiles: list[tuple[Tile, PrefillAttention, int]] = []
        row = 0
        for segment in batch.segments:
            whole = Span.of(segment.blocks, segment.context + segment.length, self.device)
            for start in range(segment.context, whole.length, TILE):
                length = min(TILE, whole.length - start)
                tile = Tile(self.config, -(-length // _PADDING) * _PADDING, self.dtype, self.device)
                self._enter(tile, embedded[row : row + length], batch.positions[row : row + length])
                mask = self._mask.tile(length, start)
                span = whole.part(0, start + length)
                tiles.append((tile, PrefillAttention(cache, span, length, tile.query, tile.attention_out, mask), length))
                row += length
        for index, layer in enumerate(self._prefill_layers):
            for tile, attend, _ in tiles:
                self._layer(index, layer, tile, attend)
        return torch.cat([tile.residual[:length] for tile, _, length in tiles])

    def _decode_tile(self, rows: int) -> Tile:
        if rows not in self._decode_tiles:
            self._decode_tiles[rows] = Tile(self.config, rows, self.dtype, self.device)
        return self._decode_tiles[rows]

    def _enter(self, tile: Tile, embedded: Tensor, positions: Tensor) -> None:
        """Put embeddings and rope angles of up to `tile.rows` rows into a tile."""
        rows = embedded.shape[0]
        torch.mul(embedded.unsqueeze(1), self._sign, out=tile.residual[:rows])
        angles = self._rope.rows(positions)
        tile.turning[0][:rows] = angles[:, :1]
        tile.turning[1][:rows] = angles[:, 1:]

    def _normed(self, pair: Tensor, weight: Tensor) -> Tensor:
        """[rows, 2 · hidden] -> [rows, hidden]: RMSNorm (https://arxiv.org/abs/1910.07467)."""
        normed = torch.layer_norm(pair, self._pair_shape, weight, None, self.config.rms_norm_eps)
        if pair.shape[0] == 1:
            return normed.as_strided(self._row_shape, self._row_stride)
        return normed[:, : self.config.hidden_size].contiguous()

    def _layer(self, index: int, layer: _Layer, tile: Tile, attend: Attend) -> None:
        qkv = layer.qkv(self._normed(tile.pair, layer.attention_norm))
        if layer.qk_norm is not None:
            turned = qkv.view(tile.heads.shape)[:, : layer.qk_norm.shape[0]]
            turned.copy_(torch.rms_norm(turned, turned.shape[-1:], None, self.config.rms_norm_eps).mul_(layer.qk_norm))
        tile.twice.copy_(qkv.view(tile.single_shape))
        torch.mul(qkv, tile.cos, out=tile.qkv)
        tile.heads.addcmul_(tile.exchanged, tile.sin)
        attend(index, tile.keys_values)
        self._add(tile, layer.output(tile.attended))
        gate, up = layer.gate_up(self._normed(tile.pair, layer.mlp_norm)).chunk(2, 1)
        torch.mul(silu(gate, inplace=True), up, out=tile.hidden)
        self._add(tile, layer.down(tile.hidden))

    def _add(self, tile: Tile, branch: Tensor) -> None:
        """The residual sum, of both signs. branch: [rows, hidden]"""
        tile.residual.addcmul_(self._sign, branch if tile.rows == 1 else branch.unsqueeze(1))
