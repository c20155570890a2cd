"""Encoded pictures to pixels, sized up from the header before anything is decoded."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from models.embedder_config import ImageConfig
from pipelines.base import InvalidRequest

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 50_000_000  # 150 MB of RGB

Pixels = NDArray[np.float32]  # [3, height, width]


def load_pixels(data: bytes, config: ImageConfig, param: str) -> Pixels:
    """Raises InvalidRequest where the bytes are no picture, or one that is too large or broken."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about oddities of a file; our own limit is below the library's
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:  # reads no more than the header
                _check_size(*image.size, config, param)
                upright = ImageOps.exif_transpose(image)
                return preprocess(upright.convert("RGB"), config)
    except UnidentifiedImageError:
        raise InvalidRequest(f"{param!r} is no picture that is read here ({', '.join(FORMATS)})", param) from None
    except Image.DecompressionBombError:  # the library's own limit, which is above ours
        raise InvalidRequest(f"{param!r} has more pixels than the {MAX_PIXELS} that are accepted", param) from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise InvalidRequest(f"{param!r} can't be decoded: {error}", param) from None


def _check_size(width: int, height: int, config: ImageConfig, param: str) -> None:
    if width * height > MAX_PIXELS:
        raise InvalidRequest(
            f"{param!r} has {width} × {height} pixels, more than the {MAX_PIXELS} that are accepted", param
        )
    edge = config.shortest_edge or 0
    if edge * edge * max(width, height) > MAX_PIXELS * min(width, height):  # a thin strip grows when it is resized
        raise InvalidRequest(f"{param!r} is {width} × {height}, which is too long and thin", param)


def preprocess(image: Image.Image, config: ImageConfig) -> Pixels:
    """As the model's authors prepare pictures (transformers' image processors): resize, crop, scale, normalise."""
    resample = Image.Resampling(config.resample)
    if config.shortest_edge is None:
        image = image.resize((config.width, config.height), resample)
    else:
        image = _crop(_resize_shorter(image, config.shortest_edge, resample), config.height, config.width)
    mean, std = np.asarray(config.mean, np.float32), np.asarray(config.std, np.float32)
    pixels = (np.asarray(image, np.float32) * np.float32(config.scale) - mean) / std
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)


def _resize_shorter(image: Image.Image, edge: int, resample: Image.Resampling) -> Image.Image:
    width, height = image.size
    if width <= height:
        return image.resize((edge, int(edge * height / width)), resample)
    return image.resize((int(edge * width / height), edge), resample)


def _crop(image: Image.Image, height: int, width: int) -> Image.Image:
    """The middle; where the picture is smaller, black around it."""
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
