"""uvicorn's HTTP protocol, with bounds on what a client may take its time for, and one write where it makes two."""

from asyncio import AbstractEventLoop, TimerHandle, Transport
from http import HTTPStatus
from typing import Literal, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import ApiError, request_timeout

STATUS_LINE = b"HTTP/1.1 "  # what a head begins with
MAX_HEAD_BYTES = 64 * 1024
MIN_BODY_RATE = 1024  # bytes a second; a body that comes this fast may take as long as it likes


class Corked:
    """A transport that holds the head of a response until its body's first bytes, so that both leave in one write, or
    until the next turn of the event loop.

    A write is a system call, and wakes the client. Whatever else is asked of it goes to the transport itself.
    """

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

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
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """Watches the request that is being received. A timer runs only while one is incomplete after what has arrived, so
    a request that comes whole costs nothing.

    A head that takes longer than `header_timeout_s` (for the first one counted from the connection itself) closes the
    connection, one of more than MAX_HEAD_BYTES is a 431. A body is a 408 where less than MIN_BODY_RATE of it came in
    the last `body_timeout_s`.
    """

    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0

    _awaits: Literal["head", "body"] | None = None
    _timer: TimerHandle | None = None
    _timed: Literal["head", "body"] | None = None  # what the timer is for
    _received = 0  # bytes, since the timer was set

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(Transport, Corked(transport, self.loop)))
        self._awaits = "head"
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._awaits = None
        self._set_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._awaits != self._timed:
            self._set_timer()
        elif self._awaits is not None:
            self._received += len(data)
            if self._awaits == "head" and self._received > MAX_HEAD_BYTES and not self._busy:
                self._refuse(ApiError(431, f"The request's headers are larger than {MAX_HEAD_BYTES} bytes."))

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._awaits = "head"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._awaits = "body"
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._awaits = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = self._awaits
        self._received = 0
        if self._awaits is not None:
            limit = self.header_timeout_s if self._awaits == "head" else self.body_timeout_s
            self._timer = self.loop.call_later(limit, self._on_timeout)

    def _on_timeout(self) -> None:
        slow = self._received < MIN_BODY_RATE * self.body_timeout_s
        if self._awaits == "head" and not self._busy:
            self.transport.close()
        elif self._awaits == "body" and slow and not self.flow.read_paused and not self.cycle.response_started:
            self._refuse(request_timeout(self.body_timeout_s))
        else:  # it comes, or it is the server that is waited for: for an earlier response, for the handler to read
            self._set_timer()

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request, in the same form as every other error, and close."""
        if self.transport.is_closing():
            return
        body = error.encode()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    @property
    def _busy(self) -> bool:
        """Whether an earlier request on this connection is still being answered."""
        return self.cycle is not None and not self.cycle.response_complete


def protocol(header_timeout_s: float, body_timeout_s: float) -> type[BoundedProtocol]:
    """The class for uvicorn's `http=`."""
    return type(
        "Protocol", (BoundedProtocol,), {"header_timeout_s": header_timeout_s, "body_timeout_s": body_timeout_s}
    )
