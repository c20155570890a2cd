"""From a folder to a model of one of the families that are known here."""

from pathlib import Path

import torch

from models.diffusion.checkpoint import open_checkpoint
from models.diffusion.family import Family
from models.diffusion.flux import Flux
from models.diffusion.unet import StableDiffusion, StableDiffusionXL
from models.errors import ModelLoadError

# By the class of diffusers that saved the checkpoint.
FAMILIES: dict[str, type[Family]] = {
    "StableDiffusionPipeline": StableDiffusion,
    "LatentConsistencyModelPipeline": StableDiffusion,
    "StableDiffusionXLPipeline": StableDiffusionXL,
    "FluxPipeline": Flux,
}


def load_family(folder: Path, *, device: str = "auto", dtype: str | None = None) -> Family:
    """Raises ModelLoadError; a family that is not known is refused by its name."""
    checkpoint = open_checkpoint(folder, device=device, dtype=dtype)
    family = FAMILIES.get(checkpoint.pipeline)
    if family is None:
        name = checkpoint.pipeline or "a checkpoint without _class_name"
        raise ModelLoadError(f"{folder}: {name} is not supported; there are: {', '.join(FAMILIES)}")
    _silence()
    with torch.inference_mode():
        return family(checkpoint)


def _silence() -> None:
    """A worker's standard error is its log: no progress bars there."""
    import diffusers.utils.logging
    import transformers.utils.logging

    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
