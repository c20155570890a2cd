"""Qwen3."""

from models.decoder.families import windows
from models.decoder.families.family import Family, GGUFForm, HFForm

QWEN3 = Family(
    "qwen3",
    hf=(HFForm("Qwen3ForCausalLM", "qwen3"),),
    gguf=GGUFForm("qwen3"),
    defaults={"max_window_layers": 28},
    slides=windows.from_layer_on,
    qk_norm=True,
)
