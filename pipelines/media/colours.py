"""Every mode that Pillow has, to RGB and alpha."""

import sys

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

Values = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]

WIDE = {"I;16", "I;16L", "I;16B", "I;16N", "I", "F"}  # grey of more than 8 bits
ALPHA = {"RGBA", "LA", "PA", "RGBa", "La"}
RANGES = (1.0, 255.0, 65535.0, 4294967295.0)  # of grey whose mode says nothing of its range
ROWS = 256  # that are brought to 8 bits at once: copies of a picture in 32 bits are 200 MB each


def to_rgb(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """(RGB, L): the colours and the opacity, None where the file has no transparency. The colours of transparent
    pixels are those that the file has.

    16-bit grey is brought to 8 bits by its whole range. `I` and `F` don't say what theirs is: the smallest of 0…1
    (`F` alone), 8, 16 and 32 bits that holds their values.
    """
    if image.mode in WIDE:
        return _wide(image)
    if image.mode == "LAB":  # its second band is called A, and is no alpha
        return _from_lab(image), None
    if image.mode == "La":
        image = image.convert("LA")  # the only mode that it converts to
    if image.mode in ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        return image.convert("RGB"), image.getchannel("A")
    return image.convert("RGB"), None


def _wide(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    if image.mode == "I;16N" and sys.byteorder == "big":
        image = image.convert("I;16B")
    values = np.asarray(image)
    top = _range(values, image.mode)
    grey = np.empty(values.shape, np.uint8)
    for first in range(0, len(values), ROWS):
        rows = slice(first, first + ROWS)
        grey[rows] = _to_bytes(values[rows], top)
    rgb = Image.fromarray(grey).convert("RGB")
    key = image.info.get("transparency")
    if not isinstance(key, int):
        return rgb, None
    return rgb, Image.fromarray((values != key).astype(np.uint8) * np.uint8(255))


def _range(values: Values, mode: str) -> float:
    if mode not in ("I", "F"):
        return 65535.0
    finite = values[np.isfinite(values)]
    highest = float(finite.max()) if finite.size else 0.0
    ranges = RANGES if mode == "F" else RANGES[1:]
    return next((top for top in ranges if highest <= top), highest)


def _to_bytes(values: Values, top: float) -> Bytes:
    """0…`top` to 0…255, rounded to the nearest; what is beyond is cut off, what is no number black."""
    scaled = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=top, neginf=0.0) * np.float32(255 / top)
    grey: Bytes = np.rint(scaled.clip(0, 255)).astype(np.uint8)
    return grey


def _from_lab(image: Image.Image) -> Image.Image:
    lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted = ImageCms.applyTransform(image, ImageCms.buildTransform(lab, rgb, "LAB", "RGB"))
    assert converted is not None  # it is, where the image is changed in place
    return converted
