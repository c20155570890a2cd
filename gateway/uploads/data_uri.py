"""`data:` URIs (RFC 2397): a file inside a JSON string."""

import asyncio
import binascii
import re
from urllib.parse import unquote_to_bytes

from gateway.errors import ApiError, bad_request

# Characters decoded before others have their turn: a third of a millisecond of the event loop, 2 ms where each of them
# is percent-encoded.
TURN = 128 * 1024
MAX_HEADER = 1024  # characters of the media type and its parameters
UNKNOWN = ("", "application/octet-stream", "binary/octet-stream")  # media types that say nothing

_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_SPACE = b" \t\r\n\f\v"
_SCHEME = re.compile(r"\s*data:", re.IGNORECASE)


def is_data_uri(uri: str) -> bool:
    return _SCHEME.match(uri) is not None


async def decode_data_uri(uri: str, kind: str, at: str, max_bytes: int) -> bytes:
    """The bytes of a base64 `data:` URI whose media type is `kind/…`, or says nothing; whether it is true, whoever
    decodes the file sees from its bytes. `at` names the field, as the wire does.

    Taken is what clients send: the URL-safe alphabet, spaces and line breaks, no padding, percent-encoding. Raises
    ApiError (400; 413 for more than `max_bytes`).
    """
    scheme = _SCHEME.match(uri)
    if scheme is None:
        raise bad_request(at, f"{at!r} must be a data: URI.")
    comma = uri.find(",", scheme.end(), scheme.end() + MAX_HEADER)
    media_type, *parameters = (each.strip() for each in uri[scheme.end() : max(0, comma)].lower().split(";"))
    if comma < 0 or "base64" not in parameters:
        raise bad_request(at, f"{at!r} must be a data: URI in base64, data:{kind}/…;base64,….")
    if media_type not in UNKNOWN and not media_type.startswith(f"{kind}/"):
        raise bad_request(at, f"{at!r} must be a data: URI of the type {kind}/…, not {media_type[:40]!r}.")
    data = await _decode(uri, comma + 1, at, max_bytes)
    if not data:
        raise bad_request(at, f"{at!r} holds no data.")
    return bytes(data)


def too_large(at: str, max_bytes: int) -> ApiError:
    message = f"{at!r} is larger than the {max_bytes} bytes that are accepted."
    return ApiError(413, message, code="payload_too_large", param=at)


async def _decode(uri: str, start: int, at: str, max_bytes: int) -> bytearray:
    data = bytearray()
    behind = ""  # the beginning of a %XX
    rest = b""  # less than four digits
    try:
        for first in range(start, len(uri), TURN):
            if first > start:
                await asyncio.sleep(0)
            piece = behind + uri[first : first + TURN]
            percent = piece.find("%", max(0, len(piece) - 2))
            piece, behind = (piece, "") if percent < 0 else (piece[:percent], piece[percent:])
            digits = rest + _digits(piece)
            whole = len(digits) // 4 * 4
            if whole and data and len(data) % 3:
                raise binascii.Error("digits behind the padding")
            data += binascii.a2b_base64(digits[:whole], strict_mode=True)
            rest = digits[whole:]
            if len(data) > max_bytes:
                raise too_large(at, max_bytes)
        rest += _digits(behind)
        if rest and len(data) % 3:
            raise binascii.Error("digits behind the padding")
        data += binascii.a2b_base64(rest + b"=" * (-len(rest) % 4), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise bad_request(at, f"{at!r} is not valid base64.") from None
    if len(data) > max_bytes:
        raise too_large(at, max_bytes)
    return data


def _digits(piece: str) -> bytes:
    """Of base64's own alphabet, where they are any. Raises UnicodeEncodeError."""
    encoded = piece.encode("ascii")
    return (unquote_to_bytes(encoded) if b"%" in encoded else encoded).translate(_URL_SAFE, _SPACE)
