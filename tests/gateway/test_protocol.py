"""What leaves when: a head waits for its body, nothing else waits."""

import asyncio
from typing import cast

from gateway.transport import Corked


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
