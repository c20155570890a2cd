"""Pictures and masks that an edit starts from."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from PIL import Image

from models.diffusion.family import Size
from pipelines.base import InvalidRequest
from pipelines.media.messages import Fit, PictureJob
from pipelines.media.pictures import DecodePicture, Picture

KEEP = 0.5  # a mask's pixel is drawn anew where it is less opaque


@dataclass(frozen=True, slots=True)
class Upload:
    """A picture to start from. What is transparent in it is white."""

    pixels: torch.Tensor  # [1, 3, H, W] in -1…1, resized to what is drawn
    alpha: torch.Tensor | None  # [1, 1, H, W] in 0…1, resized too; None where the file has no transparency
    size: Size  # that the file has


def load_picture(decode: DecodePicture, path: str, size: Size) -> Upload:
    """The picture of a file, resized to `size`. Raises InvalidRequest."""
    picture = decode(_job(path, "image", size))
    pixels = torch.from_numpy(picture.rgb.copy()).permute(2, 0, 1)[None].float() / 255.0
    return Upload(pixels * 2.0 - 1.0, _alpha(picture), Size(*picture.full))


def load_mask(decode: DecodePicture, path: str, upload: Size, size: Size, latents: tuple[int, int]) -> torch.Tensor:
    """The mask of a file for a picture of size `upload`, as `to_mask` has it. Raises InvalidRequest."""
    picture = decode(_job(path, "mask", size))
    alpha = _alpha(picture)
    if Size(*picture.full) != upload:
        raise InvalidRequest(f"'mask' is {Size(*picture.full)}, but 'image' is {upload}; they have one size", "mask")
    if alpha is None:
        raise InvalidRequest("'mask' has no transparency: what is transparent in it is drawn anew", "mask")
    return to_mask(alpha, latents)


def to_mask(alpha: torch.Tensor, latents: tuple[int, int]) -> torch.Tensor:
    """[1, 1, H, W] of opacity -> [1, 1, h, w] of latents of that height and width: 1 where it is transparent."""
    return F.interpolate((1.0 - alpha >= KEEP).float(), size=latents)


def _job(path: str, param: str, size: Size) -> PictureJob:
    fit = Fit(width=size.width, height=size.height, resample=Image.Resampling.LANCZOS)
    return PictureJob(source=path, param=param, fit=fit, background="white")


def _alpha(picture: Picture) -> torch.Tensor | None:
    if picture.alpha is None:
        return None
    return torch.from_numpy(picture.alpha.copy())[None, None].float() / 255.0
