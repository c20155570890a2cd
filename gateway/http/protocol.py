"""uvicorn's HTTP protocol, with bounds on what a client may take its time for, and one write where it makes two."""

from asyncio import TimerHandle, Transport
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.asgi import Scope
from gateway.errors import ApiError, bad_request, headers_too_large, request_timeout, too_many_pipelined
from gateway.http.request_log import refused
from gateway.http.transport import Corked, Lingering, Unsent

MAX_HEAD_BYTES = 64 * 1024  # and of all that comes behind a body
MIN_BODY_RATE = 1024  # bytes a second; a body that comes this fast may take as long as it likes
MAX_PIPELINED = 100  # requests that wait behind the one that is answered
LINGER_S = 5.0  # what a client has to end a request that was answered before it was sent


class PausableFlow(FlowControl):
    """Reads nothing while there is enough to do: uvicorn's reads on at each answer, whatever waits."""

    def __init__(self, transport: Transport, enough: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._enough = enough

    def resume_reading(self) -> None:
        if not self._enough():
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """Watches the request that is being received. A timer runs only while one is incomplete after what has arrived, so
    a request that comes whole costs nothing.

    A head that takes longer than `header_timeout_s` (for the first one counted from the connection itself) closes the
    connection. One of more than MAX_HEAD_BYTES is a 431, once the requests before it are answered, and so are trailers
    of more; what trailers say is forgotten. A body is a 408 where less than MIN_BODY_RATE of it came in the last
    `body_timeout_s`. An answer that is given before its request has come whole is the connection's last. A client that
    takes none of its answer for `body_timeout_s` is cut off.
    """

    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0

    _raw: Transport
    _unsent: Unsent
    _awaits: Literal["head", "body"] | None = None
    _timer: TimerHandle | None = None
    _timed: Literal["head", "body"] | None = None  # what the timer is for
    _received = 0  # bytes, since the timer was set
    _fields = 0  # bytes of a head, or of trailers, in the reads since a body or the end of a head
    _reusable = False  # what the last request says about the connection
    _answering: RequestResponseCycle | None = None  # others wait behind it
    _refusal: ApiError | None = None  # of what is no request; once it was sent nothing more is read

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        self._raw = transport
        self.access_log = self.config.access_log  # uvicorn goes by whether anybody handles such a record
        self._unsent = Unsent(transport, self.loop, self.body_timeout_s)
        super().connection_made(cast(Transport, Corked(transport, self.loop, self._end)))
        self.flow = PausableFlow(transport, lambda: bool(self.pipeline) or self._refusal is not None)
        self._awaits = "head"
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._awaits = None
        self._set_timer()
        self._unsent.stop()
        if self._answering is not None:  # uvicorn tells the last request alone
            _leave(self._answering)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaits is None and not self._busy:
            self._awaits = "head"  # empty lines before it count
        self._received += len(data)
        self._fields += len(data)
        super().data_received(data)
        if self._awaits != self._timed:
            self._set_timer()
        if self._awaits is not None and self._fields > MAX_HEAD_BYTES:
            self._refuse(headers_too_large(MAX_HEAD_BYTES))

    def handle_websocket_upgrade(self) -> None:
        self._awaits = None
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._unsent.stop()

    def shutdown(self) -> None:
        self._reusable = False
        if not self._busy:
            self._awaits = None  # there is no answer to be read
        super().shutdown()

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._awaits = "head"
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._awaits == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._awaits = "body"
        self._fields = 0
        if len(self.pipeline) > MAX_PIPELINED:
            self._awaits = "head"
            self._refuse(too_many_pipelined(MAX_PIPELINED))
            raise _NotRead
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            # Until all of it is here, an answer ends the connection: nobody can say how much is still to come.
            self._reusable, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        self._fields = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaits = None
        self._fields = 0
        if self._timed is not None:
            self._set_timer()  # the next head has its own, even if it begins in the same read
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = self._reusable
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(bad_request(None, msg, code="invalid_http"))

    # uvicorn's

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._refusal is not None and not self.pipeline and not self.transport.is_closing():
            self._send_refusal(self._refusal)
        else:
            super().on_response_complete()

    @property
    def _busy(self) -> bool:
        """Whether a request on this connection is still being answered."""
        return self._answering is not None and not self._answering.response_complete

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
            self._awaits = None  # there is no answer to be read
            self.transport.close()
        elif self._awaits == "body" and slow and not self.flow.read_paused and not self.cycle.response_started:
            self._refuse(request_timeout(self.body_timeout_s))
        else:  # it comes, or it is the server that is waited for: for an earlier response, for the handler to read
            self._set_timer()

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request, in the same form as every other error, and close; requests before it are answered
        first."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = error
        broken = self.cycle if self._awaits == "body" else None
        if broken is not None and broken is not self._answering:
            self.pipeline.popleft()
        if self._busy and broken is not self._answering:
            self.flow.pause_reading()
        else:
            self._send_refusal(error)

    def _send_refusal(self, error: ApiError) -> None:
        broken = self._answering if self._busy else None
        if broken is None or not broken.response_started:
            body = error.encode()
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
        if broken is not None:
            refused(cast(Scope, broken.scope), error.status)
            _leave(broken)

    def _end(self) -> None:
        """Close the connection, after all that was written for it was read."""
        unfinished = self._awaits is not None or self._refusal is not None
        self._awaits = None
        self._set_timer()
        if unfinished and not self._raw.is_closing():
            self._unset_keepalive_if_required()
            Lingering(self._raw, self, self.loop, LINGER_S)
        else:
            self._raw.close()
        self._unsent.watch()


class _NotRead(Exception):
    """Ends what the parser makes of the bytes in its hands."""


def _leave(cycle: RequestResponseCycle) -> None:
    """Tell a handler that nobody will read its answer."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


def protocol(header_timeout_s: float, body_timeout_s: float) -> type[BoundedProtocol]:
    """The class for uvicorn's `http=`."""
    return type(
        "Protocol", (BoundedProtocol,), {"header_timeout_s": header_timeout_s, "body_timeout_s": body_timeout_s}
    )
