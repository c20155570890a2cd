"""The one way from an address that a caller names to bytes, for hosts that the operator allows.

Each address, a redirect's too, is parsed once, its host has to be listed, its name is resolved once, everything that
it resolves to has to be public, and the connection goes to what was resolved and checked.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import cached_property
from typing import Protocol
from urllib.parse import urljoin

from gateway.location import BadLocation, Hosts, Location, parse_location
from gateway.uploads.addresses import Address, Network, Resolve, Unresolved, is_public, resolve

MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
AT_ONCE = 32  # fetches, of all requests together


class FetchRefused(Exception):
    """It is not fetched, or could not be; the text says why to the caller, without a subject."""


class TooLarge(FetchRefused):
    """It has more bytes than are accepted."""


class Response(Protocol):
    """The head of an answer, whose body is still to come."""

    @property
    def status(self) -> int: ...

    def header(self, name: str) -> str | None: ...

    async def read(self) -> bytes:
        """The next bytes of the body, as they were sent; b"" at its end."""
        ...

    async def close(self) -> None: ...


# Asks one of the addresses, the first that answers; nothing else is connected to. Raises OSError.
Get = Callable[[Location, Sequence[Address], ssl.SSLContext], Awaitable[Response]]


class Fetcher:
    """Of one gateway."""

    def __init__(
        self,
        hosts: Collection[str],
        *,
        networks: Collection[Network] = (),
        timeout: float = 10.0,
        resolve: Resolve = resolve,
        get: Get | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`networks`: where the hosts may be beside the Internet. `timeout`: seconds for all of one fetch, redirects
        included. Raises BadLocation for a host that is none."""
        self._hosts = Hosts(hosts)
        self._networks = tuple(networks)
        self._timeout = timeout
        self._resolve = resolve
        self._context = context
        self._places = asyncio.Semaphore(AT_ONCE)
        if get is not None:
            self._get = get
        elif self._hosts:  # the library takes a while to import: now, rather than while requests are answered
            from gateway.uploads.http_get import get as over_http

            self._get = over_http

    async def fetch(self, url: str, max_bytes: int, took: Callable[[int], None] = lambda _: None) -> bytes:
        """The file at an address. `took` is told of bytes as they come, and may raise. Raises FetchRefused."""
        location = self._checked(url)
        async with self._places:
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._follow(location, max_bytes, took)
            except TimeoutError:
                raise FetchRefused(f"did not arrive within {self._timeout:g} s") from None
            except OSError:
                raise FetchRefused("could not be fetched: its host does not answer as it should") from None

    async def _follow(self, location: Location, max_bytes: int, took: Callable[[int], None]) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._get(location, await self._addresses(location), self._tls)
            try:
                if response.status in REDIRECTS and (target := response.header("location")) is not None:
                    location = self._checked(_joined(location, target), "leads to an address that ")
                elif response.status == 200:
                    return await _body(response, max_bytes, took)
                else:
                    raise FetchRefused(f"could not be fetched: its host answered with the status {response.status}")
            finally:
                await response.close()
        raise FetchRefused(f"could not be fetched: it is redirected more than {MAX_REDIRECTS} times")

    def _checked(self, url: str, subject: str = "") -> Location:
        try:
            location = parse_location(url)
        except BadLocation as error:
            raise FetchRefused(f"{subject}{error}") from None
        if not self._hosts:
            raise FetchRefused(
                f"{subject}would have to be fetched, which no host is allowed for here (server.image_hosts is empty); "
                "send the image as a data: URI"
            )
        if location not in self._hosts:
            raise FetchRefused(
                f"{subject}is on {location.authority!r}, which is not among the hosts that images are fetched from "
                "(server.image_hosts); send the image as a data: URI"
            )
        return location

    async def _addresses(self, location: Location) -> Sequence[Address]:
        try:
            addresses = await self._resolve(location.host, location.port)
        except Unresolved:
            addresses = ()
        if not addresses:
            raise FetchRefused(f"could not be fetched: there is no host {location.host!r}")
        if not all(is_public(address, self._networks) for address in addresses):
            raise FetchRefused(f"is on {location.host!r}, whose address is not public; such are not fetched from")
        return addresses

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._context or ssl.create_default_context()


def _joined(location: Location, target: str) -> str:
    """Where a redirect leads; whatever that is, it is yet to be read and checked."""
    try:
        return urljoin(location.url, target)
    except ValueError:  # no address in brackets
        return target


async def _body(response: Response, max_bytes: int, took: Callable[[int], None]) -> bytes:
    if (response.header("content-encoding") or "identity").strip().lower() != "identity":
        raise FetchRefused("could not be fetched: its host compresses it, which it was not asked to")
    length = response.header("content-length") or ""
    if length.isdigit() and int(length) > max_bytes:
        raise TooLarge(f"is larger than the {max_bytes} bytes that are accepted")
    data = bytearray()
    while piece := await response.read():
        took(len(piece))
        data += piece
        if len(data) > max_bytes:
            raise TooLarge(f"is larger than the {max_bytes} bytes that are accepted")
    if not data:
        raise FetchRefused("holds no data")
    return bytes(data)
