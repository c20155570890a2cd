"""A GGUF file, straight into the native library's layout. Free of torch, whose import takes longer than all of this.

For files whose matrices need no more than that their bytes are put in another order (Q4_0, Q4_1; Q8_0 gets one scale a
row). Torch's loader (`models.weights`) takes the others, and is what this one is tested against.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from models.config import DecoderConfig
from models.gguf import F32, Q4_0, Q4_1, Q8_0, BlockType, GGUFFile
from models.native.decoder import Embedding, NativeDecoder
from models.native.forward import NativeForward, NativeLayer, has_code_for
from models.native.library import Engine, LimitsStruct
from models.native.packing import Bytes, Floats, PackedLinear, pack_q4, pack_q8

GROUP = 32  # values of a row that share a scale in all of the types

_QKV, _OUTPUT, _GATE_UP, _DOWN = ("attn_q", "attn_k", "attn_v"), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",)


def load_native(file: GGUFFile, config: DecoderConfig, engine: Engine, threads: int) -> NativeDecoder | None:
    """None where the file or the model has something that is not for this loader: torch's then loads it, or says why
    it can't."""
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
    forward = NativeForward(engine, config, layers, reader.vector("output_norm.weight"), head)
    return NativeDecoder(config, forward, reader.embedding(), details)


class _Reader:
    def __init__(self, file: GGUFFile, config: DecoderConfig, limits: LimitsStruct) -> None:
        self._file = file
        self._config = config
        self._limits = limits
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self._shapes = {
            "attn_q": (query, hidden),
            "attn_k": (key, hidden),
            "attn_v": (key, hidden),
            "attn_output": (hidden, query),
            "ffn_gate": (intermediate, hidden),
            "ffn_up": (intermediate, hidden),
            "ffn_down": (hidden, intermediate),
        }
        self._biased = {
            _QKV: config.qkv_bias,
            _OUTPUT: config.output_bias,
            _GATE_UP: config.mlp_bias,
            _DOWN: config.mlp_bias,
        }
        self._head = "token_embd.weight" if config.tie_word_embeddings else "output.weight"

    def reads_all(self) -> bool:
        """Whether the config asks for nothing else, and all of it is there, in a shape and a type that are read."""
        config = self._config
        plain = config.norm_offset == 0 and config.embedding_scale == 1 and not config.fused_weights
        whole_heads = all(2 * len(rope.inv_freq) in (0, config.head_dim) for rope in config.ropes)
        return plain and whole_heads and all(map(self._reads, self._expected())) and self._alike()

    def _expected(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        config, tables = self._config, (self._config.vocab_size, self._config.hidden_size)
        yield "token_embd.weight", tables
        yield self._head, tables
        yield "output_norm.weight", (config.hidden_size,)
        for index in range(config.num_layers):
            for names, biased in self._biased.items():
                for name in names:
                    yield f"blk.{index}.{name}.weight", self._shapes[name]
                    if biased:
                        yield f"blk.{index}.{name}.bias", self._shapes[name][:1]
            for name in ("attn_norm", "ffn_norm"):
                yield f"blk.{index}.{name}.weight", (config.hidden_size,)
            for name in ("attn_q_norm", "attn_k_norm") if config.qk_norm else ():
                yield f"blk.{index}.{name}.weight", (config.head_dim,)

    def _reads(self, expected: tuple[str, tuple[int, ...]]) -> bool:
        name, shape = expected
        found = self._file.tensors.get(name)
        if found is None or found.shape != shape:
            return False
        kind = self._file.block_type(name)
        return kind is F32 if len(shape) == 1 else kind in _EXPANDED

    def _alike(self) -> bool:
        """Whether weights that become one linear are of one type."""
        groups = (names for names in self._biased if len(names) > 1)
        return all(
            len({self._file.block_type(f"blk.{index}.{name}.weight") for name in names}) == 1
            for names in groups
            for index in range(self._config.num_layers)
        )

    # --- parts --------------------------------------------------------------------------------------------------------

    def layer(self, index: int) -> NativeLayer:
        prefix = f"blk.{index}"
        return NativeLayer(
            attention_norm=self.vector(f"{prefix}.attn_norm.weight"),
            qkv=self._linear(prefix, _QKV),
            qk_norm=self._qk_norm(prefix) if self._config.qk_norm else None,
            output=self._linear(prefix, _OUTPUT),
            mlp_norm=self.vector(f"{prefix}.ffn_norm.weight"),
            gate_up=self._linear(prefix, _GATE_UP),
            down=self._linear(prefix, _DOWN),
        )

    def head(self) -> PackedLinear:
        return self._packed(self._file.block_type(self._head), self._file.blocks(self._head), None)

    def embedding(self) -> Embedding:
        """Rows are expanded from the file's own when they are looked up; copied, as a file may be changed."""
        blocks = self._file.blocks("token_embd.weight").copy()
        expand = _EXPANDED[self._file.block_type("token_embd.weight")]
        return lambda ids: expand(blocks[ids])

    def vector(self, name: str) -> Floats:
        return self._file.blocks(name).copy().view(np.float32).reshape(-1)

    def _qk_norm(self, prefix: str) -> Floats:
        """[heads + kv_heads, head_dim]"""
        of_query, of_key = (self.vector(f"{prefix}.attn_{name}_norm.weight") for name in ("q", "k"))
        return np.stack([of_query] * self._config.num_heads + [of_key] * self._config.num_kv_heads)

    def _linear(self, prefix: str, names: Sequence[str]) -> PackedLinear:
        kind = self._file.block_type(f"{prefix}.{names[0]}.weight")
        rows = np.concatenate([self._ordered(name, self._file.blocks(f"{prefix}.{name}.weight")) for name in names])
        bias = None
        if self._biased[tuple(names)]:
            vectors = ((name, self.vector(f"{prefix}.{name}.bias")) for name in names)
            bias = np.concatenate([self._ordered(name, vector) for name, vector in vectors])
        return self._packed(kind, rows, bias)

    def _ordered(self, name: str, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        """Llama's rows of q and k are stored for a rope that turns neighbours; ours turns the halves of a head."""
        if self._config.architecture != "llama" or name not in ("attn_q", "attn_k"):
            return rows
        heads = rows.reshape(-1, self._config.head_dim // 2, 2, *rows.shape[1:])
        return heads.swapaxes(1, 2).reshape(rows.shape)

    # --- packing ------------------------------------------------------------------------------------------------------

    def _packed(self, kind: BlockType, rows: Bytes, bias: Floats | None) -> PackedLinear:
        """`rows`: [outputs, bytes of a row]"""
        inputs = rows.shape[1] // kind.size * kind.block
        if kind is Q8_0:
            return pack_q8(self._limits, rows, inputs, bias)
        return pack_q4(self._limits, rows, inputs, bias, minima=kind is Q4_1)


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
