"""Gemma 3."""

from collections.abc import Sequence

from models.decoder.families.family import Family, HFForm
from models.decoder.families.layout import HF_NAMES, Layout, Part
from models.files.fields import Fields

_NAMES = {
    **HF_NAMES,
    Part.OUTPUT_NORM: "model.layers.{}.post_attention_layernorm",
    Part.MLP_NORM: "model.layers.{}.pre_feedforward_layernorm",
    Part.DOWN_NORM: "model.layers.{}.post_feedforward_layernorm",
}


def _slides(fields: Fields, with_rope: Sequence[bool]) -> Sequence[bool]:
    """All but the last of every few layers."""
    pattern = fields.integer("sliding_window_pattern", 1)
    return [bool((index + 1) % pattern) for index in range(len(with_rope))]


GEMMA3 = Family(
    "gemma3",
    hf=(HFForm("Gemma3ForCausalLM", "gemma3_text", Layout(_NAMES, norm_offset=1.0)),),
    defaults={
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    slides=_slides,
    qk_norm=True,
    branch_norms=True,
    scaled_embedding=True,
)
