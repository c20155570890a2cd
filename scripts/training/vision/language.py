"""The language half: SmolLM2-135M as its GGUF file has it, in transformers' form, frozen."""

from typing import Any

import torch

from models.decoder.families.layout import Part, TensorKey
from models.decoder.gguf_config import describe_gguf
from models.decoder.tensors import row_order, tensor_shapes
from models.files.gguf import GGUFFile
from models.files.source import resolve
from models.tokenizer.tokenizer import Tokenizer, from_gguf
from scripts.training.vision import LANGUAGE


def load_tokenizer() -> Tokenizer:
    return from_gguf(GGUFFile(resolve(LANGUAGE)))


def load_embeddings() -> torch.Tensor:
    """[vocabulary, 576]: of its tokens, which are also the rows of its head."""
    file = GGUFFile(resolve(LANGUAGE))
    return torch.from_numpy(file.dequantised(describe_gguf(file).layout.name(TensorKey(Part.EMBEDDING))).copy())


def load_language(dtype: torch.dtype = torch.bfloat16) -> Any:
    """LlamaForCausalLM with the weights that the blocks of the file stand for."""
    from transformers import LlamaConfig, LlamaForCausalLM

    file = GGUFFile(resolve(LANGUAGE))
    config = describe_gguf(file)
    described = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": float(file.metadata["llama.rope.freq_base"])},
        tie_word_embeddings=True,
        attn_implementation="eager",  # backwards on a CPU, at these lengths, faster than the fused one
    )
    model = LlamaForCausalLM(described)
    state = {}
    for key, _ in tensor_shapes(config):
        values = torch.from_numpy(file.dequantised(config.layout.name(key)).copy())
        order = row_order(config, key)
        state[_name(config.layout.name(key))] = values if order is None else values[torch.from_numpy(order)]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.to(dtype).eval().requires_grad_(False)


_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def _name(stored: str) -> str:
    """A GGUF file's name of a tensor in transformers' words."""
    *front, part, ending = stored.split(".")
    place = f"model.layers.{front[1]}." if front else ""
    return f"{place}{_NAMES[part]}.{ending}"
