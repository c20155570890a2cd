"""Decode forwards through the native library."""

from array import array
from ctypes import POINTER, cast

import torch
from torch import Tensor

from models.attention import BLOCK_SIZE, KVCache
from models.batch import ForwardBatch
from models.config import DecoderConfig
from models.layers import LayerSpec
from models.linear import Linear
from models.native.library import BatchStruct, DecoderStruct, Engine, LayerStruct, LinearStruct, ShapeStruct
from models.native.linear import NativeLinear
from models.rope import RopeTable
from models.weights import DecoderWeights, LayerWeights

_ALL = 1 << 30  # as a window: all positions


def knows(config: DecoderConfig) -> bool:
    """Whether the library has code for all parts of such a model, whatever its shape."""
    scaled = any(layer.scale is not None for layer in config.layers)
    return config.activation == "silu" and not config.branch_norms and not scaled


class NativeForward:
    """From embedded rows to logits in one call; all but the KV cache, which is bfloat16, in float32.

    A head that is not native (a checkpoint's dense one) follows in torch.
    """

    def __init__(self, engine: Engine, config: DecoderConfig, weights: DecoderWeights) -> None:
        self._engine = engine
        self._vocab_size = config.vocab_size
        limit, cpu = config.max_position_embeddings, torch.device("cpu")
        self._ropes = [RopeTable(rope, config.head_dim, limit, torch.float32, cpu) for rope in config.ropes]
        # What the structures point to.
        self._kept: list[object] = [weights]
        specs = ((spec, config.ropes.index(spec.rope)) for spec in config.layers)
        self._layers = (LayerStruct * config.num_layers)(
            *(self._layer(layer, *spec) for layer, spec in zip(weights.layers, specs, strict=True))
        )
        shape = ShapeStruct(
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.num_layers,
            config.rms_norm_eps,
        )
        layers = cast(self._layers, POINTER(LayerStruct))
        native_head = isinstance(weights.head, NativeLinear)
        self._head = None if native_head else weights.head.decode
        self._norm, self._eps = weights.norm.float(), config.rms_norm_eps
        head = _struct(weights.head) if native_head else LinearStruct()
        self._decoder = DecoderStruct(shape, layers, self._vector(weights.norm), head)

    @classmethod
    def bind(cls, engine: Engine, config: DecoderConfig, weights: DecoderWeights) -> "NativeForward | None":
        """None where the model has a shape, a part or a weight that the library has no code for."""
        linears: list[Linear] = []
        for layer in weights.layers:
            linears += [layer.qkv, layer.output, layer.gate_up, layer.down]
        limits = engine.limits
        fits = (
            knows(config)
            and config.head_dim % (2 * limits.lanes) == 0
            and config.head_dim <= limits.head_dim
            and config.group <= limits.queries
            and config.intermediate_size % limits.lanes == 0
            and limits.block == BLOCK_SIZE
            and all(isinstance(each, NativeLinear) for each in linears)
        )
        return cls(engine, config, weights) if fits else None

    def _layer(self, layer: LayerWeights, spec: LayerSpec, rope: int) -> LayerStruct:
        return LayerStruct(
            self._vector(layer.attention_norm),
            _struct(layer.qkv),
            None if layer.qk_norm is None else self._vector(layer.qk_norm),
            rope,
            _ALL if spec.window is None else min(spec.window, _ALL),
            _struct(layer.output),
            self._vector(layer.mlp_norm),
            _struct(layer.gate_up),
            _struct(layer.down),
        )

    def _vector(self, values: Tensor) -> int:
        kept = values.float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def __call__(self, batch: ForwardBatch, embedded: Tensor, cache: KVCache) -> Tensor:
        """embedded: [rows, hidden] -> [k, vocab] float32: the logits of `batch.logit_rows`; None: of all rows."""
        rows = embedded.shape[0]
        lengths, starts, tables = array("i"), array("i"), array("i")
        for segment in batch.segments:
            end = segment.context + segment.length
            starts.extend([len(tables)] * segment.length)
            lengths.extend(range(segment.context + 1, end + 1))
            tables.extend(segment.blocks[: -(-end // BLOCK_SIZE)])
        for table in self._ropes:
            table.reserve(max(lengths))
        hidden = embedded.float()
        rope = torch.stack([table.packed(batch.positions) for table in self._ropes])  # [ropes, rows, 1, …]
        wanted = range(rows) if batch.logit_rows is None else batch.logit_rows.tolist()
        logits = torch.empty(0 if self._head else len(wanted), self._vocab_size)
        done = 0
        most = self._engine.limits.rows
        for first in range(0, rows, most):
            last = min(first + most, rows)
            here = array("i", [] if self._head else [row - first for row in wanted if first <= row < last])
            self._engine.forward(
                self._decoder,
                BatchStruct(
                    last - first,
                    hidden[first:].data_ptr(),
                    rope[:, first:].data_ptr(),
                    rope.stride(0),
                    _address(lengths, first),
                    _address(starts, first),
                    _address(tables),
                    cache.pool.data_ptr(),
                    cache.pool.shape[1],
                    _address(here),
                    len(here),
                    logits[done:].data_ptr(),
                ),
            )
            done += len(here)
        if self._head is None:
            return logits
        last_hidden = hidden if batch.logit_rows is None else hidden.index_select(0, batch.logit_rows)
        normed = torch.rms_norm(last_hidden, last_hidden.shape[-1:], self._norm, self._eps)
        return self._head(normed.to(embedded.dtype)).float()


def _struct(linear: Linear) -> LinearStruct:
    assert isinstance(linear, NativeLinear)
    return linear.struct


def _address(values: "array[int]", first: int = 0) -> int:
    return values.buffer_info()[0] + first * values.itemsize
