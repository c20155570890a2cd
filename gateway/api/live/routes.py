"""Live speech over WebSockets, in two protocols."""

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from time import monotonic
from typing import Protocol, cast

import msgspec
from litestar import Controller, WebSocket
from litestar.datastructures import State
from litestar.di import NamedDependency
from msgspec import ValidationError

from gateway.api.live.plain import SpeechSession
from gateway.api.live.plain_query import StreamQuery
from gateway.api.live.realtime import DEFAULT_RATE, RealtimeSession, Session
from gateway.asgi import Message, Receive, Scope
from gateway.asgi import Send as AsgiSend
from gateway.endpoint import Endpoint
from gateway.errors import CLIENT_CLOSED_REQUEST, ApiError, bad_request, client_closed, validation_error
from gateway.http.auth import Principal
from gateway.http.endpoints import serves
from gateway.http.middleware import refuse
from gateway.http.request_log import Work, refused, worked
from gateway.requests.dispatch import Dispatcher
from gateway.requests.live import LiveCall
from gateway.requests.routing import Route
from metrics.timeline import Timeline
from pipelines.messages.audio import StreamRequest, Turns

Socket = WebSocket[object, object, State]

SUBPROTOCOL = "realtime"  # what browsers offer beside the key; it is the one selected
NORMAL, BROKEN = 1000, 1011  # close codes, RFC 6455
PLAIN_RATE, G711_RATE = 16_000, 8_000  # Hz


class Talk(Protocol):
    """A session of either protocol."""

    async def hear(self, data: str | bytes) -> None: ...

    async def run(self) -> None: ...

    async def broken(self, error: ApiError) -> None: ...


class RealtimeController(Controller):
    """Sessions are opened before the handshake is answered, so what is wrong is a status the client can read."""

    @serves(Endpoint(method="WS", path="/v1/realtime", kind="audio", line="live transcription"))
    async def realtime(self, socket: Socket, dispatcher: NamedDependency[Dispatcher]) -> None:
        talk: RealtimeSession | None = None
        try:
            await _connect(socket)
            intent = socket.query_params.get("intent", "transcription")
            if intent != "transcription":
                raise bad_request("intent", "'intent' is not valid; this endpoint transcribes: 'transcription'.")
            route = dispatcher.route_or_first(socket.query_params.get("model"), "audio")
            opener = _Opener(socket, dispatcher)
            request = StreamRequest(rate=DEFAULT_RATE)
            call = await _while_there(socket, opener(route, request))
            session = Session(route, socket.query_params.get("model") or route.name, request)
            talk = RealtimeSession(session, call, opener, dispatcher, _sender(socket))
        except ApiError as error:
            await _refuse(socket, error)
            return
        try:
            await _hold(socket, talk)
        finally:
            talk.call.close()

    @serves(Endpoint(method="WS", path="/v1/audio/stream", kind="audio", line="live transcription"))
    async def stream(self, socket: Socket, dispatcher: NamedDependency[Dispatcher]) -> None:
        try:
            await _connect(socket)
            query = _query(socket.query_params)
            route = dispatcher.route_or_first(query.model, "audio")
            call = await _while_there(socket, _Opener(socket, dispatcher)(route, _stream_request(query)))
        except ApiError as error:
            await _refuse(socket, error)
            return
        try:
            await _hold(socket, SpeechSession(call, _sender(socket)))
        finally:
            call.close()


class _Opener:
    """Begins streams for one socket."""

    def __init__(self, socket: Socket, dispatcher: Dispatcher) -> None:
        state = socket.scope["state"]
        self._principal: Principal = state["principal"]
        self._arrival: float | None = state.get("arrival")
        self._dispatcher = dispatcher
        self._scope = cast(Scope, socket.scope)
        self._call: LiveCall | None = None
        self._seconds = 0.0  # of audio, on those before the last

    async def __call__(self, route: Route, request: StreamRequest) -> LiveCall:
        timeline = Timeline(self._arrival or monotonic())
        self._arrival = None
        id = f"live-{secrets.token_hex(12)}"
        call = self._dispatcher.live(id, route, request, self._principal.priority, timeline)
        worked(self._scope, Work(route.name, timeline, lambda: self.seconds))
        await call.open()
        self._seconds, self._call = self.seconds, call
        return call

    @property
    def seconds(self) -> float:
        """Of audio that the client has sent."""
        return self._seconds + (self._call.seconds if self._call is not None else 0.0)


async def _connect(socket: Socket) -> None:
    """The handshake's first message: a WebSocket may be refused only after it."""
    receive = cast(Receive, socket.receive)
    await receive()


async def _refuse(socket: Socket, error: ApiError) -> None:
    if error.status == CLIENT_CLOSED_REQUEST:  # there is nobody to read it
        refused(cast(Scope, socket.scope), error.status)
    else:
        await refuse(cast(Scope, socket.scope), cast(AsgiSend, socket.send), error)


async def _while_there(socket: Socket, opening: Coroutine[None, None, LiveCall]) -> LiveCall:
    """The opened call, unless its client leaves before: a model that is being loaded takes longer than some wait.
    Raises ApiError."""
    receive = cast(Receive, socket.receive)
    opened = asyncio.create_task(opening)
    left = asyncio.create_task(
        cast(Coroutine[None, None, Message], receive())
    )  # before it is accepted, it says no more
    try:
        await asyncio.wait((opened, left), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            raise client_closed()
        return opened.result()
    finally:
        opened.cancel()
        left.cancel()
        await asyncio.gather(opened, left, return_exceptions=True)  # only then does the log know the outcome


async def _hold(socket: Socket, talk: Talk) -> None:
    """Run a session until the client leaves, or the stream ends and the socket is closed."""
    offered = socket.scope["subprotocols"]
    selected = SUBPROTOCOL if SUBPROTOCOL in offered else None
    send = cast(AsgiSend, socket.send)
    await send({"type": "websocket.accept", "subprotocol": selected, "headers": []})
    listener = asyncio.create_task(_listen(socket, talk))
    speaker = asyncio.create_task(_speak(socket, talk))
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


async def _listen(socket: Socket, talk: Talk) -> None:
    receive = cast(Receive, socket.receive)
    while True:
        message: Message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        data: str | bytes | None = message.get("text")
        await talk.hear(message["bytes"] if data is None else data)


async def _speak(socket: Socket, talk: Talk) -> None:
    code = NORMAL
    try:
        await talk.run()
    except ApiError as error:
        code = BROKEN
        await talk.broken(error)
    with suppress(RuntimeError):
        await socket.close(code=code)


def _sender(socket: Socket) -> "_Sender":
    return _Sender(cast(AsgiSend, socket.send))


class _Sender:
    def __init__(self, send: AsgiSend) -> None:
        self._send = send

    async def __call__(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "text": data.decode(), "bytes": None})


def _query(params: Mapping[str, str]) -> StreamQuery:
    values = {name: value for name, value in params.items() if value != ""}
    try:
        return msgspec.convert(values, StreamQuery, strict=False)
    except ValidationError as error:
        raise validation_error(error, StreamQuery) from None


def _stream_request(query: StreamQuery) -> StreamRequest:
    turns = Turns(
        threshold=query.threshold,
        prefix_padding_ms=query.prefix_padding_ms,
        silence_duration_ms=query.silence_duration_ms,
    )
    return StreamRequest(
        encoding=query.format,
        rate=query.rate or (PLAIN_RATE if query.format == "pcm16" else G711_RATE),
        language=query.language,
        prompt=query.prompt,
        turns=turns if query.turns == "server" else None,
        words=True,
    )
