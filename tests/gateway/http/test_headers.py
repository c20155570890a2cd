"""How much of a connection's headers and trailers is taken, and kept. On real sockets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.http.protocol import MAX_HEAD_BYTES
from tests.gateway.http.raw_http import CHAT, keyed, only_connection, request, statuses_and_codes
from tests.gateway.idle_fleet import KEY
from tests.servers import Gateway


class Held:
    """An application in front of the server's own that answers /held when it is told to."""

    def __init__(self, running: Gateway) -> None:
        self.release = asyncio.Event()
        self.asked = asyncio.Event()
        self._app = running.server.config.loaded_app
        running.server.config.loaded_app = self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/held":
            await self._app(scope, receive, send)
            return
        self.asked.set()
        watching = asyncio.create_task(self._watch(receive))
        await self.release.wait()
        watching.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    async def _watch(self, receive: Any) -> None:
        """For its client's leave, as handlers do: it reads on."""
        while (await receive())["type"] != "http.disconnect":
            pass


async def test_headers_behind_a_request_that_is_being_answered_are_bounded(tmp_path: Path) -> None:
    async with keyed(tmp_path, header_timeout_s=0.1) as running:
        held = Held(running)
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(request("GET", "/held"))
        await held.asked.wait()
        connection = only_connection(running)
        writer.write(b"GET /health HTTP/1.1\r\n")
        async with asyncio.timeout(10):
            while not connection.flow.read_paused:
                writer.write(b"x-filler: " + b"a" * 10_000 + b"\r\n")
                await asyncio.sleep(0.05)  # several times as long as a head has, in all
            held.release.set()
            received = await reader.read()
        writer.close()
    assert statuses_and_codes(received) == [(200, None), (431, "headers_too_large")]
    assert sum(len(value) for _, value in connection.headers) < 3 * MAX_HEAD_BYTES


async def test_each_head_of_a_connection_has_bounds_of_its_own(tmp_path: Path) -> None:
    """Also where it begins in the read that has the end of the one before."""
    padded = request("GET", "/health", "x-filler: " + "a" * 20_000)
    async with keyed(tmp_path, header_timeout_s=0.4) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(padded[:100])
        for _ in range(8):
            await asyncio.sleep(0.1)
            writer.write(padded[100:] + padded[:100])
            assert (await reader.readuntil(b'{"status":"ok"}')).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize(
    "piece", [b"x-filler: " + b"a" * 1000 + b"\r\n", b"a" * 1000], ids=["many trailers", "one without an end"]
)
async def test_trailers_are_bounded(tmp_path: Path, piece: bytes) -> None:
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        head = request("POST", CHAT, f"authorization: Bearer {KEY}", "transfer-encoding: chunked")
        writer.write(head + b"1\r\nx\r\n0\r\nx-first: ")
        async with asyncio.timeout(10):
            while running.connections and not reader._buffer:  # type: ignore[attr-defined]
                writer.write(piece * 10)
                await asyncio.sleep(0)
            received = await reader.read()
        writer.close()
    assert statuses_and_codes(received) == [(431, "headers_too_large")]


async def test_trailers_are_forgotten(tmp_path: Path) -> None:
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        head = request("POST", CHAT, f"authorization: Bearer {KEY}", "transfer-encoding: chunked")
        writer.write(head + b"1\r\nx\r\n0\r\nx-trailing: yes\r\nauthorization: Bearer no\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        connection = only_connection(running)
        assert [name for name, _ in connection.headers] == [b"host", b"authorization", b"transfer-encoding"]
        writer.close()


async def test_headers_and_trailers_are_counted_apart(tmp_path: Path) -> None:
    piece = b"x-filler: " + b"a" * 20_000 + b"\r\n"
    head = request("POST", CHAT, f"authorization: Bearer {KEY}", "transfer-encoding: chunked").removesuffix(b"\r\n")
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        for _ in range(2):
            for part in (head, piece, piece, piece, b"\r\n0\r\n", piece, piece, piece, b"\r\n"):
                writer.write(part)
                await asyncio.sleep(0.02)  # so that each is a read of its own
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400")
            await reader.readuntil(b"}}")
        writer.close()


async def test_a_long_body_of_tiny_chunks_is_no_trailer(tmp_path: Path) -> None:
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        headers = (f"authorization: Bearer {KEY}", "transfer-encoding: chunked", "connection: close")
        writer.write(request("POST", CHAT, *headers) + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        received = await reader.read()
        writer.close()
    assert statuses_and_codes(received) == [(400, "invalid_json")]


async def test_what_is_no_request_behind_the_last_one_is_not_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection ends with the answer before: its client asked for that, or the server drains."""
    async with keyed(tmp_path) as running:
        held = Held(running)
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(request("GET", "/held") + b"NONSENSE\r\n\r\n")
        await held.asked.wait()
        connection = only_connection(running)
        connection.shutdown()
        held.release.set()
        async with asyncio.timeout(5):
            received = await reader.read()
        writer.close()
    assert statuses_and_codes(received) == [(200, None)]
    assert "Exception in ASGI application" not in caplog.text
