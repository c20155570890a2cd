"""Weights by their Hugging Face names, whatever the files are."""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from models.config import DecoderConfig
from models.errors import ModelLoadError
from models.gguf import GGUFFile
from models.gguf_blocks import Form, GGUFMatrices
from models.packed import Packing
from models.quantised import Int4Weight, Int8Weight, Weight
from models.safetensors import SafetensorsFiles

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
        return name in self._files or self._packed(name) is not None

    def weight(self, name: str) -> Weight:
        packing = self._packed(name)
        return packing.weight(name.removesuffix(".weight"), self._files) if packing else self._files.tensor(name)

    def _packed(self, name: str) -> Packing | None:
        """None: the tensor is stored dense."""
        packing = self._packing
        return packing if packing and packing.packs(name.removesuffix(".weight"), self._files) else None


class GGUFCheckpoint:
    def __init__(
        self, file: GGUFFile, config: DecoderConfig, forms: Collection[Form] = (Int8Weight, Int4Weight)
    ) -> None:
        """`forms`: that have kernels; what a type would become beyond them is dequantised instead.

        Raises ModelLoadError where a tensor has a type that can't be read.
        """
        self._file = file
        self._matrices = GGUFMatrices(file, forms)
        self._config = config

    def __contains__(self, name: str) -> bool:
        return _gguf_name(name) in self._file.tensors

    def weight(self, name: str) -> Weight:
        stored = _gguf_name(name)
        if stored not in self._file.tensors:
            raise ModelLoadError(f"{self._file.path} lacks the tensor {stored}")
        weight = self._matrices.read(stored)
        if self._config.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = self._config.num_heads if ".q_proj." in name else self._config.num_kv_heads
            order = _half_split_order(heads, self._config.head_dim)
            return weight[order] if isinstance(weight, Tensor) else weight.rows(order)
        return weight


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
