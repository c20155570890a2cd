"""A GGUF file, straight into the native library's layout.

For files whose matrices need no more than that their bytes are put in another order (Q4_0, Q4_1; Q8_0 gets one scale a
row). Torch's loader (`models.decoder.assembly`) takes the others, and is what this one is tested against.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from models.decoder.config import DecoderConfig
from models.decoder.gguf_names import gguf_name, row_order
from models.decoder.native.decoder import Embedding, NativeDecoder
from models.decoder.native.forward import NativeForward, NativeLayer, has_code_for
from models.decoder.native.library import Engine, LimitsStruct
from models.decoder.native.packing import Bytes, Floats, PackedLinear, pack_q4, pack_q8
from models.decoder.tensors import EMBEDDING, HEAD, NORM, not_finite, one_row, tensor_shapes
from models.files.gguf import F32, Q4_0, Q4_1, Q8_0, BlockType, GGUFFile

T = TypeVar("T", bound=np.generic)

GROUP = 32  # values of a row that share a scale in all of the types

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_OUTPUT, _GATE_UP, _DOWN = ("self_attn.o_proj",), ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",)
_SHARED = (_QKV, _GATE_UP)  # weights that become one linear


def load_native(file: GGUFFile, config: DecoderConfig, engine: Engine, threads: int) -> NativeDecoder | None:
    """None where the file or the model has something that is not for this loader: torch's then loads it, or says why
    it can't. The file's tensors have the config's shapes. Raises ModelLoadError where they hold no weights."""
    reader = _Reader(file, config, engine.limits)
    if engine.limits.group != GROUP or not has_code_for(engine, config) or not reader.reads_all():
        return None
    with ThreadPoolExecutor(threads) as pool:  # copies of arrays let go of the interpreter lock
        of_head = pool.submit(reader.head)
        layers = list(pool.map(reader.layer, range(config.num_layers)))
    head = of_head.result()
    details = {
        "architecture": config.architecture,
        "device": "cpu",
        "dtype": "float32, KV cache in bfloat16",
        "weights": f"int{layers[0].gate_up.bits} (native)",
        "head": f"int{head.bits} (native)",
        "weight_bytes": str(head.nbytes + sum(layer.nbytes for layer in layers)),
        "attention": "paged, native in prefill, native in decode",
    }
    forward = NativeForward(engine, config, layers, reader.vector(f"{NORM}.weight"), head)
    return NativeDecoder(config, forward, reader.embedding(), details)


