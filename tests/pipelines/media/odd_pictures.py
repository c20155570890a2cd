"""Pictures as the world has them: four quarters of different colours in every form of file, and files that are none."""

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

Colour = tuple[int, int, int]

WIDTH, HEIGHT = 16, 8
RED, GREEN, BLUE, YELLOW, WHITE = (220, 30, 30), (20, 200, 40), (30, 40, 220), (230, 220, 20), (255, 255, 255)
QUARTERS = (RED, GREEN, BLUE, YELLOW)  # upper left, upper right, lower left, lower right


@dataclass(frozen=True, slots=True)
class Odd:
    """One file, and what its quarters are: colours that are `off` by so much at most."""

    data: bytes
    quarters: tuple[Colour, ...] = QUARTERS
    off: int = 0
    size: tuple[int, int] = (WIDTH, HEIGHT)


def quarters(size: tuple[int, int] = (WIDTH, HEIGHT), colours: tuple[Colour, ...] = QUARTERS) -> Image.Image:
    image = Image.fromarray(np.array(colours, np.uint8).reshape(2, 2, 3))
    return image.resize(size, Image.Resampling.NEAREST)


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def greys(colours: tuple[Colour, ...] = QUARTERS) -> tuple[Colour, ...]:
    grey = np.asarray(quarters((2, 2), colours).convert("L")).reshape(-1).tolist()
    return tuple((each, each, each) for each in grey)


# --- PNG, as no library writes it -------------------------------------------------------------------------------------


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(rows: npt.NDArray[Any], colour: int, *, interlaced: bool = False, more: bytes = b"") -> bytes:
    """Of [height, width, channels] of 8 or 16 bits. `colour`: its type, 2 for RGB. `more`: chunks before the pixels."""
    height, width = rows.shape[:2]
    bits = rows.dtype.itemsize * 8
    pixels = _passes(rows) if interlaced else [rows]
    lines = b"".join(b"\0" + line.astype(f">u{bits // 8}").tobytes() for each in pixels if each.size for line in each)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced)))
    return b"\x89PNG\r\n\x1a\n" + header + more + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND")


