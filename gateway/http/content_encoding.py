"""Compressed request bodies (RFC 9110, section 8.4), decoded as they come and never further than asked for."""

import zlib
from asyncio import sleep
from collections.abc import Iterator
from typing import Protocol

from gateway.asgi import Message, Receive
from gateway.errors import ApiError, bad_request, payload_too_large

ACCEPTED = "gzip, deflate"
PIECE_BYTES = 256 * 1024  # what is decoded at a time
SLICE_BYTES = 16 * 1024  # of what was sent, that is looked at before others have their turn, however little it says

_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's window bits for each wrapper


class Decoder(Protocol):
    def decode(self, data: bytes) -> Iterator[bytes]:
        """What the next part of the body says, in pieces of PIECE_BYTES at most; one, maybe empty, for each
        SLICE_BYTES at least. Raises ApiError (400)."""
        ...

    def finish(self) -> None:
        """The body is over. Raises ApiError (400) where it was cut off."""
        ...


def decoder(encoding: bytes) -> Decoder | None:
    """For the value of a Content-Encoding header; None where the body is sent as it is. Raises ApiError (415)."""
    match encoding.strip().lower():
        case b"" | b"identity":
            return None
        case b"gzip" | b"x-gzip":
            return _Inflating("gzip", _GZIP)
        case b"deflate":
            return _Inflating("deflate", _ZLIB)
    message = f"The request body's content-encoding must be one of: {ACCEPTED}, or none."
    raise ApiError(415, message, code="unsupported_content_encoding", headers={"accept-encoding": ACCEPTED})


def decoded(receive: Receive, decoder: Decoder, max_bytes: int) -> Receive:
    """`receive`, with the body as its client meant it. Raises ApiError (400, and 413 beyond `max_bytes`)."""
    pieces: Iterator[bytes] = iter(())
    total = 0
    whole = finished = False

    async def receive_decoded() -> Message:
        nonlocal pieces, total, whole, finished
        while not finished:
            piece = next(pieces, None)
            if piece is not None:
                total += len(piece)
                if total > max_bytes:
                    raise payload_too_large(max_bytes)
                await sleep(0)  # a small message may become a long body: others have their turn
                if not piece:
                    continue
                return {"type": "http.request", "body": piece, "more_body": True}
            if whole:
                decoder.finish()
                finished = True
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await receive()
            if message["type"] != "http.request":
                return message
            pieces = decoder.decode(message["body"])
            whole = not message.get("more_body", False)
        return await receive()

    return receive_decoded


class _Inflating:
    """One stream of deflate after the other: a gzip body may have several members."""

    def __init__(self, name: str, wrapper: int) -> None:
        self._name = name
        self._wrapper = wrapper
        self._stream = zlib.decompressobj(wrapper)
        self._begun = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        if data and not self._begun:
            self._begun = True
            if self._wrapper == _ZLIB and data[0] & 0x0F != zlib.DEFLATED:  # some clients leave zlib's wrapper out
                self._stream = zlib.decompressobj(_RAW)
        for start in range(0, len(data), SLICE_BYTES):
            yield from self._inflated(data[start : start + SLICE_BYTES])
            yield b""
        # A stream may hold back output although it has taken all input.
        while not self._stream.eof and (piece := self._held()):
            yield piece

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        """Each member of a gzip body copies what is behind it, so `data` is SLICE_BYTES at most."""
        while data:
            if self._stream.eof:
                if self._wrapper != _GZIP:
                    raise self._broken()
                self._stream = zlib.decompressobj(self._wrapper)
            try:
                piece = self._stream.decompress(data, PIECE_BYTES)
            except zlib.error:
                raise self._broken() from None
            if piece:
                yield piece
            data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def finish(self) -> None:
        if self._begun and not self._stream.eof:
            raise self._broken()

    def _held(self) -> bytes:
        try:
            return self._stream.decompress(b"", PIECE_BYTES)
        except zlib.error:
            raise self._broken() from None

    def _broken(self) -> ApiError:
        return bad_request(None, f"The request body is not valid {self._name}.", code="invalid_content_encoding")
