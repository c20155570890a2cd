"""An encoded picture to RGB and alpha, sized up from its header before anything is decoded."""

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from pipelines.base import InvalidRequest
from pipelines.media.colours import to_rgb
from pipelines.media.formats import FORMATS, HEAD, other_format
from pipelines.media.messages import Fit, PictureJob

MAX_PIXELS = 50_000_000  # 150 MB of RGB

# What EXIF's orientation asks for (TIFF 6.0, tag 274); 1, and what is no orientation, for nothing.
ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True)
class Picture:
    """Upright. `full`: its (width, height) before it was brought to a size."""

    rgb: npt.NDArray[np.uint8]  # [height, width, 3]
    alpha: npt.NDArray[np.uint8] | None  # [height, width], 0: transparent; None where the file has no transparency
    full: tuple[int, int]


DecodePicture = Callable[[PictureJob], Picture]


def decode_picture(job: PictureJob) -> Picture:
    """Raises InvalidRequest where it is no picture, or one that is too large or broken."""
    param = job.param
    source = io.BytesIO(job.data) if job.path is None else job.path
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about oddities of a file; our own limit is below the library's
            with Image.open(source, formats=FORMATS) as image:  # reads no more than the header
                _check_size(*image.size, job)
                image.load()
                orientation = _orientation(image)
                rgb, alpha = to_rgb(image)
    except UnidentifiedImageError:
        raise InvalidRequest(f"{param!r} is no picture that is read here{_instead(job)}", param) from None
    except Image.DecompressionBombError:  # the library's own limit, which is above ours
        raise InvalidRequest(f"{param!r} has more pixels than the {_most(job)} that are accepted", param) from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        reason = str(error)
        if job.path is not None:
            reason = reason.replace(job.path, "the file")  # where it lies is nobody's business
        raise InvalidRequest(f"{param!r} can't be decoded: {reason}", param) from None
    if orientation is not None:
        rgb, alpha = rgb.transpose(orientation), alpha and alpha.transpose(orientation)
    if job.background is not None and alpha is not None:
        rgb = Image.composite(rgb, Image.new("RGB", rgb.size, job.background), alpha)
    full = rgb.size
    if job.fit is not None:
        rgb, alpha = _fitted(rgb, job.fit), alpha and _fitted(alpha, job.fit)
    return Picture(np.asarray(rgb), None if alpha is None else np.asarray(alpha), full)


def _check_size(width: int, height: int, job: PictureJob) -> None:
    param, most = job.param, _most(job)
    if width * height > most:
        raise InvalidRequest(f"{param!r} has {width} × {height} pixels, more than the {most} that are accepted", param)
    edge = (job.fit and job.fit.shortest_edge) or 0
    if edge * edge * max(width, height) > MAX_PIXELS * min(width, height):  # a thin strip grows when it is resized
        raise InvalidRequest(f"{param!r} is {width} × {height}, which is too long and thin", param)


def _instead(job: PictureJob) -> str:
    """What the file looks like, and what is read."""
    head = job.data[:HEAD]
    if job.path is not None:
        with open(job.path, "rb") as file:
            head = file.read(HEAD)
    found = other_format(head)
    return f"{f': it looks like {found}' if found else ''}; send {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"


def _most(job: PictureJob) -> int:
    return min(job.max_pixels or MAX_PIXELS, MAX_PIXELS)


def _orientation(image: Image.Image) -> Image.Transpose | None:
    try:
        return ORIENTATIONS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001  a camera's remarks can be broken in any way, and the picture be fine
        return None


def _fitted(image: Image.Image, fit: Fit) -> Image.Image:
    resample = Image.Resampling(fit.resample)
    wanted = (fit.width, fit.height)
    if fit.shortest_edge is None:
        return image if image.size == wanted else image.resize(wanted, resample)
    return _crop(_resize_shorter(image, fit.shortest_edge, resample), *wanted)


def _resize_shorter(image: Image.Image, edge: int, resample: Image.Resampling) -> Image.Image:
    width, height = image.size
    if width <= height:
        return image.resize((edge, int(edge * height / width)), resample)
    return image.resize((int(edge * width / height), edge), resample)


def _crop(image: Image.Image, width: int, height: int) -> Image.Image:
    """The middle; where the picture is smaller, black around it."""
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
