"""The part of a model that sees: transformers' own modules, with a checkpoint's weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.vision.families.family import Family, Features
from models.vision.image import EncodedImage, PreparedImage


class FamilyTower:
    """A Tower."""

    def __init__(
        self, family: Family, model: nn.Module, device: torch.device, dtype: torch.dtype, *, together: bool
    ) -> None:
        """`together`: encode pictures of equal shape at once, or all of them where they can be one sequence; else each
        by itself."""
        self._together = together
        self._family = family
        self._model = model
        self._device = device
        self._dtype = dtype

    def encode(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        found: dict[int, EncodedImage] = {}
        with torch.inference_mode():
            for group in self._groups(images):
                encoded = self._encode([images[index] for index in group])
                found.update(zip(group, encoded, strict=True))
        return [found[index] for index in range(len(images))]

    def _groups(self, images: Sequence[PreparedImage]) -> list[list[int]]:
        """Indices of those that are encoded together."""
        if not self._together:
            return [[index] for index in range(len(images))]
        groups: dict[object, list[int]] = {}
        for index, image in enumerate(images):
            shapes = None if self._family.packs else tuple(image.inputs[name].shape for name in self._family.inputs)
            groups.setdefault(shapes, []).append(index)
        return list(groups.values())

    def _encode(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        inputs = {name: self._input([image.inputs[name] for image in images]) for name in self._family.inputs}
        features = self._family.features(self._model, inputs)
        return [_encoded(features, index, image) for index, image in enumerate(images)]

    def _input(self, parts: Sequence[NDArray[Any]]) -> Tensor:
        joined = torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return joined.to(self._device, self._dtype if joined.is_floating_point() else None)


def _encoded(features: Features, index: int, image: PreparedImage) -> EncodedImage:
    rows = _numpy(features.rows[index])
    if len(rows) != len(image.rows):
        raise RuntimeError(f"a picture of {len(image.rows)} rows was encoded as {len(rows)}")
    layers = [_numpy(layer[index]) for layer in features.deepstack]
    return EncodedImage(rows, np.stack(layers) if layers else None)


def _numpy(tensor: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.float().cpu().numpy()
    return found
