"""Formats of pictures: those that are read, and others by their names, for whoever sends one."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")
HEAD = 1024  # bytes of a file that tell its format

# Where it is in a file, what is there, and what that is.
_SIGNATURES = (
    (4, b"ftypheic", "HEIC"),
    (4, b"ftypheix", "HEIC"),
    (4, b"ftypheim", "HEIC"),
    (4, b"ftyphevc", "HEIC"),
    (4, b"ftypmif1", "HEIF"),
    (4, b"ftypmsf1", "HEIF"),
    (4, b"ftyp", "a video"),
    (0, b"\x1a\x45\xdf\xa3", "a video"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"\0\0\1\0", "ICO"),
    (0, b"8BPS", "PSD"),
    (0, b"%PDF", "PDF"),
    (0, b"\xff\x0a", "JPEG XL"),
    (4, b"JXL ", "JPEG XL"),
    (4, b"jP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
)


def other_format(head: bytes) -> str | None:
    """What the first HEAD bytes of a file say that it is, where that is none of FORMATS."""
    for at, sign, name in _SIGNATURES:
        if head.startswith(sign, at) and not head.startswith(b"ftypavi", at):
            return name
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"<svg") or (text.startswith((b"<?xml", b"<!doctype svg", b"<!--")) and b"<svg" in text):
        return "SVG"
    return "HTML" if text.startswith((b"<!doctype html", b"<html")) else None
