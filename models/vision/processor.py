"""Pictures as a family's image processor, transformers' own, makes them ready for the tower."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import transformers
from numpy.typing import NDArray
from PIL import Image

from models.errors import UPSTREAM, ModelLoadError
from models.files.fields import Fields
from models.vision.families.family import NO_OVERRIDES, Family, ImageTokens, Overrides
from models.vision.image import PreparedImage

MOST_ASPECT = 200  # long side to short: beyond it a picture scaled by its short side would have no bounds
_BARS = "pad_to_square"  # a setting of ours: the colour of bars that make a picture a square
_NO_SETTINGS = {"image_processor_type", "feature_extractor_type", "processor_class", "auto_map", _BARS}


class FamilyProcessor:
    """An ImageProcessor. Nothing of it changes while it works."""

    def __init__(self, family: Family, settings: Mapping[str, Any], tokens: ImageTokens, where: str) -> None:
        """`settings`: of the image processor, from `where`. Raises ModelLoadError."""
        self._family = family
        self._tokens = tokens
        self._bars = _colour(Fields(settings, where))
        name = _class_name(family, Fields(settings, where))
        try:
            self._backend = getattr(transformers, name)(
                **{key: value for key, value in settings.items() if key not in _NO_SETTINGS}
            )
            self._low: Overrides = family.low(self._backend)
            self._settings = {**self._backend.to_dict(), _BARS: self._bars, "family": family.name}
            self.prepare(np.zeros((48, 64, 3), np.uint8), "auto")
        except Exception as error:  # whatever these settings make the library's code do
            raise ModelLoadError(f"{where}: no picture can be prepared by these settings: {error}") from error

    def prepare(self, rgb: NDArray[np.uint8], detail: str) -> PreparedImage:
        height, width, _ = rgb.shape
        if max(height, width) > MOST_ASPECT * min(height, width):
            raise ValueError(f"it is {width} x {height} pixels: one side more than {MOST_ASPECT} times the other")
        overrides = self._low if detail == "low" else NO_OVERRIDES
        picture = Image.fromarray(rgb)
        if self._bars is not None:
            picture = _square(picture, self._bars)
        found = self._family.process(self._backend, picture, overrides)
        inputs = {name: _array(values) for name, values in found.items()}
        tokens = tuple(self._tokens.expand(inputs))
        return PreparedImage(
            inputs={name: inputs[name] for name in self._family.inputs},
            tokens=tokens,
            rows=np.flatnonzero(np.asarray(tokens) == self._tokens.row).astype(np.int64, copy=False),
            grid=self._tokens.grid(inputs) if self._tokens.grid else None,
            identity=self._identity(rgb, overrides),
            pixels=inputs["pixel_values"].size // self._tokens.values,
        )

    def _identity(self, rgb: NDArray[np.uint8], overrides: Overrides) -> bytes:
        digest = blake2b(digest_size=16)
        settings = {**self._settings, "overrides": dict(overrides), "shape": rgb.shape}
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        digest.update(np.ascontiguousarray(rgb).data)
        return digest.digest()


def _class_name(family: Family, settings: Fields) -> str:
    """Of those that need no torchvision. Raises ModelLoadError."""
    named = settings.text("image_processor_type", "") or settings.text("feature_extractor_type", "")
    name = named.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor") or family.processors[0]
    if name not in family.processors:
        known = ", ".join(family.processors)
        raise ModelLoadError(f"{settings.where}: {named} is not supported (supported: {known}); {UPSTREAM}")
    return f"{name}Pil"


def _colour(settings: Fields) -> tuple[int, int, int] | None:
    found = settings.items(_BARS, int, "integers")
    if found is None:
        return None
    if len(found) != 3 or not all(0 <= value <= 255 for value in found):
        raise settings.refused(_BARS, "three integers from 0 to 255")
    red, green, blue = found
    return red, green, blue


def _square(picture: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """The picture in the middle."""
    edge = max(picture.size)
    whole = Image.new("RGB", (edge, edge), colour)
    whole.paste(picture, ((edge - picture.width) // 2, (edge - picture.height) // 2))
    return whole


def _array(values: object) -> NDArray[Any]:
    found = np.asarray(values)
    return found.astype(np.float32, copy=False) if found.dtype.kind == "f" else found
