"""Live speech over WebSockets, in two protocols."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, cast

import msgspec
from litestar import Controller, WebSocket
from litestar.datastructures import State
from litestar.di import NamedDependency
from msgspec import ValidationError

from gateway.api.live.plain import SpeechSession
from gateway.api.live.plain_query import StreamQuery
from gateway.api.live.realtime import DEFAULT_RATE, RealtimeSession, Session
from gateway.api.request import kind, terms
from gateway.asgi import Message, Receive, Scope, disconnected
from gateway.asgi import Send as AsgiSend
from gateway.endpoint import Endpoint
from gateway.errors import CLIENT_CLOSED_REQUEST, ApiError, bad_request, client_closed, validation_error
from gateway.http.endpoints import serves
from gateway.http.middleware import refuse
from gateway.http.request_log import Work, refused, worked
from gateway.requests.dispatch import Dispatcher
from gateway.requests.exchange import Exchange, Job
from gateway.requests.live import LiveCall
from gateway.requests.routing import Route
from metrics.timeline import Timeline
from pipelines.messages.audio import StreamRequest, TurnDetection

Socket = WebSocket[object, object, State]

SUBPROTOCOL = "realtime"  # what browsers offer beside the key; it is the one selected
NORMAL, BROKEN = 1000, 1011  # close codes, RFC 6455
PLAIN_RATE, G711_RATE = 16_000, 8_000  # Hz


class SocketSession(Protocol):
    """A session of either protocol."""

    async def receive(self, data: str | bytes) -> None: ...

    async def run(self) -> None: ...

    async def broken(self, error: ApiError) -> None: ...


# One socket's call and session, of what its client asks for; raises ApiError.
Prepare = Callable[[Socket, Dispatcher], tuple[LiveCall, SocketSession]]


class RealtimeController(Controller):
    """Sessions are opened before the handshake is answered, so what is wrong is a status the client can read."""

    @serves(Endpoint(method="WS", path="/v1/realtime", kind="audio", line="live transcription"))
    async def realtime(self, socket: Socket, dispatcher: NamedDependency[Dispatcher]) -> None:
        await _converse(socket, dispatcher, _realtime)

    @serves(Endpoint(method="WS", path="/v1/audio/stream", kind="audio", line="live transcription"))
    async def stream(self, socket: Socket, dispatcher: NamedDependency[Dispatcher]) -> None:
        await _converse(socket, dispatcher, _plain)


def _realtime(socket: Socket, dispatcher: Dispatcher) -> tuple[LiveCall, SocketSession]:
    model, intent = socket.query_params.get("model"), socket.query_params.get("intent", "transcription")
    if intent != "transcription":
        raise bad_request("intent", "'intent' is not valid; this endpoint transcribes: 'transcription'.")
    route = dispatcher.route_or_first(model, kind(socket))
    session = Session(route, model or route.name, StreamRequest(rate=DEFAULT_RATE))
    call = _call(socket, dispatcher, route, session.request)
    return call, RealtimeSession(session, call, dispatcher, _Sender(socket))


def _plain(socket: Socket, dispatcher: Dispatcher) -> tuple[LiveCall, SocketSession]:
    query = _query(socket.query_params)
    route = dispatcher.route_or_first(query.model, kind(socket))
    call = _call(socket, dispatcher, route, _stream_request(query))
    return call, SpeechSession(call, _Sender(socket))


def _call(socket: Socket, dispatcher: Dispatcher, route: Route, request: StreamRequest) -> LiveCall:
    def begin(route: Route, request: StreamRequest, timeline: Timeline) -> Exchange:
        asked = terms(socket, route.settings)
        return dispatcher.exchange(Job(f"live-{secrets.token_hex(12)}", route, request, 1, asked, live=True), timeline)

    return LiveCall(begin, route, request, Timeline(socket.scope["state"]["arrival"]))


async def _converse(socket: Socket, dispatcher: Dispatcher, prepare: Prepare) -> None:
    """One socket, from its handshake to its end."""
    scope = cast(Scope, socket.scope)
    await cast(Receive, socket.receive)()  # the handshake's first message: it may be refused only after it
    call: LiveCall | None = None
    try:
        call, session = prepare(socket, dispatcher)
        await _open(socket, call)
    except ApiError as error:
        await _refuse(socket, error)
    else:
        with call:
            await _hold(socket, session)
    finally:
        if call is not None:
            worked(scope, Work(call.route.name, call.timeline, call.seconds))


async def _refuse(socket: Socket, error: ApiError) -> None:
    if error.status == CLIENT_CLOSED_REQUEST:  # there is nobody to read it
        refused(cast(Scope, socket.scope), error.status)
    else:
        await refuse(cast(Scope, socket.scope), cast(AsgiSend, socket.send), error)


async def _open(socket: Socket, call: LiveCall) -> None:
    """Open the call, unless its client leaves before: a model that is being loaded takes longer than some wait. Raises
    ApiError."""

    async def watch() -> None:
        await disconnected(cast(Receive, socket.receive))  # before it is accepted, a client says no more
        call.interrupt(client_closed())

    watcher = asyncio.create_task(watch())
    try:
        await call.open()
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)  # it has let go of the socket then


async def _hold(socket: Socket, session: SocketSession) -> None:
    """Run a session until the client leaves, or the stream ends and the socket is closed."""
    offered = socket.scope["subprotocols"]
    selected = SUBPROTOCOL if SUBPROTOCOL in offered else None
    send = cast(AsgiSend, socket.send)
    await send({"type": "websocket.accept", "subprotocol": selected, "headers": []})
    listener = asyncio.create_task(_listen(socket, session))
    speaker = asyncio.create_task(_speak(socket, session))
    try:
        await asyncio.wait((listener, speaker), return_when=asyncio.FIRST_COMPLETED)
        for task in (listener, speaker):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, (OSError, RuntimeError)) or type(error).__name__ == "WebSocketDisconnect":
                    continue  # it left while it was written to
                raise error
    finally:
        for task in (listener, speaker):
            task.cancel()
        await asyncio.gather(listener, speaker, return_exceptions=True)


async def _listen(socket: Socket, session: SocketSession) -> None:
    receive = cast(Receive, socket.receive)
    while True:
        message: Message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        data: str | bytes | None = message.get("text")
        await session.receive(message["bytes"] if data is None else data)


async def _speak(socket: Socket, session: SocketSession) -> None:
    code = NORMAL
    try:
        await session.run()
    except ApiError as error:
        code = BROKEN
        await session.broken(error)
    with suppress(RuntimeError):
        await socket.close(code=code)


class _Sender:
    """Sends text messages, those of both of a session's tasks one after another."""

    def __init__(self, socket: Socket) -> None:
        self._send = cast(AsgiSend, socket.send)
        self._lock = asyncio.Lock()

    async def __call__(self, data: bytes) -> None:
        async with self._lock:
            await self._send({"type": "websocket.send", "text": data.decode(), "bytes": None})


def _query(params: Mapping[str, str]) -> StreamQuery:
    values = {name: value for name, value in params.items() if value != ""}
    try:
        return msgspec.convert(values, StreamQuery, strict=False)
    except ValidationError as error:
        raise validation_error(error, StreamQuery) from None


def _stream_request(query: StreamQuery) -> StreamRequest:
    detection = TurnDetection(
        threshold=query.threshold,
        prefix_padding_ms=query.prefix_padding_ms,
        silence_duration_ms=query.silence_duration_ms,
    )
    return StreamRequest(
        encoding=query.format,
        rate=query.rate or (PLAIN_RATE if query.format == "pcm16" else G711_RATE),
        language=query.language,
        prompt=query.prompt,
        turn_detection=detection if query.turns == "server" else None,
        words=True,
    )
