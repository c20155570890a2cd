"""Llama 2 and 3, and what is built like them: SmolLM2, TinyLlama, …"""

from models.decoder.families.family import Family, GGUFForm, HFForm
from models.decoder.families.layout import GGUF_NAMES, Layout

LLAMA = Family(
    "llama",
    hf=(HFForm("LlamaForCausalLM", "llama"),),
    gguf=GGUFForm("llama", Layout(GGUF_NAMES, interleaved=True)),
    text_defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
)
