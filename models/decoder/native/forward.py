"""Decode forwards through the native library."""

from array import array
from collections.abc import Sequence
from ctypes import POINTER, cast
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.decoder.batch import BLOCK_SIZE, ForwardBatch
from models.decoder.config import DecoderConfig
from models.decoder.frequencies import FIRST_POSITIONS, Rope, column_axes, grown, rotations
from models.decoder.layers import LayerSpec
from models.decoder.native.library import BatchStruct, DecoderStruct, Engine, LayerStruct, LinearStruct, ShapeStruct
from models.decoder.native.packing import Floats, PackedLinear

_ALL = 1 << 30  # as a window: all positions


@dataclass(frozen=True, slots=True)
class NativeLayer:
    attention_norm: Floats  # [hidden]
    qkv: PackedLinear  # hidden -> (heads + 2 · kv_heads) · head_dim
    qk_norm: Floats | None  # [heads + kv_heads, head_dim]
    output: PackedLinear  # heads · head_dim -> hidden
    mlp_norm: Floats  # [hidden]
    gate_up: PackedLinear  # hidden -> 2 · intermediate
    down: PackedLinear  # intermediate -> hidden

    @property
    def nbytes(self) -> int:
        """Of its linears."""
        return sum(linear.nbytes for linear in (self.qkv, self.output, self.gate_up, self.down))


def knows(config: DecoderConfig) -> bool:
    """Whether the library has code for all parts of such a model, whatever its shape."""
    scaled = any(layer.scale is not None for layer in config.layers)
    return config.activation == "silu" and not config.branch_norms and not scaled


def has_code_for(engine: Engine, config: DecoderConfig) -> bool:
    """Whether the library has code for all parts of such a model, of their shape."""
    limits = engine.limits
    return (
        knows(config)
        and config.head_dim % (2 * limits.lanes) == 0
        and config.head_dim <= limits.head_dim
        and config.group <= limits.queries
        and config.intermediate_size % limits.lanes == 0
        and limits.block == BLOCK_SIZE
    )


