"""What the endpoints that embed and rank have in common: bodies of texts, each checked by name."""

import json
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import Meta

from gateway.errors import ApiError, bad_request, decode_body
from pipelines.messages.embedding import Truncate

T = TypeVar("T")

# For the schema, of what is refused by whoever reads it: the error says more than msgspec's would.
NOT_EMPTY = Meta(extra_json_schema={"minLength": 1})

TruncateName = Literal["none", "start", "end", "NONE", "START", "END"]  # Cohere's clients write it in capitals

# Slots that one request holds at most: beyond them its inputs wait behind each other and keep nobody else out.
MAX_UNITS = 32


def units(inputs: int) -> int:
    return min(inputs, MAX_UNITS)


def decode_texts(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A body of texts. Raises ApiError (400), which names the field of a lone surrogate too: in Python such strings are
    common, and JSON can spell them, but they are no text."""
    try:
        return decode_body(raw, decoder)
    except ApiError as error:
        if error.code == "invalid_json" and (at := _lone_surrogate(raw)) is not None:
            raise bad_request(at, f"{at!r} contains half of a surrogate pair, which is no character.") from None
        raise


def truncation(truncate: TruncateName | None, cut: bool | None) -> Truncate | None:
    """Which end of an over-long text is cut off, by its two names; None: neither is there. Raises ApiError (400)."""
    names: dict[str, Truncate] = {"none": "none", "start": "start", "end": "end"}
    found = None if truncate is None else names[truncate.lower()]
    if cut is None:
        return found
    if found is None:
        return "end" if cut else "none"
    if cut != (found != "none"):
        raise bad_request("truncation", "'truncation' and 'truncate' contradict each other; leave one of them out.")
    return found


def same(*given: tuple[str, T | None]) -> T | None:
    """The value of a field that has several names. Raises ApiError (400) where two of them have values that differ."""
    values = [(name, value) for name, value in given if value is not None]
    for name, value in values[1:]:
        if value != values[0][1]:
            raise bad_request(name, f"{name!r} and {values[0][0]!r} are the same thing; leave one of them out.")
    return values[0][1] if values else None


def renamed(*fields: Sequence[tuple[str, object]]) -> dict[str, str]:
    """What the client calls fields that have several names, each with its usual name first; only those that it calls
    by another one. See `pipelines.messages.names`."""
    found: dict[str, str] = {}
    for (usual, value), *others in fields:
        for name, other in others if value is None else ():
            if other is not None:
                found[usual] = name
    return found


def check_text(text: str, at: str) -> str:
    """The text, if it has characters that can be embedded. Raises ApiError (400)."""
    if not text:
        raise bad_request(at, f"{at!r} is empty; there is nothing to embed.")
    if "\0" in text:
        raise bad_request(at, f"{at!r} contains a NUL character.")
    return text


def _lone_surrogate(raw: bytes) -> str | None:
    """The path of the first string that can't be encoded; None where the body is broken in another way."""
    try:
        body: object = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    for path, text in _strings(body, ""):
        try:
            text.encode()
        except UnicodeEncodeError:
            return path
    return None


def _strings(value: object, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield path, value
        case list():
            for index, each in enumerate(value):
                yield from _strings(each, f"{path}[{index}]")
        case dict():
            for key, each in value.items():
                yield from _strings(each, f"{path}.{key}".removeprefix("."))
