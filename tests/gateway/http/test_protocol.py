"""What leaves when: a head waits for its body, nothing else waits, and the end waits for all of it."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from gateway.http.transport import Corked, Lingering


class Written:
    """A transport that remembers its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def corked() -> tuple[Written, Corked]:
    transport = Written()
    return transport, Corked(cast(asyncio.Transport, transport), asyncio.get_running_loop())


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


async def test_a_head_leaves_with_the_first_bytes_of_its_body_and_the_rest_at_once() -> None:
    transport, cork = corked()
    cork.write(HEAD)
    assert transport.writes == []
    cork.write(b"body")
    cork.write(b" and more")
    assert transport.writes == [HEAD + b"body", b" and more"]
    await asyncio.sleep(0)
    assert len(transport.writes) == 2


async def test_a_head_without_a_body_leaves_in_the_next_turn() -> None:
    transport, cork = corked()
    cork.write(HEAD)
    await asyncio.sleep(0)
    assert transport.writes == [HEAD]


async def test_a_body_that_looks_like_a_head_is_lost_nowhere() -> None:
    transport, cork = corked()
    for data in (HEAD, HEAD, HEAD, b"end"):
        cork.write(data)
    assert b"".join(transport.writes) == HEAD * 3 + b"end"


async def test_what_is_closed_has_been_written() -> None:
    transport, cork = corked()
    cork.write(HEAD)
    cork.close()
    assert transport.writes == [HEAD]
    assert cork.is_closing()


@pytest.mark.parametrize("size", [2**14, 2**24], ids=["a little", "much"])
@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_may_take_longer_than_the_server_lingers_to_read_its_answer(
    make_loop: Callable[[], asyncio.AbstractEventLoop], size: int
) -> None:
    """The time of a client that does not end its half begins when the last of the answer has left."""
    piece = b"x" * size
    written = 0

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal written
            answering = cast(asyncio.Transport, transport)
            while not answering.get_write_buffer_size():  # more than the system takes at once
                answering.write(piece)
                written += len(piece)
            Lingering(answering, self, asyncio.get_running_loop(), 0.05)

        def connection_lost(self, exc: Exception | None) -> None:
            lost.set()

    lost = asyncio.Event()

    async def late() -> bytes:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=2**12)
        async with asyncio.timeout(10):
            await asyncio.sleep(0.2)
            received = await reader.read()
            await lost.wait()
        writer.close()
        server.close()
        return received

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert len(runner.run(late())) == written
