"""Pictures and masks that an edit starts from, sized up from the header before anything is decoded."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError

from models.diffusion.family import Size
from pipelines.base import InvalidRequest

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 50_000_000  # 150 MB of RGB
KEEP = 0.5  # a mask's pixel is drawn anew where it is less opaque


@dataclass(frozen=True, slots=True)
class Picture:
    """What is transparent in it is white."""

    pixels: torch.Tensor  # [1, 3, H, W] in -1…1, resized
    upload: Size  # as it came
    mask: torch.Tensor | None  # [1, 1, h, w] of latents: 1 where it is transparent; None: nowhere


def load_picture(path: str, size: Size, latents: tuple[int, int]) -> Picture:
    """For latents of that height and width. Raises InvalidRequest."""
    image = _open(path, "image")
    upload = Size(*image.size)
    mask = None
    if _has_alpha(image):
        image = image.convert("RGBA")
        mask = _mask(image.getchannel("A"), size, latents)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = _resized(image.convert("RGB"), size)
    pixels = torch.from_numpy(np.array(image, np.float32) / 255.0).permute(2, 0, 1)[None]
    return Picture(pixels * 2.0 - 1.0, upload, mask if mask is not None and mask.any() else None)


def load_mask(path: str, upload: Size, size: Size, latents: tuple[int, int]) -> torch.Tensor:
    """[1, 1, h, w]: 1 where the mask is transparent, for latents of that height and width. Raises InvalidRequest."""
    image = _open(path, "mask")
    if Size(*image.size) != upload:
        raise InvalidRequest(f"'mask' is {Size(*image.size)}, but 'image' is {upload}; they have one size", "mask")
    if not _has_alpha(image):
        raise InvalidRequest("'mask' has no transparency: what is transparent in it is drawn anew", "mask")
    return _mask(image.convert("RGBA").getchannel("A"), size, latents)


def _mask(alpha: Image.Image, size: Size, latents: tuple[int, int]) -> torch.Tensor:
    anew = _resized(ImageOps.invert(alpha), size)
    pixels = torch.from_numpy(np.array(anew, np.float32) / 255.0)[None, None]
    return F.interpolate((pixels >= KEEP).float(), size=latents)


def _open(path: str, param: str) -> Image.Image:
    """Upright and decoded. Raises InvalidRequest where it is no picture, or one that is too large or broken."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about oddities of a file; our own limit is below the library's
            with Image.open(path, formats=FORMATS) as image:  # reads no more than the header
                if image.width * image.height > MAX_PIXELS:
                    raise too_large(param)
                image.load()
                return ImageOps.exif_transpose(image)
    except UnidentifiedImageError:
        raise InvalidRequest(f"{param!r} is no picture that is read here ({', '.join(FORMATS)})", param) from None
    except Image.DecompressionBombError:  # the library's own limit, which is above ours
        raise too_large(param) from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise InvalidRequest(f"{param!r} can't be decoded: {_reason(error, path)}", param) from None


def too_large(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param!r} has more pixels than the {MAX_PIXELS} that are accepted", param)


def _reason(error: Exception, path: str) -> str:
    """Where the file lies is nobody's business."""
    return str(error).replace(path, "the file")


def _has_alpha(image: Image.Image) -> bool:
    return "A" in image.getbands() or "transparency" in image.info


def _resized(image: Image.Image, size: Size) -> Image.Image:
    wanted = (size.width, size.height)
    return image if image.size == wanted else image.resize(wanted, Image.Resampling.LANCZOS)
