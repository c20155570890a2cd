"""A decoder in a GGUF file: its description, and where its tensors are."""

import numpy as np
from numpy.typing import NDArray

from models.decoder.config import DecoderConfig, from_gguf
from models.decoder.tensors import HEAD, Shape, require_tensors
from models.errors import ModelLoadError
from models.files.fields import MOST_HEAD_DIM, Fields
from models.files.gguf import F32, GGUFFile

_NAMES = {
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

ROPE_FACTORS = "rope_freqs.weight"
TOKENS = "tokenizer.ggml.tokens"


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight"""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, inner = stem.split(".", 3)
        return f"blk.{index}.{_NAMES[inner]}.{suffix}"
    return f"{_NAMES[stem]}.{suffix}"


def row_order(config: DecoderConfig, name: str) -> NDArray[np.int64] | None:
    """Of a tensor by its Hugging Face name, which stored row each of ours is; None: they are in their order.

    Llama's rows of q and k are stored for a rope that turns neighbours; ours turns the halves of a head.
    """
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if config.architecture != "llama" or heads is None:
        return None
    rows = np.arange(heads * config.head_dim).reshape(heads, config.head_dim // 2, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def describe_gguf(file: GGUFFile) -> DecoderConfig:
    """The decoder in a file, whose tensors are what its metadata say. Raises ModelLoadError."""
    tokens = Fields(file.metadata, str(file.path)).items(TOKENS, str, "texts") or ()
    config = from_gguf(
        file.metadata,
        rope_factors=_rope_factors(file),
        tied=gguf_name(f"{HEAD}.weight") not in file.tensors,
        num_tokens=len(tokens),
    )
    require_gguf_tensors(file, config)
    return config


def _rope_factors(file: GGUFFile) -> tuple[float, ...] | None:
    found = file.tensors.get(ROPE_FACTORS)
    if found is None:
        return None
    if found.kind is not F32 or len(found.shape) != 1 or found.shape[0] > MOST_HEAD_DIM:
        raise ModelLoadError(f"{file.path}: {ROPE_FACTORS} is {found.shape} in {found.kind.name}, not a head's factors")
    return tuple(file.blocks(ROPE_FACTORS).view(np.float32).reshape(-1).tolist())


def require_gguf_tensors(file: GGUFFile, config: DecoderConfig) -> None:
    """Raises ModelLoadError naming the first tensor that is missing, or of another shape than the config says."""

    def shape_of(name: str, _: Shape) -> Shape | None:
        found = file.tensors.get(name)
        return None if found is None else found.shape

    require_tensors(config, shape_of, str(file.path), stored_as=gguf_name)
