"""All families, and the one that a model's files name."""

from models.decoder.families.family import Family, GGUFForm, HFForm
from models.decoder.families.gemma3 import GEMMA3
from models.decoder.families.llama import LLAMA
from models.decoder.families.mistral import MISTRAL
from models.decoder.families.phi3 import PHI3
from models.decoder.families.qwen2 import QWEN2
from models.decoder.families.qwen3 import QWEN3
from models.decoder.families.smollm3 import SMOLLM3
from models.errors import UPSTREAM, ModelLoadError

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, PHI3, GEMMA3)


def of_class(architecture: str | None, model_type: str) -> tuple[Family, HFForm]:
    """Of a `config.json`. `architecture`: the class that it names; None: it names none, and `model_type` is looked up.

    Raises ModelLoadError where none is served.
    """
    forms = [(family, form) for family in FAMILIES for form in family.hf]
    for family, form in forms:
        if architecture == form.architecture or (architecture is None and model_type == form.model_type):
            return family, form
    known = ", ".join(form.architecture for _, form in forms)
    named = model_type if architecture is None else architecture
    raise ModelLoadError(f"architecture {named} is not supported (supported: {known}); {UPSTREAM}")


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