class NativeForward:
    """From embedded rows to logits in one call; all but the KV cache, which is bfloat16, in float32."""

    def __init__(
        self,
        engine: Engine,
        config: DecoderConfig,
        layers: Sequence[NativeLayer],
        norm: Floats,
        head: PackedLinear | None,
    ) -> None:
        """Only where the library has code for the model. `norm`: [hidden], before the head. Without a head, residuals
        are all that is computed."""
        self._engine = engine
        self._vocab_size = config.vocab_size
        self.has_head = head is not None
        self._ropes = [_Rotations(rope, config) for rope in config.ropes]
        self._kept: list[object] = [layers, head]  # what the structures point to
        specs = zip(layers, config.layers, strict=True)
        structs = (self._layer(layer, spec, config.ropes.index(spec.rope)) for layer, spec in specs)
        self._layers = (LayerStruct * config.num_layers)(*structs)
        shape = ShapeStruct(
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.num_layers,
            config.rms_norm_eps,
        )
        of_head = head.struct if head else LinearStruct()
        self._decoder = DecoderStruct(shape, cast(self._layers, POINTER(LayerStruct)), self._vector(norm), of_head)

    def _layer(self, layer: NativeLayer, spec: LayerSpec, rope: int) -> LayerStruct:
        return LayerStruct(
            self._vector(layer.attention_norm),
            layer.qkv.struct,
            None if layer.qk_norm is None else self._vector(layer.qk_norm),
            rope,
            _ALL if spec.window is None else min(spec.window, _ALL),
            layer.output.struct,
            self._vector(layer.mlp_norm),
            layer.gate_up.struct,
            layer.down.struct,
        )

    def _vector(self, values: Floats) -> int:
        kept = np.ascontiguousarray(values)
        self._kept.append(kept)
        return kept.ctypes.data

    def __call__(self, batch: ForwardBatch, hidden: Floats, pool: int, slots: int) -> Floats:
        """[k, vocab]: the logits of `batch.logit_rows`, in order; k is 0 without a head.

        hidden: [rows, hidden], the embedded rows, which become the residuals. `pool`: the address of keys and values,
        [layers, slots, 2, kv_heads, head_dim] bfloat16.
        """
        rows = len(hidden)
        lengths, starts, tables = array("i"), array("i"), array("i")
        for segment in batch.segments:
            assert not segment.spans  # of no model that `knows` takes
            end = segment.context + segment.length
            starts.extend([len(tables)] * segment.length)
            lengths.extend(range(segment.context + 1, end + 1))
            tables.extend(segment.blocks[: -(-end // BLOCK_SIZE)])
        positions = np.asarray(batch.positions)
        rope = np.stack([table.rows(positions) for table in self._ropes])  # [ropes, rows, …]
        added = _Added.of(batch.deepstack)
        wanted: Sequence[int] = range(rows) if batch.logit_rows is None else batch.logit_rows.tolist()
        if not self.has_head:
            wanted = ()
        logits = np.empty((len(wanted), self._vocab_size), np.float32)
        done = 0
        most = self._engine.limits.rows
        for first in range(0, rows, most):
            last = min(first + most, rows)
            of_chunk = added.between(first, last)
            here = array("i", [row - first for row in wanted if first <= row < last])
            self._engine.forward(
                self._decoder,
                BatchStruct(
                    last - first,
                    batch.kind == "prefill",
                    hidden[first:].ctypes.data,
                    rope[:, first:].ctypes.data,
                    rope.strides[0] // rope.itemsize,
                    _address(lengths, first),
                    _address(starts, first),
                    _address(tables),
                    pool,
                    slots,
                    _address(here),
                    len(here),
                    logits[done:].ctypes.data,
                    *of_chunk.members(),
                ),
            )
            done += len(here)
        return logits


class _Rotations:
    """Cosines and sines by position, one rope's; grows as positions are used."""

    def __init__(self, rope: Rope, config: DecoderConfig) -> None:
        self._rope = rope
        self._head_dim = config.head_dim
        self._limit = config.max_position_embeddings
        self._axes = column_axes(rope, config.head_dim)
        self._table = self._made(min(FIRST_POSITIONS, self._limit))

    def _made(self, length: int) -> Floats:
        return rotations(self._rope, self._head_dim, length).astype(np.float32)

    def rows(self, positions: NDArray[np.int64]) -> Floats:
        """[n] or [axes, n] -> [n, 3 · head_dim / 2]"""
        longest = int(positions.max()) + 1
        if longest > len(self._table):
            self._table = self._made(grown(len(self._table), longest, self._limit))
        if positions.ndim == 1:
            return self._table[positions]
        columns = np.arange(len(self._axes))
        return np.ascontiguousarray(self._table[positions[self._axes].T, columns])  # it has the index's order in memory


class _Added:
    """What is added to the residuals of some rows behind the first layers."""

    def __init__(self, rows: NDArray[np.int32], features: Floats) -> None:
        """`rows`: [n], ascending; features: [layers, n, hidden]."""
        self._rows = rows
        self._features = features

    @staticmethod
    def of(deepstack: Sequence[tuple[int, Floats]]) -> "_Added":
        """As a batch has it."""
        if not deepstack:
            return _NOTHING_ADDED
        rows = [np.arange(first, first + features.shape[1], dtype=np.int32) for first, features in deepstack]
        return _Added(np.concatenate(rows), np.concatenate([features for _, features in deepstack], axis=1))

    def between(self, first: int, last: int) -> "_Added":
        """Of these rows, counted from `first`."""
        if not len(self._rows):
            return self
        begin, end = np.searchsorted(self._rows, (first, last))
        return _Added(self._rows[begin:end] - np.int32(first), self._features[:, begin:end])

    def members(self) -> tuple[int, int, int, int, int]:
        """Of a `BatchStruct`, for as long as this lives."""
        rows, features = self._rows, self._features
        stride = features.strides[0] // features.itemsize
        return features.ctypes.data, stride, rows.ctypes.data, len(rows), len(features)


_NOTHING_ADDED = _Added(np.zeros(0, np.int32), np.zeros((0, 0, 0), np.float32))


def _address(values: "array[int]", first: int = 0) -> int:
    return values.buffer_info()[0] + first * values.itemsize
