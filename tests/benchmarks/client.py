"""A small HTTP client: kept connections, parsing in C, a stamp for each piece of a body."""

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar, cast

import httptools
import msgspec
import uvloop

from tests.benchmarks.processes import MeasurementFailed

T = TypeVar("T")

_TEXT = re.compile(rb'"(?:text|content)":"(?!")')


def run(main: Coroutine[Any, Any, T]) -> T:
    result: T = uvloop.run(main)
    return result


@dataclass(slots=True)
class Reply:
    status: int = 0
    sent: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)  # (received, part of the body)

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def stamps(self) -> list[float]:
        """Of the stream's events that carry text, seconds since the request was sent."""
        return [received - self.sent for received, piece in self.pieces for _ in _TEXT.finditer(piece)]


class Connection(asyncio.Protocol):
    """One kept connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self.reply = Reply()  # of the request that is open, or was
        self._done: asyncio.Future[Reply] | None = None
        self._parser = httptools.HttpResponseParser(self)

    @classmethod
    async def open(cls, port: int) -> "Connection":
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """Raises ConnectionError where the server hangs up."""
        lines = {"content-type": "application/json", **(headers or {})}
        assert self._transport is not None
        self.reply = Reply(sent=monotonic())
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\n%bcontent-length: %d\r\n\r\n%b"
            % (path.encode(), "".join(f"{name}: {line}\r\n" for name, line in lines.items()).encode(), len(body), body)
        )
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server hung up"))

    def on_body(self, body: bytes) -> None:
        self.reply.pieces.append((monotonic(), body))

    def on_message_complete(self) -> None:
        self.reply.status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        assert self._done is not None
        self._done.set_result(self.reply)


def encode(body: object) -> bytes:
    return msgspec.json.encode(body)


async def post(port: int, path: str, body: object, headers: Mapping[str, str] | None = None) -> Reply:
    """One request on a connection of its own, which is closed where the caller leaves. `body`: bytes as they are."""
    connection = await Connection.open(port)
    try:
        return await connection.post(path, body if isinstance(body, bytes) else encode(body), headers)
    finally:
        connection.close()


async def upload(port: int, path: str, fields: Mapping[str, str], name: str, data: bytes) -> Reply:
    """A form with one file."""
    parts = [f'content-disposition: form-data; name="{field}"\r\n\r\n{text}' for field, text in fields.items()]
    head = "".join(f"--part\r\n{part}\r\n" for part in parts)
    head += f'--part\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = head.encode() + data + b"\r\n--part--\r\n"
    return await post(port, path, body, {"content-type": "multipart/form-data; boundary=part"})


async def saturate(port: int, path: str, body: bytes, *, connections: int, requests: int) -> float:
    """Seconds that equal requests take, `connections` at a time. Raises MeasurementFailed for an answer but 200."""
    opened = [await Connection.open(port) for _ in range(connections)]
    left = iter(range(requests))

    async def client(connection: Connection) -> None:
        for _ in left:
            reply = await connection.post(path, body)
            if reply.status != 200:
                raise MeasurementFailed(f"{reply.status}: {reply.body!r}")

    start = monotonic()
    await asyncio.gather(*map(client, opened))
    elapsed = monotonic() - start
    for connection in opened:
        connection.close()
    return elapsed


def completion(model: str, prompt: str | Sequence[int], tokens: int, *, stream: bool = True) -> dict[str, object]:
    """A greedy completion of exactly `tokens`."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
