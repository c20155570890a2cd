"""Every mode that Pillow has, in Pillow's memory and in files: the right colours, and the right opacity."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from pipelines.media.colours import to_rgb
from pipelines.media.messages import PictureJob
from pipelines.media.pictures import decode_picture

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
WIDE_RAMP = (np.arange(256) * 257).reshape(16, 16)  # the same in 16 bits
GREY = Image.fromarray(RAMP)
COLOURS = Image.merge("RGB", [GREY, GREY.rotate(90), GREY.rotate(180)])
SHAPE = GREY.rotate(270)  # of the opacity


def in_mode(mode: str) -> Image.Image:
    """The ramp of greys or the colours, with SHAPE's opacity where the mode has any."""
    match mode:
        case "1":
            return GREY.point(lambda value: 255 if value > 100 else 0).convert("1")
        case "I;16" | "I;16L":
            return wide(mode, "<u2")
        case "I;16B":
            return wide(mode, ">u2")
        case "I;16N":
            return wide(mode, "=u2")
        case "I":
            return Image.fromarray(WIDE_RAMP.astype(np.int32))
        case "F":
            return Image.fromarray(RAMP.astype(np.float32) / 255)
        case "LA":
            return Image.merge("LA", [GREY, SHAPE])
        case "La":
            return Image.merge("LA", [GREY, SHAPE]).convert("La")
        case "RGBA" | "RGBa":
            return Image.merge("RGBA", [*COLOURS.split(), SHAPE]).convert(mode)
        case "PA":
            image = GREY.convert("P").convert("PA")
            image.putalpha(SHAPE)
            return image
        case "P":
            return GREY.convert("P")
        case "LAB":
            lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
            found = ImageCms.applyTransform(COLOURS, ImageCms.buildTransform(rgb, lab, "RGB", "LAB"))
            assert found is not None
            return found
        case "L":
            return GREY
        case "RGBX":
            return COLOURS.convert("RGBX")
        case _:
            return COLOURS.convert(mode)


def wide(mode: str, dtype: str) -> Image.Image:
    return Image.frombytes(mode, GREY.size, WIDE_RAMP.astype(dtype).tobytes())


# How far a channel may be from the truth: what the mode itself has lost.
LOST = {"YCbCr": 3, "HSV": 8, "LAB": 30, "RGBa": 255, "La": 255}
OF_COLOURS = ("RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


@pytest.mark.parametrize("mode", Image.MODES)
def test_every_mode_is_right(mode: str) -> None:
    image = in_mode(mode)
    assert image.mode == mode
    rgb, alpha = to_rgb(image)
    assert rgb.mode == "RGB"
    wanted = np.asarray(COLOURS if mode in OF_COLOURS else GREY.convert("RGB")).astype(int)
    if mode == "1":
        wanted = np.where(wanted > 100, 255, 0)
    off = np.abs(np.asarray(rgb).astype(int) - wanted)
    if mode in ("RGBa", "La"):  # where little is seen, little is known of its colour
        off[np.asarray(SHAPE) < 128] = 0
        assert off.max() <= 2
    assert off.max() <= LOST.get(mode, 0)
    assert off.mean() <= 2
    if mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        assert alpha is not None
        np.testing.assert_array_equal(np.asarray(alpha), np.asarray(SHAPE))
    else:
        assert alpha is None


def read(image: Image.Image, format: str = "PNG", **options: Any) -> tuple[Any, Any]:
    file = io.BytesIO()
    image.save(file, format, **options)
    picture = decode_picture(PictureJob(data=file.getvalue(), param="image"))
    return picture.rgb, picture.alpha


def test_a_16_bit_grey_png_is_no_white_picture() -> None:
    rgb, alpha = read(wide("I;16", "<u2"))
    np.testing.assert_array_equal(rgb, np.asarray(GREY.convert("RGB")))
    assert alpha is None
    rgb, alpha = read(wide("I;16", "<u2"), transparency=7 * 257)
    np.testing.assert_array_equal(rgb, np.asarray(GREY.convert("RGB")))
    np.testing.assert_array_equal(alpha, np.where(RAMP == 7, 0, 255))


def test_cmyk_of_a_jpeg() -> None:
    rgb, _ = read(COLOURS.convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert np.abs(rgb.astype(int) - np.asarray(COLOURS)).mean() < 8


@pytest.mark.parametrize(
    ("image", "key", "clear"),
    [
        (GREY.convert("P"), 9, RAMP == 9),
        (GREY.convert("P"), bytes(range(256)), None),
        (GREY, 9, RAMP == 9),
        (COLOURS, COLOURS.getpixel((3, 0)), None),
        (in_mode("1"), 0, RAMP <= 100),
    ],
    ids=["index", "palette", "grey", "colour", "bit"],
)
def test_a_transparent_colour_is_alpha(image: Image.Image, key: Any, clear: Any) -> None:
    rgb, alpha = read(image, transparency=key)
    np.testing.assert_array_equal(rgb, np.asarray(image.convert("RGB")))
    if isinstance(key, bytes):
        np.testing.assert_array_equal(alpha, RAMP)
    elif clear is None:
        assert alpha[0, 3] == 0
        assert (alpha == 0).sum() == 1
    else:
        np.testing.assert_array_equal(alpha, np.where(clear, 0, 255))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 100.4, 255.0]], np.float32), [0, 100, 255]),
        (np.array([[0.0, 25700.0, 65535.0]], np.float32), [0, 100, 255]),
        (np.array([[-3.0, np.nan, np.inf, -np.inf, 0.5]], np.float32), [0, 0, 255, 0, 128]),
        (np.array([[-7, 0, 100, 255]], np.int32), [0, 0, 100, 255]),
        (np.array([[0, 25700, 65535]], np.int32), [0, 100, 255]),
        (np.array([[0, 2**30, 2**31 - 1]], np.int32), [0, 64, 128]),
    ],
)
def test_grey_of_unknown_range_has_the_smallest_that_holds_it(values: Any, wanted: list[int]) -> None:
    rgb, _ = to_rgb(Image.fromarray(values))
    np.testing.assert_array_equal(np.asarray(rgb)[0, :, 0], wanted)


@pytest.mark.parametrize("orientation", [*range(10), 77])
@pytest.mark.parametrize("mode", ["RGBA", "I;16", "LA"])
def test_every_turn_of_a_camera(orientation: int, mode: str) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    image = in_mode(mode).resize((16, 8))
    rgb, alpha = read(image, exif=exif)
    plain, shape = to_rgb(image)
    plain.getexif()[0x0112] = orientation
    np.testing.assert_array_equal(rgb, np.asarray(ImageOps.exif_transpose(plain)))
    if shape is not None:
        shape.getexif()[0x0112] = orientation
        np.testing.assert_array_equal(alpha, np.asarray(ImageOps.exif_transpose(shape)))


def test_a_broken_remark_of_a_camera_does_not_matter() -> None:
    rgb, _ = read(COLOURS, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    np.testing.assert_array_equal(rgb, np.asarray(COLOURS))
