"""Qwen2 and 2.5, and the decoder of Qwen2.5-VL."""

from dataclasses import replace

from models.decoder.families import axes, windows
from models.decoder.families.family import Family, GGUFForm, HFForm

QWEN2 = Family(
    "qwen2",
    hf=(HFForm("Qwen2ForCausalLM", "qwen2"),),
    gguf=GGUFForm("qwen2"),
    defaults={"max_window_layers": 28},
    text_defaults={
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    },
    slides=windows.from_layer_on,
    qkv_bias=True,
)

QWEN2_5_VL = replace(
    QWEN2,
    name="qwen2.5-vl",
    hf=(HFForm(None, "qwen2_5_vl_text"),),
    gguf=None,
    defaults={"max_window_layers": 80, "rope_theta": 1e6, "mrope_section": (16, 24, 24)},
    text_defaults={
        "vocab_size": 152064,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
    },
    axes=axes.in_sections,
)
