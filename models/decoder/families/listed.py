"""All families, and the one that a model's files name."""

from models.decoder.families.family import Family, GGUFForm, HFForm
from models.decoder.families.gemma3 import GEMMA3
from models.decoder.families.llama import LLAMA
from models.decoder.families.mistral import MISTRAL
from models.decoder.families.phi3 import PHI3
from models.decoder.families.qwen2 import QWEN2, QWEN2_5_VL
from models.decoder.families.qwen3 import QWEN3, QWEN3_VL
from models.decoder.families.smollm3 import SMOLLM3
from models.decoder.families.vision import VISION_FORMS, VisionForm
from models.errors import UPSTREAM, ModelLoadError, require

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN2_5_VL, QWEN3, QWEN3_VL, SMOLLM3, PHI3, GEMMA3)


def of_class(architecture: str | None, model_type: str) -> tuple[Family, HFForm]:
    """Of a `config.json`. `architecture`: the class that it names; None: it names none, and `model_type` is looked up.

    Raises ModelLoadError where none is served.
    """
    forms = [(family, form) for family in FAMILIES for form in family.hf if form.architecture is not None]
    for family, form in forms:
        if _names(architecture, model_type, form):
            return family, form
    known = ", ".join([*(str(form.architecture) for _, form in forms), *(form.architecture for form in VISION_FORMS)])
    named = model_type if architecture is None else architecture
    raise ModelLoadError(f"architecture {named} is not supported (supported: {known}); {UPSTREAM}")


def vision_form(architecture: str | None, model_type: str) -> VisionForm | None:
    """As `of_class`, of a model that has an encoder of images; None: it is none of these."""
    return next((form for form in VISION_FORMS if _names(architecture, model_type, form)), None)


def decoder_of(form: VisionForm, model_type: str) -> tuple[Family, HFForm]:
    """Of the model's decoder. `model_type`: what the description of it says, or the whole model's.

    Raises ModelLoadError where the class is not served with such a one.
    """
    wanted = form.decoders[0] if model_type == form.model_type else model_type
    known = ", ".join(form.decoders)
    require(wanted in form.decoders, form.architecture, f"a decoder of type {wanted} (supported: {known})")
    return next((family, each) for family in FAMILIES for each in family.hf if each.model_type == wanted)


def _names(architecture: str | None, model_type: str, form: HFForm | VisionForm) -> bool:
    return architecture == form.architecture or (architecture is None and model_type == form.model_type)


def of_gguf(architecture: str) -> tuple[Family, GGUFForm]:
    """Of a file's `general.architecture`. Raises ModelLoadError where none is served."""
    forms = [(family, family.gguf) for family in FAMILIES if family.gguf is not None]
    for family, form in forms:
        if form.architecture == architecture:
            return family, form
    known = ", ".join(form.architecture for _, form in forms)
    others = {family.name for family in FAMILIES if family.gguf is None}
    safetensors = "load its safetensors, or " if architecture in others else ""
    raise ModelLoadError(
        f"GGUF architecture {architecture} is not supported (supported: {known}); {safetensors}{UPSTREAM}"
    )
