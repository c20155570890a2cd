"""Servers on loopback addresses that stand for hosts of the web, and who was spoken to."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

from gateway.uploads.addresses import Address, Unresolved
from gateway.uploads.fetch import Fetcher

SITE, PRIVATE = "127.0.0.1", "127.0.0.2"  # one counts as public in these tests, the other does not
PICTURE = b"\x89PNG a picture " * 40

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = PICTURE, status: str = "200 OK", **headers: str) -> bytes:
    """An HTTP response; `content_length` and the like are headers."""
    given = {"content-length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    return answer(b"", status, location=to)


@dataclass
class Site:
    """Answers each path as `pages` says, and remembers the heads of what it was asked."""

    port: int
    pages: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            page = self.pages.get(head.split(" ")[1], answer(b"", "404 Not Found"))
            if isinstance(page, bytes):
                writer.write(page)
                await writer.drain()
            else:
                await page(writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def site(address: str = SITE, context: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    found = Site(0)
    server = await asyncio.start_server(found.serve, address, 0, ssl=context)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


class Names:
    """A resolver. Each name has a list of answers, the last of which goes on."""

    def __init__(self, **names: str | Sequence[str]) -> None:
        self._names = {name.replace("_", "."): list([of] if isinstance(of, str) else of) for name, of in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        self.asked.append(host)
        answers = self._names.get(host)
        if not answers:
            raise Unresolved
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(each) for each in found.split()]


def fetcher(names: Names, *hosts: str, timeout: float = 10.0, context: ssl.SSLContext | None = None) -> Fetcher:
    """One that takes SITE for public."""
    return Fetcher(hosts, networks=[ip_network(SITE)], timeout=timeout, resolve=names, context=context)


_recorders: list[list[tuple[str, Any]]] = []
_hooked: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _recorders and event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        what = arguments[1] if event != "socket.getaddrinfo" else arguments[0]
        for recorder in _recorders:
            recorder.append((event.removeprefix("socket."), what))


@contextmanager
def recorded() -> Iterator[list[tuple[str, Any]]]:
    """Every connection that this process makes, and every name that it looks up, by whatever library."""
    if not _hooked:
        sys.addaudithook(_audit)  # for the rest of the process: it can't be taken off
        _hooked.append(True)
    found: list[tuple[str, Any]] = []
    _recorders.append(found)
    try:
        yield found
    finally:
        _recorders.remove(found)
