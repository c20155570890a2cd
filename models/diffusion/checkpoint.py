"""A diffusers folder: what its index names, loaded piece by piece. Only classes that are asked for are ever made."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.device import choose_device, choose_dtype
from models.errors import ModelLoadError

INDEX = "model_index.json"
DEFAULTS = "generation_config.json"  # beside it, optional: how its author would run the model


@dataclass(frozen=True, slots=True)
class Defaults:
    """How an image is made where the request does not say."""

    steps: int
    guidance: float
    width: int  # pixels
    height: int
    max_pixels: int | None = None  # of an image that the model can draw at all; None: its author doesn't say


@dataclass(frozen=True, slots=True)
class Checkpoint:
    folder: Path
    index: Mapping[str, Any]
    device: torch.device
    dtype: torch.dtype  # of weights and activations; latents between two steps are float32

    @property
    def pipeline(self) -> str:
        """The class of diffusers that the checkpoint was saved from."""
        return str(self.index.get("_class_name", ""))

    def class_name(self, part: str) -> str:
        """The class of a part; empty where the checkpoint has none."""
        named = self.index.get(part)
        return str(named[1] or "") if isinstance(named, list) and len(named) == 2 else ""

    def require(self, part: str, *classes: str) -> str:
        """The part's class, which has to be one of these. Raises ModelLoadError."""
        found = self.class_name(part)
        if found not in classes:
            wanted = " or ".join(classes)
            raise ModelLoadError(f"{self.folder}: {part} is {found or 'missing'}, but a {self.pipeline} needs {wanted}")
        return found

    def module(self, part: str, *classes: str, dtype: torch.dtype | None = None) -> Any:
        """A network in evaluation mode on the device. Raises ModelLoadError."""
        found = self.require(part, *classes)
        dtype = dtype or self.dtype
        folder = self.folder / part
        try:
            if self.index[part][0] == "transformers":
                import transformers

                loaded = getattr(transformers, found).from_pretrained(folder, dtype=dtype, use_safetensors=True)
            else:
                import diffusers

                # `low_cpu_mem_usage` needs a package that is not ours.
                loaded = getattr(diffusers, found).from_pretrained(
                    folder, torch_dtype=dtype, use_safetensors=True, low_cpu_mem_usage=False
                )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ModelLoadError(f"{folder} can't be loaded: {error}") from error
        loaded.requires_grad_(False)
        return loaded.to(self.device).eval()

    def config(self, part: str) -> dict[str, Any]:
        """The part's own description. Raises ModelLoadError."""
        return _read_json(self.folder / part / "config.json")

    def defaults(self, family: Defaults) -> Defaults:
        """Its author's, else its family's. Raises ModelLoadError where the author's are no positive numbers."""
        file = self.folder / DEFAULTS
        if not file.is_file():
            return family
        written = _read_json(file)
        try:
            found = Defaults(
                steps=int(written.get("num_inference_steps", family.steps)),
                guidance=float(written.get("guidance_scale", family.guidance)),
                width=int(written.get("width", family.width)),
                height=int(written.get("height", family.height)),
                max_pixels=int(written["max_pixels"]) if "max_pixels" in written else family.max_pixels,
            )
        except (TypeError, ValueError) as error:
            raise ModelLoadError(f"{file}: {error}") from error
        if found.steps < 1 or found.guidance < 0 or min(found.width, found.height, found.max_pixels or 1) < 1:
            raise ModelLoadError(f"{file}: steps and sizes are positive, guidance is not negative")
        return found


def open_checkpoint(folder: Path, *, device: str = "auto", dtype: str | None = None) -> Checkpoint:
    """Raises ModelLoadError. Without `dtype`: float32 on a CPU, bfloat16 on a GPU."""
    if not folder.is_dir() or not (folder / INDEX).is_file():
        raise ModelLoadError(f"{folder} is no folder with a {INDEX}, as diffusers saves a pipeline")
    chosen = choose_device(device)
    kind = choose_dtype(dtype or ("float32" if chosen.type == "cpu" else None))
    return Checkpoint(folder, _read_json(folder / INDEX), chosen, kind)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelLoadError(f"{file} is no JSON object")
    return found
