"""Llama 2 and 3, and what is built like them: SmolLM2, TinyLlama, …"""

from models.decoder.families.family import Family, GGUFForm, HFForm
from models.decoder.families.layout import GGUF_NAMES, Layout

LLAMA = Family(
    "llama",
    hf=(HFForm("LlamaForCausalLM", "llama"),),
    gguf=GGUFForm("llama", Layout(GGUF_NAMES, interleaved=True)),
)
