"""From a checkpoint to the part of it that sees."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from models.device import choose_device, choose_dtype, multiplies_bf16
from models.errors import ModelLoadError
from models.vision.families.family import Family
from models.vision.half import Half, Weights
from models.vision.tower import FamilyTower

_NOT_OURS = ("dtype", "torch_dtype", "quantization_config", "attn_implementation", "_attn_implementation")
# Of a language model that nothing is computed by.
_SMALL = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}


def load_tower(
    half: Half,
    hidden_size: int,
    *,
    device: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
    together: bool | None = None,
) -> FamilyTower:
    """`hidden_size`: of the language model. `dtype`: as its own, but float32 on a processor that has no products in
    bfloat16. `together`: see FamilyTower; None: on a GPU. Raises ModelLoadError naming what is missing, or of a wrong
    shape."""
    if threads is not None:
        torch.set_num_threads(threads)
    place, kind = choose_device(device), choose_dtype(dtype)
    if place.type == "cpu" and not multiplies_bf16():
        kind = torch.float32
    family, files = half.family, half.open_weights()
    model = _build(half, hidden_size)
    weights = {
        name: _weight(files, _names(family, name), tuple(parameter.shape)).to(place, kind)
        for name, parameter in model.state_dict().items()
    }
    model.load_state_dict(weights, assign=True)
    _make_buffers(model)
    model.requires_grad_(False)
    together = place.type != "cpu" if together is None else together
    return FamilyTower(family, model.to(place).eval(), place, kind, together=together)


def _build(half: Half, hidden_size: int) -> Any:
    """Without weights, and without its language model. Raises ModelLoadError."""
    family, config = half.family, half.as_written
    vision = {key: value for key, value in config["vision_config"].items() if key not in _NOT_OURS}
    if "" in family.towers:
        vision.pop("model_type", None)  # of which older files have another
    if "siglip_vision_model" in family.towers:
        vision["vision_use_head"] = False  # it pools all rows to one, which nobody reads
    others = {key: config[key] for key in family.config if config.get(key) is not None}
    try:
        described = getattr(transformers, f"{family.classes}Config")(
            text_config={**_SMALL, "hidden_size": hidden_size}, vision_config=vision, **others
        )
        with torch.device("meta"):
            model = getattr(transformers, f"{family.classes}Model")(described)
    except Exception as error:  # whatever this config makes the library's code do
        raise ModelLoadError(f"{half.where}: no tower can be made by it: {error}") from error
    setattr(model, family.language, nn.Identity())
    return model


def _names(family: Family, name: str) -> list[str]:
    """What files may call one of the model's parameters."""
    for ours, theirs in family.weights.items():
        if name.startswith(ours):
            return [f"{each}{name.removeprefix(ours)}" for each in theirs]
    return [name]


def _weight(files: Weights, names: Sequence[str], shape: tuple[int, ...]) -> Tensor:
    name = next((name for name in names if name in files), None)
    if name is None:
        raise ModelLoadError(f"{files.where} lacks the tensor {names[0]}")
    if files.shape(name) != shape:
        raise ModelLoadError(f"{files.where}: {name} has the shape {files.shape(name)}, not {shape}")
    found = files.tensor(name)
    if not found.is_floating_point():
        raise ModelLoadError(f"{files.where}: {name} is of {str(found.dtype).removeprefix('torch.')}, not of numbers")
    if not all(bool(torch.isfinite(bound)) for bound in torch.aminmax(found.float())):
        raise ModelLoadError(f"{files.where}: {name} has values that are not finite")
    return found


def _make_buffers(model: Any) -> None:
    """What the modules compute by themselves, as when transformers loads them: it does so for whatever is not marked as
    read from files."""
    for parameter in model.parameters():
        parameter._is_hf_initialized = True
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, torch.empty_like(buffer, device="cpu"))
    model.initialize_weights()
