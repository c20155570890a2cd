import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from models.embedder.embedder_config import ImageConfig, read_embedder
from pipelines.base import InvalidRequest
from pipelines.embedding.images import load_pixels
from pipelines.media.pictures import decode_picture
from tests.models.checkpoints import write

SQUARE = ImageConfig(
    height=8,
    width=8,
    shortest_edge=None,
    resample=3,
    scale=1 / 255,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    tokens=4,
)


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def picture(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def png_of_size(width: int, height: int) -> bytes:
    """A header that promises so many pixels, and no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(40_000, 40_000), (1, 60_000_000)])
def test_size_is_refused_from_the_header_before_anything_is_decoded(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(*_: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded)
    with pytest.raises(InvalidRequest, match="than the 50000000 that are accepted") as refused:
        load_pixels(decode_picture, png_of_size(*size), SQUARE, "input[2]")
    assert refused.value.param == "input[2]"


def test_a_strip_that_would_grow_when_it_is_resized_is_refused(tmp_path: Path) -> None:
    config = clip_config(tmp_path)
    with pytest.raises(InvalidRequest, match="too long and thin"):
        load_pixels(decode_picture, png_of_size(1, 1_000_000), config, "input[0]")


@pytest.mark.parametrize(
    "data",
    [b"no picture", b"", encoded(picture(30, 30))[:-200], encoded(picture(30, 30), "JPEG")[:80], png_of_size(4, 4)],
)
def test_what_is_no_picture_is_named(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        load_pixels(decode_picture, data, SQUARE, "input[1]")
    assert refused.value.param == "input[1]"


def test_formats_that_run_other_programs_are_not_opened() -> None:
    with pytest.raises(InvalidRequest, match="no picture"):
        load_pixels(decode_picture, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", SQUARE, "input[0]")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_formats_and_modes(format: str, mode: str) -> None:
    if (format, mode) == ("JPEG", "P"):
        mode = "CMYK"
    pixels = load_pixels(decode_picture, encoded(picture(20, 10).convert(mode), format), SQUARE, "input[0]")
    assert pixels.shape == (3, 8, 8)
    assert pixels.dtype == np.float32
    assert -1 <= pixels.min() <= pixels.max() <= 1


def test_a_photo_is_turned_upright() -> None:
    image = picture(16, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90°
    turned = encoded(image.rotate(90), exif=exif)
    np.testing.assert_array_equal(
        load_pixels(decode_picture, turned, SQUARE, "input[0]"),
        load_pixels(decode_picture, encoded(image), SQUARE, "input[0]"),
    )


def clip_config(folder: Path) -> ImageConfig:
    write(folder / "config.json", {"model_type": "clip", "vision_config": {"image_size": 24, "patch_size": 8}})
    processor = {
        "size": {"shortest_edge": 24},
        "crop_size": {"height": 24, "width": 24},
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    write(folder / "preprocessor_config.json", processor)
    image = read_embedder(folder).image
    assert image is not None
    assert image.tokens == 10
    return image


@pytest.mark.parametrize("size", [(60, 31), (31, 60), (24, 24), (10, 14), (500, 333)])
def test_pixels_are_those_of_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    image = picture(*size)
    clip = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    wanted = clip(image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(
        load_pixels(decode_picture, encoded(image), clip_config(tmp_path), ""), wanted, atol=1e-5
    )

    siglip = SiglipImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    wanted = siglip(image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(load_pixels(decode_picture, encoded(image), SQUARE, ""), wanted, atol=1e-5)
