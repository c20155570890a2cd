"""All families, and the one that a config names."""

from models.vision.families.family import Family
from models.vision.families.gemma3 import GEMMA3
from models.vision.families.idefics3 import IDEFICS3, SMOLVLM
from models.vision.families.llava import LLAVA
from models.vision.families.llava_onevision import LLAVA_ONEVISION
from models.vision.families.qwen import QWEN2_5_VL, QWEN3_VL

FAMILIES: tuple[Family, ...] = (IDEFICS3, SMOLVLM, LLAVA, LLAVA_ONEVISION, QWEN2_5_VL, QWEN3_VL, GEMMA3)


def of_class(architecture: str | None, model_type: str) -> Family | None:
    """Of a `config.json`. `architecture`: the class that it names; None: it names none, and `model_type` is looked up.
    None: what it describes sees nothing, or not by any of these."""
    for family in FAMILIES:
        if architecture == family.architecture or (architecture is None and model_type == family.model_type):
            return family
    return None
