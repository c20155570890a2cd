"""Pictures and masks that an edit starts from."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image

from models.diffusion.family import Size
from pipelines.base import InvalidRequest
from pipelines.media.messages import Fit, PictureJob
from pipelines.media.pictures import DecodePicture

KEEP = 0.5  # a mask's pixel is drawn anew where it is less opaque


@dataclass(frozen=True, slots=True)
class Upload:
    """A picture to start from. What is transparent in it is white."""

    pixels: torch.Tensor  # [1, 3, H, W] in -1…1, resized
    upload: Size  # as it came
    mask: torch.Tensor | None  # [1, 1, h, w] of latents: 1 where it is transparent; None: nowhere


def load_picture(decode: DecodePicture, path: str, size: Size, latents: tuple[int, int]) -> Upload:
    """For latents of that height and width. Raises InvalidRequest."""
    picture = decode(_job(path, "image", size))
    pixels = torch.from_numpy(picture.rgb.copy()).permute(2, 0, 1)[None].float() / 255.0
    mask = None if picture.alpha is None else _mask(picture.alpha, latents)
    return Upload(pixels * 2.0 - 1.0, Size(*picture.full), mask if mask is not None and mask.any() else None)


def load_mask(decode: DecodePicture, path: str, upload: Size, size: Size, latents: tuple[int, int]) -> torch.Tensor:
    """[1, 1, h, w]: 1 where the mask is transparent, for latents of that height and width. Raises InvalidRequest."""
    picture = decode(_job(path, "mask", size))
    if Size(*picture.full) != upload:
        raise InvalidRequest(f"'mask' is {Size(*picture.full)}, but 'image' is {upload}; they have one size", "mask")
    if picture.alpha is None:
        raise InvalidRequest("'mask' has no transparency: what is transparent in it is drawn anew", "mask")
    return _mask(picture.alpha, latents)


def _mask(alpha: npt.NDArray[np.uint8], latents: tuple[int, int]) -> torch.Tensor:
    clear = 1.0 - torch.from_numpy(alpha.copy())[None, None].float() / 255.0
    return F.interpolate((clear >= KEEP).float(), size=latents)


def _job(path: str, param: str, size: Size) -> PictureJob:
    fit = Fit(width=size.width, height=size.height, resample=Image.Resampling.LANCZOS)
    return PictureJob(path=path, param=param, fit=fit, background="white")
