"""Qwen3, and the decoder of Qwen3-VL."""

from dataclasses import replace

from models.decoder.families import axes, windows
from models.decoder.families.family import Family, GGUFForm, HFForm, no_layer

QWEN3 = Family(
    "qwen3",
    hf=(HFForm("Qwen3ForCausalLM", "qwen3"),),
    gguf=GGUFForm("qwen3"),
    defaults={"max_window_layers": 28},
    slides=windows.from_layer_on,
    qk_norm=True,
)

QWEN3_VL = replace(
    QWEN3,
    name="qwen3-vl",
    hf=(HFForm(None, "qwen3_vl_text"),),
    gguf=None,
    defaults={"rope_theta": 5e5, "mrope_section": (24, 20, 20)},
    text_defaults={
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 128000,
        "rms_norm_eps": 1e-6,
    },
    slides=no_layer,
    axes=axes.interleaved,
)
