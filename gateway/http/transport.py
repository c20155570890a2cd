"""How answers leave on a connection, and how it ends, so that its client can read the last one."""

import asyncio
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable

STATUS_LINE = b"HTTP/1.1 "  # what a head begins with
LINGER_BYTES = 64 * 2**20  # of a request that was answered already; many clients read nothing before they sent it all


class Corked:
    """A transport that holds the head of a response until its body's first bytes, so that both leave in one write, or
    until the next turn of the event loop.

    A write is a system call, and wakes the client. `end` closes the connection; it is called with all written. Whatever
    else is asked of it goes to the transport itself.
    """

    def __init__(self, transport: Transport, loop: AbstractEventLoop, end: Callable[[], None] | None = None) -> None:
        self._transport = transport
        self._loop = loop
        self._end = end or transport.close
        self._head = b""
        self._closing = False

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(STATUS_LINE):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """The second call closes at once what the first one left open for the client to read its answer."""
        self._flush()
        if self._closing:
            self._transport.close()
        else:
            self._closing = True
            self._end()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class Lingering(asyncio.Protocol):
    """The last protocol of a connection whose client may still be sending: it takes the place of `before`.

    A connection that is closed with bytes unread is reset, and the reset can overtake the answer. So our half is ended,
    and what still comes is read and forgotten until the client has ended its half too, or LINGER_BYTES have come, or
    `seconds` have passed since the last of our answer left, however slowly the client sends.
    """

    def __init__(self, transport: Transport, before: asyncio.Protocol, loop: AbstractEventLoop, seconds: float) -> None:
        self._transport = transport
        self._before = before
        self._loop = loop
        self._seconds = seconds
        self._left = LINGER_BYTES
        self._timer: TimerHandle | None = None
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=0)  # so that `resume_writing` tells when all has left
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        if not transport.get_write_buffer_size():
            self.resume_writing()

    def resume_writing(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._before.connection_lost(exc)


class Unsent:
    """Cuts the connection of a client that takes none of what was written for it in `seconds`."""

    def __init__(self, transport: Transport, loop: AbstractEventLoop, seconds: float) -> None:
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._timer: TimerHandle | None = None

    def watch(self) -> None:
        """From now on, until all is sent."""
        if self._timer is None:
            self._look_after(self._transport.get_write_buffer_size())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_after(self, left: int) -> None:
        self._timer = self._loop.call_later(self._seconds, self._look, left) if left else None

    def _look(self, before: int) -> None:
        left = self._transport.get_write_buffer_size()
        if left >= before:
            self._timer = None
            self._transport.abort()
        else:
            self._look_after(left)
