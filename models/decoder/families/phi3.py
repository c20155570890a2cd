"""Phi-3 and Phi-4-mini: q, k and v are stored as one, and gate and up."""

from models.decoder.families import windows
from models.decoder.families.family import Family, HFForm
from models.decoder.families.layout import HF_NAMES, Layout, Part

_NAMES = {
    **HF_NAMES,
    Part.QKV: "model.layers.{}.self_attn.qkv_proj",
    Part.GATE_UP: "model.layers.{}.mlp.gate_up_proj",
}

PHI3 = Family(
    "phi3",
    hf=(HFForm("Phi3ForCausalLM", "phi3", Layout(_NAMES)),),
    defaults={"original_max_position_embeddings": 4096},
    slides=windows.all_with_one,
)
