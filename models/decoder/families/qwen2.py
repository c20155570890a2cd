"""Qwen2 and 2.5."""

from models.decoder.families import windows
from models.decoder.families.family import Family, GGUFForm, HFForm

QWEN2 = Family(
    "qwen2",
    hf=(HFForm("Qwen2ForCausalLM", "qwen2"),),
    gguf=GGUFForm("qwen2"),
    defaults={"max_window_layers": 28},
    slides=windows.from_layer_on,
    qkv_bias=True,
)
