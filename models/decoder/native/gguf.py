"""A GGUF file, straight into the native library's layout.

For files whose matrices need no more than that their bytes are put in another order (Q4_0, Q4_1; Q8_0 gets one scale a
row). Torch's loader (`models.decoder.assembly`) takes the others, and is what this one is tested against.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from models.decoder.config import DecoderConfig
from models.decoder.families.layout import Part, TensorKey
from models.decoder.native.decoder import Embedding, NativeDecoder
from models.decoder.native.forward import NativeForward, NativeLayer, has_code_for
from models.decoder.native.library import Engine, LimitsStruct
from models.decoder.native.packing import Bytes, Floats, PackedLinear, pack_q4, pack_q8
from models.decoder.tensors import component_order, not_finite, one_row, row_order, tensor_shapes
from models.files.gguf import F32, Q4_0, Q4_1, Q8_0, BlockType, GGUFFile
from models.files.gguf_blocks import GROUP, expanded, scales

T = TypeVar("T", bound=np.generic)

_READ = (Q8_0, Q4_0, Q4_1)  # types of matrices


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
    forward = NativeForward(engine, config, layers, reader.norm(), head)
    return NativeDecoder(config, forward, reader.embedding(), details)


class _Reader:
    """Of a file whose tensors have the config's shapes."""

    def __init__(self, file: GGUFFile, config: DecoderConfig, limits: LimitsStruct) -> None:
        self._file = file
        self._config = config
        self._limits = limits
        self._shapes = dict(tensor_shapes(config))
        self._head = TensorKey(Part.EMBEDDING if config.tie_word_embeddings else Part.HEAD)

    def reads_all(self) -> bool:
        """Whether the config asks for nothing else, and all of it is in a type that is read."""
        plain = self._config.layout.norm_offset == 0 and self._config.embedding_scale == 1
        return plain and all(map(self._reads, self._shapes)) and self._alike()

    def _reads(self, key: TensorKey) -> bool:
        kind = self._kind(key)
        return kind is F32 if len(self._shapes[key]) == 1 else kind in _READ

    def _alike(self) -> bool:
        """Whether weights that become one linear are of one type."""
        layout = self._config.layout
        return all(
            len({self._kind(TensorKey(part, layer)) for part in parts}) == 1
            for parts in (layout.qkv, layout.gate_up)
            for layer in range(self._config.num_layers)
        )

    def _name(self, key: TensorKey) -> str:
        return self._config.layout.name(key)

    def _kind(self, key: TensorKey) -> BlockType:
        return self._file.block_type(self._name(key))

    # --- parts --------------------------------------------------------------------------------------------------------

    def layer(self, layer: int) -> NativeLayer:
        layout = self._config.layout
        return NativeLayer(
            attention_norm=self._vector(Part.ATTENTION_NORM, layer),
            qkv=self._linear(layer, layout.qkv),
            qk_norm=self._qk_norm(layer) if self._config.qk_norm else None,
            output=self._linear(layer, (Part.OUTPUT,)),
            mlp_norm=self._vector(Part.MLP_NORM, layer),
            gate_up=self._linear(layer, layout.gate_up),
            down=self._linear(layer, (Part.DOWN,)),
        )

    def norm(self) -> Floats:
        return self._vector(Part.NORM)

    def head(self) -> PackedLinear:
        return self._packed([self._head], self._rows(self._head), None)

    def embedding(self) -> Embedding:
        """Rows are expanded from the file's own when they are looked up; copied, as a file may be changed."""
        key = TensorKey(Part.EMBEDDING)
        rows, kind = self._rows(key).copy(), self._kind(key)
        found = () if key == self._head else scales(rows, kind)  # the head's are looked at as they are packed
        if not all(each is None or np.isfinite(each).all() for each in found):
            raise not_finite(self._name(key))
        return lambda ids: expanded(rows[ids], kind)

    def _vector(self, part: Part, layer: int | None = None, *, bias: bool = False) -> Floats:
        name = self._name(TensorKey(part, layer, bias))
        values = self._file.blocks(name).copy().view(np.float32).reshape(-1)
        if not np.isfinite(values).all():
            raise not_finite(name)
        return values

    def _rows(self, key: TensorKey) -> Bytes:
        """[outputs, bytes of a row], as they are stored. Raises ModelLoadError as `weight_checks` does."""
        rows = self._file.blocks(self._name(key))
        if len(rows) > 1 and np.array_equal(rows[1], rows[0]) and (rows == rows[0]).all():
            first = expanded(rows[:1], self._kind(key))
            if first.any() or key.part in (Part.EMBEDDING, Part.HEAD):
                raise one_row(self._name(key))
        return rows

    def _qk_norm(self, layer: int) -> Floats:
        """[heads + kv_heads, head_dim]"""
        of_query, of_key = self._vector(Part.Q_NORM, layer), self._vector(Part.K_NORM, layer)
        order = component_order(self._config, layer)
        if order is not None:
            of_query, of_key = of_query[order], of_key[order]
        return np.stack([of_query] * self._config.num_heads + [of_key] * self._config.num_kv_heads)

    def _linear(self, layer: int, parts: Sequence[Part]) -> PackedLinear:
        weights = [TensorKey(part, layer) for part in parts]
        rows = np.concatenate([self._ordered(key, self._rows(key)) for key in weights])
        biases = [TensorKey(part, layer, bias=True) for part in parts]
        bias = None
        if biases[0] in self._shapes:
            bias = np.concatenate([self._ordered(key, self._vector(key.part, layer, bias=True)) for key in biases])
        return self._packed(weights, rows, bias)

    def _ordered(self, key: TensorKey, rows: NDArray[T]) -> NDArray[T]:
        order = row_order(self._config, key)
        return rows if order is None else rows[order]

    # --- packing ------------------------------------------------------------------------------------------------------

    def _packed(self, keys: Sequence[TensorKey], rows: Bytes, bias: Floats | None) -> PackedLinear:
        """`rows`: [outputs, bytes of a row], those of all `keys`."""
        kind, (_, inputs) = self._kind(keys[0]), self._shapes[keys[0]]
        if kind is Q8_0:
            packed = pack_q8(self._limits, rows, inputs, bias)
        else:
            packed = pack_q4(self._limits, rows, inputs, bias, minima=kind is Q4_1)
        if packed is None:
            raise not_finite(" or ".join(map(self._name, keys)))
        return packed
