"""Mistral. Its GGUF files say that they are Llama's."""

from models.decoder.families import windows
from models.decoder.families.family import Family, HFForm

MISTRAL = Family(
    "mistral",
    hf=(HFForm("MistralForCausalLM", "mistral"),),
    text_defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    },
    slides=windows.all_with_one,
)
