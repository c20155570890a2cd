"""uvicorn's HTTP protocol, with a bound on how long and how large a request's head may be."""

from asyncio import TimerHandle, Transport
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import ApiError

MAX_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection where the head of a request takes longer than `header_timeout_s` (for the first one counted
    from the connection itself) or more than MAX_HEAD_BYTES.
    """

    header_timeout_s: float = 10.0

    _head_timer: TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._busy():
                self._refuse(ApiError(431, f"The request's headers are larger than {MAX_HEAD_BYTES} bytes."))

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg))

    def on_message_begin(self) -> None:
        if self._head_timer is None:
            self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        self._end_head()
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.header_timeout_s, self._on_head_timeout)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        if self._busy():  # a pipelined request waits behind one that is still answered
            self._begin_head()
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request, in the same form as every other error, and close."""
        body = error.encode()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def protocol(header_timeout_s: float) -> type[BoundedProtocol]:
    """The class for uvicorn's `http=`."""
    return type("Protocol", (BoundedProtocol,), {"header_timeout_s": header_timeout_s})
