"""What leaves when: writes of one turn of the event loop are one, and a response's last one waits for nothing."""

import asyncio
from typing import cast

from gateway.protocol import Corked


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


async def test_writes_of_one_turn_leave_together() -> None:
    transport, cork = corked()
    cork.write(b"head ")
    cork.write(b"body")
    assert transport.writes == []
    await asyncio.sleep(0)
    cork.write(b"next")
    await asyncio.sleep(0)
    assert transport.writes == [b"head body", b"next"]


async def test_what_is_flushed_leaves_at_once_and_once() -> None:
    transport, cork = corked()
    cork.write(b"head ")
    cork.write(b"body")
    cork.flush()
    assert transport.writes == [b"head body"]
    await asyncio.sleep(0)
    assert transport.writes == [b"head body"]


async def test_what_is_closed_has_been_written() -> None:
    transport, cork = corked()
    cork.write(b"last")
    cork.close()
    assert transport.writes == [b"last"]
    assert cork.is_closing()
