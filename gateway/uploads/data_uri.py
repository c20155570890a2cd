"""`data:` URIs (RFC 2397): a file inside a JSON string."""

import base64
import binascii
from urllib.parse import unquote_to_bytes

from gateway.errors import bad_request


def decode_data_uri(uri: str, kind: str, at: str) -> bytes:
    """The bytes of a base64 `data:` URI whose media type is `kind/…`. `at` names the field, as the wire does.

    Missing padding is put back: many clients strip it. Raises ApiError (400).
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme.lower() != "data":
        raise bad_request(at, f"{at!r} must be a data: URI; other addresses are not fetched.")
    header, comma, payload = rest.partition(",")
    media_type, *parameters = header.lower().split(";")
    if not comma or "base64" not in (each.strip() for each in parameters):
        raise bad_request(at, f"{at!r} must be a data: URI in base64, data:{kind}/…;base64,….")
    if media_type and not media_type.strip().startswith(f"{kind}/"):
        raise bad_request(at, f"{at!r} must be a data: URI of the type {kind}/…, not {media_type[:40]!r}.")
    encoded = unquote_to_bytes(payload) if "%" in payload else payload.encode()
    try:
        data = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        raise bad_request(at, f"{at!r} is not valid base64.") from None
    if not data:
        raise bad_request(at, f"{at!r} holds no data.")
    return data
