"""One GET over a connection of its own, to an address that is known: no name is looked up, and nothing but the address
and the file's name goes out. No cookies, no credentials, no proxy of the environment."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import httpcore

from gateway import __version__
from gateway.location import Location
from gateway.uploads.addresses import Address

CONNECT_S = 3.0  # for each address but the last

_NETWORK = httpcore.AnyIOBackend()


async def get(location: Location, addresses: Sequence[Address], context: ssl.SSLContext) -> "HttpResponse":
    """Its head. Raises OSError."""
    connection = httpcore.AsyncHTTPConnection(
        httpcore.Origin(location.scheme.encode(), location.host.encode(), location.port),
        ssl_context=context,
        network_backend=_Pinned(addresses),
    )
    url = httpcore.URL(
        scheme=location.scheme.encode(),
        host=location.host.encode(),
        port=location.port,
        target=location.target.encode(),
    )
    headers: list[tuple[bytes | str, bytes | str]] = [
        ("Host", location.authority),
        ("Accept", "image/*"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", f"multimodal-gateway/{__version__}"),
        ("Connection", "close"),
    ]
    try:
        with _errors():
            response = await connection.handle_async_request(httpcore.Request(b"GET", url, headers=headers))
    except BaseException:
        await connection.aclose()
        raise
    return HttpResponse(connection, response)


class HttpResponse:
    """See `gateway.uploads.fetch.Response`."""

    def __init__(self, connection: httpcore.AsyncHTTPConnection, response: httpcore.Response) -> None:
        self._connection = connection
        self._headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        self._pieces: AsyncIterator[bytes] = response.aiter_stream()
        self.status = response.status

    def header(self, name: str) -> str | None:
        return self._headers.get(name.encode())

    async def read(self) -> bytes:
        with _errors():
            async for piece in self._pieces:
                if piece:
                    return piece
        return b""

    async def close(self) -> None:
        with suppress(OSError), _errors():
            await self._connection.aclose()


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to these addresses, whatever host is asked for."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        *others, last = self._addresses
        for address in others:
            with suppress(httpcore.ConnectError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    return await _NETWORK.connect_tcp(str(address), port)
        return await _NETWORK.connect_tcp(str(last), port)


@contextmanager
def _errors() -> Iterator[None]:
    """The library's as OSError."""
    try:
        yield
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ssl.SSLError) as error:
        raise ConnectionError(str(error)) from error