def _passes(rows: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Adam7's."""
    starts = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    return [rows[y::down, x::right] for y, x, down, right in starts]


def png_header(width: int, height: int) -> bytes:
    """One that promises so many pixels, and a few."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND")


# --- JPEG -------------------------------------------------------------------------------------------------------------


def ycck() -> bytes:
    """As Adobe's programs write pictures for print: the inks but black as luminance and chrominance."""
    inks = Image.eval(quarters(), lambda value: 255 - value).convert("YCbCr")
    stored = [*inks.split(), Image.new("L", inks.size, 255)]  # no black
    # The library stores the complement of what it is given.
    given = [Image.eval(each, lambda value: 255 - value) for each in stored]
    file = saved(Image.merge("CMYK", given), "JPEG", quality=95)
    at = file.index(b"Adobe") + 11
    return file[:at] + b"\2" + file[at + 1 :]


def turned(orientation: int) -> Odd:
    """A camera's, held in one of eight ways; upright it is what the others are."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }.get(orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = quarters((64, 32))
    return Odd(saved(image.transpose(undo) if undo is not None else image, "JPEG", exif=exif), off=16, size=(64, 32))


# --- all of them ------------------------------------------------------------------------------------------------------


def fine() -> dict[str, Odd]:
    image, large = quarters(), quarters((64, 32))  # JPEG works in blocks, which a border must not cross
    pixels = np.asarray(image)
    other = quarters(colours=(BLUE, RED, RED, RED))
    clear = Image.merge("L", [Image.new("L", (2, 2), 255)])
    clear.putpixel((0, 0), 0)
    clear = clear.resize(image.size, Image.Resampling.NEAREST)
    alpha = image.copy()
    alpha.putalpha(clear)
    grey_alpha = Image.merge("LA", [image.convert("L"), clear])
    palette = image.quantize(4)
    index = palette.getpixel((0, 0))
    half = Image.merge("RGBA", [*image.split(), Image.new("L", image.size, 128)])
    halves = tuple(tuple(round((value * 128 + 255 * 127) / 255) for value in each) for each in QUARTERS)
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    one = Image.new("RGB", (1, 1), RED)
    over_white = (WHITE, *QUARTERS[1:])
    text = chunk(b"tEXt", b"Comment\0" + b"x" * 100_000)
    return {
        "png": Odd(saved(image, "PNG")),
        "png-interlaced": Odd(png(pixels, 2, interlaced=True)),
        "png-palette": Odd(saved(palette, "PNG")),
        "png-palette-clear": Odd(saved(palette, "PNG", transparency=index), over_white),
        "png-rgba": Odd(saved(alpha, "PNG"), over_white),
        "png-half-clear": Odd(saved(half, "PNG"), halves, 1),  # type: ignore[arg-type]
        "png-clear-colour": Odd(saved(image, "PNG", transparency=RED), over_white),
        "png-grey": Odd(saved(image.convert("L"), "PNG"), greys()),
        "png-grey-alpha": Odd(saved(grey_alpha, "PNG"), greys((WHITE, *QUARTERS[1:]))),
        "png-1-bit": Odd(
            saved(image.convert("L").point(lambda value: 255 * (value > 100)).convert("1"), "PNG"),
            tuple((255, 255, 255) if each[0] > 100 else (0, 0, 0) for each in greys()),
        ),
        "png-16-bit-grey": Odd(png(np.asarray(image.convert("L")).astype(np.uint16)[..., None] * 257, 0), greys()),
        "png-16-bit-rgb": Odd(png(pixels.astype(np.uint16) * 257, 2)),
        "png-much-behind-its-pixels": Odd(saved(image, "PNG") + bytes(1 << 20)),
        "png-long-comment": Odd(png(pixels, 2, more=text)),
        "png-animated": Odd(saved(image, "PNG", save_all=True, append_images=[other])),
        "jpeg": Odd(saved(large, "JPEG"), off=16, size=large.size),
        "jpeg-progressive": Odd(saved(large, "JPEG", progressive=True), off=16, size=large.size),
        "jpeg-grey": Odd(saved(large.convert("L"), "JPEG"), greys(), 16, large.size),
        "jpeg-cmyk": Odd(saved(large.convert("CMYK"), "JPEG"), off=16, size=large.size),
        "jpeg-ycck": Odd(ycck(), off=24),
        "jpeg-profile": Odd(saved(large, "JPEG", icc_profile=srgb), off=16, size=large.size),
        "jpeg-broken-profile": Odd(saved(large, "JPEG", icc_profile=b"no profile"), off=16, size=large.size),
        "jpeg-broken-exif": Odd(saved(large, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), off=16, size=large.size),
        "jpeg-several": Odd(saved(large, "MPO", save_all=True, append_images=[other]), off=16, size=large.size),
        "gif": Odd(saved(palette, "GIF")),
        "gif-clear": Odd(saved(palette, "GIF", transparency=index), over_white),
        "gif-animated": Odd(saved(image, "GIF", save_all=True, append_images=[other], loop=0)),
        "webp": Odd(saved(large, "WEBP"), off=24, size=large.size),
        "webp-lossless": Odd(saved(image, "WEBP", lossless=True)),
        "webp-clear": Odd(saved(alpha, "WEBP", lossless=True), over_white),
        "webp-animated": Odd(saved(image, "WEBP", lossless=True, save_all=True, append_images=[other])),
        "bmp": Odd(saved(image, "BMP")),
        "avif": Odd(saved(large, "AVIF", quality=95), off=24, size=large.size),
        "avif-clear": Odd(saved(alpha.resize((64, 32), 0), "AVIF", quality=95), over_white, 24, (64, 32)),
        "one-pixel": Odd(saved(one, "PNG"), (RED,) * 4, size=(1, 1)),
        "strip": Odd(saved(quarters((8000, 10)), "PNG"), size=(8000, 10)),
        **{f"turned-{number}": turned(number) for number in range(1, 9)},
    }


def refused() -> dict[str, tuple[bytes, str]]:
    """Files, and what the refusal has in it."""
    noise = Image.frombytes("RGB", (64, 64), np.random.default_rng(0).bytes(64 * 64 * 3))
    cut = {format: saved(noise, format) for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")}
    read, pixels, broken = "send PNG, JPEG, WEBP, GIF, BMP or AVIF", "pixels", "can't be decoded|no picture"
    gif = b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0)
    gif += b"\x2c" + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
    bmp = b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, 100_000, 100_000, 1, 24, 0, 0, 0, 0, 0, 0)
    vp8l = b"\x2f" + struct.pack("<I", 16383 - 1 | (16383 - 1) << 14) + bytes(20)
    webp = b"RIFF" + struct.pack("<I", 12 + len(vp8l)) + b"WEBPVP8L" + struct.pack("<I", len(vp8l)) + vp8l
    jpeg = bytearray(saved(noise, "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 65500, 65500)
    return {
        "empty": (b"", read),
        "text": (b"no picture", read),
        "html": (b"<!DOCTYPE html><p>Sign in", "looks like HTML"),
        "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "looks like SVG"),
        "svg-with-a-head": (b'\xef\xbb\xbf<?xml version="1.0"?>\n<svg/>', "looks like SVG"),
        "heic": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "looks like HEIC"),
        "video": (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "looks like a video"),
        "tiff": (saved(noise, "TIFF"), "looks like TIFF"),
        "ico": (saved(noise, "ICO", sizes=[(16, 16)]), "looks like ICO"),
        "psd": (b"8BPS\0\1" + bytes(200), "looks like PSD"),
        "pdf": (saved(noise, "PDF"), "looks like PDF"),
        "jpeg-2000": (saved(noise, "JPEG2000"), "looks like JPEG 2000"),
        "ppm": (saved(noise, "PPM"), read),
        "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", read),
        **{f"cut-{format.lower()}": (data[: len(data) // 2], broken) for format, data in cut.items()},
        "bomb-png": (png_header(100_000, 100_000), pixels),
        "bomb-png-of-a-line": (png_header(2**31 - 1, 1), pixels),
        "bomb-gif": (gif + b"\2\2\x44\1\0\x3b", pixels),
        "bomb-bmp": (bmp, pixels),
        "bomb-webp": (webp, f"{pixels}|{broken}|memory"),
        "bomb-jpeg": (bytes(jpeg), pixels),
        "bomb-comment": (png(np.asarray(noise), 2, more=_comment(200 << 20)), broken),
        "no-size-png": (png_header(0, 0), broken),
    }


def _comment(size: int) -> bytes:
    squeeze = zlib.compressobj(9)
    data = b"".join([*(squeeze.compress(bytes(1 << 20)) for _ in range(size >> 20)), squeeze.flush()])
    return chunk(b"zTXt", b"Comment\0\0" + data)
