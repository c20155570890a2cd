"""Weights by their Hugging Face names, whatever the files are."""

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.config import DecoderConfig
from models.errors import ModelLoadError
from models.gguf import BF16, F16, F32, Q4_0, Q4_1, Q8_0, GGUFFile
from models.packed import Packing
from models.quantised import GROUP, Int4Weight, Int8Weight, Weight
from models.safetensors import SafetensorsFiles

_ROWS_AT_ONCE = 1024  # of a large matrix: what it takes meanwhile stays in the processor's cache

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class Checkpoint(Protocol):
    def __contains__(self, name: str) -> bool: ...

    def weight(self, name: str) -> Weight:
        """As it is stored: dense, or the quantised form. Raises ModelLoadError where it is missing."""
        ...


class SafetensorsCheckpoint:
    def __init__(self, folder: Path, packing: Packing | None = None) -> None:
        """`packing`: of the linears that are not stored dense."""
        self._files = SafetensorsFiles(folder)
        self._packing = packing

    def __contains__(self, name: str) -> bool:
        return name in self._files or f"{name.removesuffix('.weight')}.qweight" in self._files

    def weight(self, name: str) -> Weight:
        stem = name.removesuffix(".weight")
        if self._packing and f"{stem}.qweight" in self._files:
            return self._packing(stem, self._files)
        return self._files.tensor(name)


class GGUFCheckpoint:
    def __init__(self, file: GGUFFile, config: DecoderConfig) -> None:
        self._file = file
        self._config = config

    def __contains__(self, name: str) -> bool:
        return _gguf_name(name) in self._file.tensors

    def weight(self, name: str) -> Weight:
        stored = _gguf_name(name)
        if stored not in self._file.tensors:
            raise ModelLoadError(f"{self._file.path} lacks the tensor {stored}")
        weight = self._read(stored)
        if self._config.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = self._config.num_heads if ".q_proj." in name else self._config.num_kv_heads
            order = _half_split_order(heads, self._config.head_dim)
            return weight[order] if isinstance(weight, Tensor) else weight.rows(order)
        return weight

    def _read(self, stored: str) -> Weight:
        kind = self._file.block_type(stored)
        shape = self._file.tensors[stored].shape
        if kind in (F32, F16, BF16):
            dtype = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}[kind]
            return _tensor(self._file.blocks(stored)).view(dtype).reshape(shape)
        if kind in (Q4_0, Q4_1):
            return _int4(self._file.blocks(stored), with_minimum=kind is Q4_1)
        if kind is Q8_0:
            return _int8(self._file.blocks(stored))
        return torch.from_numpy(self._file.dequantised(stored))


def _gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight"""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, inner = stem.split(".", 3)
        return f"blk.{index}.{_GGUF_NAMES[inner]}.{suffix}"
    return f"{_GGUF_NAMES[stem]}.{suffix}"


def _half_split_order(heads: int, head_dim: int) -> Tensor:
    """Llama's q and k rows are stored for a rope that turns neighbours; ours turns the halves of a head."""
    rows = torch.arange(heads * head_dim).view(heads, head_dim // 2, 2)
    return rows.transpose(1, 2).flatten()


def _tensor(blocks: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(blocks.copy())  # the map is read-only, which torch has no word for


def _int4(blocks: NDArray[np.uint8], *, with_minimum: bool) -> Int4Weight:
    """Q4_1: d, m (float16), 16 bytes of codes, w = q·d + m. Q4_0: d, codes, w = (q - 8)·d. Low nibbles are first."""
    size = (Q4_1 if with_minimum else Q4_0).size
    raw = _tensor(blocks).view(blocks.shape[0], -1, size)  # [n, k / 32, size]
    nibbles = raw[..., size - GROUP // 2 :]
    codes = torch.empty((*raw.shape[:2], 2, GROUP // 2), dtype=torch.uint8)
    torch.bitwise_and(nibbles, 15, out=codes[:, :, 0])
    torch.bitwise_right_shift(nibbles, 4, out=codes[:, :, 1])
    scale = raw[..., :2].contiguous().view(torch.float16).squeeze(-1).float()
    if not with_minimum:
        return Int4Weight(codes.flatten(1), scale, torch.zeros_like(scale))
    minimum = raw[..., 2:4].contiguous().view(torch.float16).squeeze(-1).float()
    return Int4Weight(codes.flatten(1), scale, minimum + 8 * scale)


def _int8(blocks: NDArray[np.uint8]) -> Int8Weight:
    """Q8_0: d (float16), 32 codes, w = q·d; requantised from a scale for 32 values to the row's largest."""
    raw = _tensor(blocks).view(blocks.shape[0], -1, Q8_0.size)  # [n, k / 32, size]
    scale = raw[..., :2].contiguous().view(torch.float16).squeeze(-1).float()  # [n, k / 32]
    row_scale = scale.abs().amax(1).clamp_(min=1e-8)
    shrink = (scale / row_scale[:, None]).unsqueeze(-1)
    codes = torch.empty((*raw.shape[:2], GROUP), dtype=torch.int8)
    for start in range(0, codes.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        codes[rows] = (raw[rows, :, 2:].view(torch.int8) * shrink[rows]).round_()
    return Int8Weight(codes.flatten(1), row_scale)