class _Reader:
    """Of a file whose tensors have the config's shapes."""

    def __init__(self, file: GGUFFile, config: DecoderConfig, limits: LimitsStruct) -> None:
        self._file = file
        self._config = config
        self._limits = limits
        self._shapes = dict(tensor_shapes(config))
        self._head = f"{EMBEDDING if config.tie_word_embeddings else HEAD}.weight"

    def reads_all(self) -> bool:
        """Whether the config asks for nothing else, and all of it is in a type that is read."""
        config = self._config
        plain = config.norm_offset == 0 and config.embedding_scale == 1 and not config.fused_weights
        whole_heads = all(2 * len(rope.inv_freq) in (0, config.head_dim) for rope in config.ropes)
        return plain and whole_heads and all(map(self._reads, self._shapes)) and self._alike()

    def _reads(self, name: str) -> bool:
        kind = self._kind(name)
        return kind is F32 if len(self._shapes[name]) == 1 else kind in _EXPANDED

    def _alike(self) -> bool:
        """Whether weights that become one linear are of one type."""
        return all(
            len({self._kind(f"model.layers.{index}.{name}.weight") for name in names}) == 1
            for names in _SHARED
            for index in range(self._config.num_layers)
        )

    def _kind(self, name: str) -> BlockType:
        return self._file.block_type(gguf_name(name))

    # --- parts --------------------------------------------------------------------------------------------------------

    def layer(self, index: int) -> NativeLayer:
        prefix = f"model.layers.{index}"
        return NativeLayer(
            attention_norm=self.vector(f"{prefix}.input_layernorm.weight"),
            qkv=self._linear(prefix, _QKV),
            qk_norm=self._qk_norm(prefix) if self._config.qk_norm else None,
            output=self._linear(prefix, _OUTPUT),
            mlp_norm=self.vector(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self._linear(prefix, _GATE_UP),
            down=self._linear(prefix, _DOWN),
        )

    def head(self) -> PackedLinear:
        return self._packed([self._head], self._rows(self._head), None)

    def embedding(self) -> Embedding:
        """Rows are expanded from the file's own when they are looked up; copied, as a file may be changed."""
        name = f"{EMBEDDING}.weight"
        blocks, kind = self._rows(name).copy(), self._kind(name)
        if name != self._head:  # the head's are looked at as they are packed
            halves = blocks.reshape(-1, kind.size)[:, : 4 if kind is Q4_1 else 2].copy().view(np.float16)
            if not np.isfinite(halves).all():
                raise not_finite(name)
        expand = _EXPANDED[kind]
        return lambda ids: expand(blocks[ids])

    def vector(self, name: str) -> Floats:
        values = self._file.blocks(gguf_name(name)).copy().view(np.float32).reshape(-1)
        if not np.isfinite(values).all():
            raise not_finite(name)
        return values

    def _rows(self, name: str) -> Bytes:
        """[outputs, bytes of a row], as they are stored. Raises ModelLoadError as `weight_checks` does."""
        rows = self._file.blocks(gguf_name(name))
        if len(rows) > 1 and np.array_equal(rows[1], rows[0]) and (rows == rows[0]).all():
            first = _EXPANDED[self._kind(name)](rows[:1])
            if first.any() or name in (self._head, f"{EMBEDDING}.weight"):
                raise one_row(name)
        return rows

    def _qk_norm(self, prefix: str) -> Floats:
        """[heads + kv_heads, head_dim]"""
        of_query, of_key = (self.vector(f"{prefix}.self_attn.{name}_norm.weight") for name in ("q", "k"))
        return np.stack([of_query] * self._config.num_heads + [of_key] * self._config.num_kv_heads)

    def _linear(self, prefix: str, names: Sequence[str]) -> PackedLinear:
        weights, biases = ([f"{prefix}.{name}.{each}" for name in names] for each in ("weight", "bias"))
        rows = np.concatenate([self._ordered(name, self._rows(name)) for name in weights])
        bias = None
        if biases[0] in self._shapes:
            bias = np.concatenate([self._ordered(name, self.vector(name)) for name in biases])
        return self._packed(weights, rows, bias)

    def _ordered(self, name: str, rows: NDArray[T]) -> NDArray[T]:
        order = row_order(self._config, name)
        return rows if order is None else rows[order]

    # --- packing ------------------------------------------------------------------------------------------------------

    def _packed(self, names: Sequence[str], rows: Bytes, bias: Floats | None) -> PackedLinear:
        """`rows`: [outputs, bytes of a row], those of all `names`."""
        kind, (_, inputs) = self._kind(names[0]), self._shapes[names[0]]
        if kind is Q8_0:
            packed = pack_q8(self._limits, rows, inputs, bias)
        else:
            packed = pack_q4(self._limits, rows, inputs, bias, minima=kind is Q4_1)
        if packed is None:
            raise not_finite(" or ".join(names))
        return packed


def _halves(raw: Bytes) -> NDArray[np.float16]:
    """[…, 2] bytes -> […]"""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0]


def _expand_q8(rows: Bytes) -> Floats:
    raw = rows.reshape(len(rows), -1, Q8_0.size)
    return (raw[..., 2:].view(np.int8) * _halves(raw[..., :2]).astype(np.float32)[..., None]).reshape(len(rows), -1)


def _expand_q4(rows: Bytes, kind: BlockType) -> Floats:
    raw = rows.reshape(len(rows), -1, kind.size)
    scale = _halves(raw[..., :2]).astype(np.float32)
    minimum = _halves(raw[..., 2:4]).astype(np.float32) if kind is Q4_1 else -8 * scale
    pairs = raw[..., -GROUP // 2 :]
    codes = np.concatenate((pairs & 15, pairs >> 4), -1)
    return (codes * scale[..., None] + minimum[..., None]).reshape(len(rows), -1)


# Types of matrices that are read -> [n, bytes of a row] to [n, values of a row].
_EXPANDED: Mapping[BlockType, Callable[[Bytes], Floats]] = {
    Q8_0: _expand_q8,
    Q4_0: partial(_expand_q4, kind=Q4_0),
    Q4_1: partial(_expand_q4, kind=Q4_1),
}
