"""OpenAI's realtime transcription protocol over one live stream: their events in, ours to the worker, and back."""

import base64
import binascii
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from msgspec import UNSET

from gateway.api.audio.answer import DurationUsage
from gateway.api.live import realtime_messages as wire
from gateway.config.validation import explain
from gateway.errors import ApiError
from gateway.requests.dispatch import Dispatcher
from gateway.requests.live import LiveCall
from gateway.requests.routing import Route
from pipelines.messages import audio as messages
from pipelines.messages.audio import Clear, Commit, Configure, StreamRequest, TurnDetection
from pipelines.messages.base import Said

ENCODINGS: dict[str, Literal["pcm16", "pcmu", "pcma"]] = {
    "audio/pcm": "pcm16",
    "audio/pcmu": "pcmu",
    "audio/pcma": "pcma",
}
DEFAULT_RATE = 24_000  # Hz, of PCM
G711_RATE = 8_000
MAX_APPEND = 15 * 2**20  # bytes of audio in one event, OpenAI's own bound
MODEL_FIELD = "session.audio.input.transcription.model"
FIELDS = {  # of StreamRequest, as the wire has them
    "language": "session.audio.input.transcription.language",
    "prompt": "session.audio.input.transcription.prompt",
}

Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Session:
    """What the client has set."""

    route: Route
    model: str  # as the client calls it
    request: StreamRequest
    include: tuple[str, ...] = ()


class BadEvent(Exception):
    """A client's event that can't be followed; the session goes on as before."""

    def __init__(self, message: str, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.error = wire.WireError("invalid_request_error", code, message, param)


class RealtimeSession:
    """One socket's. `receive` and `run` are called by two tasks; `run` alone reads the stream's events."""

    def __init__(self, session: Session, call: LiveCall, dispatcher: Dispatcher, send: Send) -> None:
        self._id = f"sess_{secrets.token_hex(12)}"
        self._items = secrets.token_hex(8)
        self._session = session
        self._pending: deque[Session] = deque()  # asked for, not confirmed by the worker
        self._call = call
        self._dispatcher = dispatcher
        self._send = send
        self._spoken = False  # audio has come: the model can't change any more
        self._events = 0
        self._previous: str | None = None

    # --- the client's side --------------------------------------------------------------------------------------------

    async def receive(self, text: str | bytes) -> None:
        """One message of the client."""
        try:
            event = _decode(text)
            await self._follow(event)
        except BadEvent as bad:
            error = msgspec.structs.replace(bad.error, event_id=_stamp(text).event_id)
            await self._say(wire.ErrorEvent(event_id=self._next_id(), error=error))

    async def _follow(self, event: wire.ClientEvent) -> None:
        match event:
            case wire.Append(audio=audio):
                data = _audio(audio)
                self._spoken = True
                await self._call.speak(data)
            case wire.CommitBuffer(event_id=event_id):
                await self._call.send(Commit(event_id))
            case wire.ClearBuffer():
                await self._call.send(Clear())
            case wire.SessionUpdate(session=patch, event_id=event_id):
                await self._update(patch, event_id)
            case wire.BetaSessionUpdate():
                message = "'transcription_session.update' is the form of the beta; send 'session.update' instead."
                raise BadEvent(message, "invalid_event_type", "type")

    async def _update(self, patch: wire.SessionPatch, event_id: str | None) -> None:
        current = self._pending[-1] if self._pending else self._session
        wanted = self._patched(current, patch)
        if wanted.route is not current.route:
            await self._move(wanted)
            return
        self._pending.append(wanted)
        # Audio that is read after this is in the new form; the worker takes both in this order.
        self._call.configured(wanted.request)
        await self._call.send(Configure(wanted.request, event_id))

    async def _move(self, wanted: Session) -> None:
        """To another model; only before any audio."""
        if self._spoken or self._pending:
            raise BadEvent("The model can't change once audio was sent; open another session.", param=MODEL_FIELD)
        try:
            await self._call.move(wanted.route, wanted.request)
        except ApiError as error:
            raise BadEvent(error.message, error.code or "invalid_value", MODEL_FIELD) from None
        self._session = wanted
        await self._say(wire.SessionUpdated(event_id=self._next_id(), session=self._wire_session()))

    def _patched(self, session: Session, patch: wire.SessionPatch) -> Session:
        """The session as a client wants it. Raises BadEvent."""
        if patch.include is not UNSET:
            unknown = [each for each in patch.include or () if each != wire.TENTATIVE]
            if unknown:
                message = f"{unknown[0]!r} can't be included; legal: {wire.TENTATIVE!r}."
                raise BadEvent(message, param="session.include")
            session = replace(session, include=tuple(patch.include or ()))
        if isinstance(patch.audio, wire.AudioPatch) and isinstance(patch.audio.input, wire.InputPatch):
            session = self._with_input(session, patch.audio.input)
        return session

    def _with_input(self, session: Session, patch: wire.InputPatch) -> Session:
        request = session.request
        if patch.format is not UNSET:
            format = patch.format or wire.AudioFormat()
            rate = format.rate or (DEFAULT_RATE if format.type == "audio/pcm" else G711_RATE)
            request = msgspec.structs.replace(request, encoding=ENCODINGS[format.type], rate=rate)
        if patch.turn_detection is None:
            request = msgspec.structs.replace(request, turn_detection=None)
        elif isinstance(patch.turn_detection, wire.TurnDetectionPatch):
            request = msgspec.structs.replace(request, turn_detection=_turn_detection(patch.turn_detection))
        if patch.transcription is None:
            request = msgspec.structs.replace(request, language=None, prompt="")
        elif isinstance(patch.transcription, wire.TranscriptionPatch):
            wanted = patch.transcription
            if wanted.language is not UNSET:
                request = msgspec.structs.replace(request, language=wanted.language or None)
            if wanted.prompt is not UNSET:
                request = msgspec.structs.replace(request, prompt=wanted.prompt or "")
            if isinstance(wanted.model, str):
                session = replace(session, route=self._route(wanted.model), model=wanted.model)
        return replace(session, request=request)

    def _route(self, model: str) -> Route:
        try:
            return self._dispatcher.route(model, self._session.route.kind)
        except ApiError as error:
            raise BadEvent(error.message, error.code or "invalid_value", MODEL_FIELD) from None

    # --- the stream's side --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Say what the stream says, until it ends. Raises ApiError where it breaks."""
        await self._say(wire.SessionCreated(event_id=self._next_id(), session=self._wire_session()))
        async for event in self._call.events():
            for said in self._render(event):
                await self._say(said)

    def _render(self, event: Said) -> Iterator[wire.ServerEvent]:
        match event:
            case messages.SpeechStarted(item=item, at=at):
                yield wire.SpeechStarted(
                    event_id=self._next_id(), item_id=self._item(item), audio_start_ms=round(at * 1000)
                )
            case messages.SpeechStopped(item=item, at=at):
                yield wire.SpeechStopped(
                    event_id=self._next_id(), item_id=self._item(item), audio_end_ms=round(at * 1000)
                )
            case messages.Committed(item=item):
                yield from self._committed(self._item(item))
            case messages.Partial(item=item, delta=delta, tentative=tentative):
                if delta:
                    yield wire.TranscriptDelta(event_id=self._next_id(), item_id=self._item(item), delta=delta)
                if wire.TENTATIVE in self._session.include:
                    yield wire.TranscriptTentative(event_id=self._next_id(), item_id=self._item(item), text=tentative)
            case messages.Final(item=item, delta=delta, transcript=transcript, seconds=seconds):
                if delta:
                    yield wire.TranscriptDelta(event_id=self._next_id(), item_id=self._item(item), delta=delta)
                yield wire.TranscriptCompleted(
                    event_id=self._next_id(),
                    item_id=self._item(item),
                    transcript=transcript,
                    usage=DurationUsage(seconds),
                )
            case messages.ItemFailed(item=item, message=message):
                error = wire.WireError("invalid_request_error", "input_audio_buffer_cleared", message)
                yield wire.TranscriptFailed(event_id=self._next_id(), item_id=self._item(item), error=error)
            case messages.Cleared():
                yield wire.BufferCleared(event_id=self._next_id())
            case messages.Configured():
                self._session = self._pending.popleft()
                yield wire.SessionUpdated(event_id=self._next_id(), session=self._wire_session())
            case messages.Refusal(code=code, message=message, event_id=event_id, param=param):
                if param is not None and self._pending:
                    self._pending.popleft()
                    self._call.configured((self._pending[-1] if self._pending else self._session).request)
                field = FIELDS.get(param, param) if param else None
                error = wire.WireError("invalid_request_error", code, message, field, event_id)
                yield wire.ErrorEvent(event_id=self._next_id(), error=error)

    def _committed(self, item_id: str) -> Iterator[wire.ServerEvent]:
        previous, self._previous = self._previous, item_id
        item = wire.ConversationItem(item_id)
        yield wire.BufferCommitted(event_id=self._next_id(), item_id=item_id, previous_item_id=previous)
        yield wire.ItemAdded(event_id=self._next_id(), item=item, previous_item_id=previous)
        yield wire.ItemDone(event_id=self._next_id(), item=item, previous_item_id=previous)

    async def broken(self, error: ApiError) -> None:
        """Say why the session ends."""
        told = wire.WireError(error.type, error.code, error.message, error.param)
        await self._say(wire.ErrorEvent(event_id=self._next_id(), error=told))

    async def _say(self, event: wire.ServerEvent) -> None:
        await self._send(wire.encode_event(event))

    def _next_id(self) -> str:
        self._events += 1
        return f"event_{self._items}{self._events:06x}"

    def _item(self, number: int) -> str:
        return f"item_{self._items}{number:04x}"

    def _wire_session(self) -> wire.WireSession:
        session, request = self._session, self._session.request
        vad = request.turn_detection
        type = next(name for name, encoding in ENCODINGS.items() if encoding == request.encoding)
        detection = (
            wire.WireTurnDetection("server_vad", vad.threshold, vad.prefix_padding_ms, vad.silence_duration_ms)
            if vad
            else None
        )
        return wire.WireSession(
            id=self._id,
            audio=wire.WireAudio(
                wire.WireInput(
                    format=wire.WireFormat(type, request.rate),
                    transcription=wire.WireTranscription(session.model, request.language, request.prompt or None),
                    turn_detection=detection,
                )
            ),
            include=list(session.include) or None,
        )


def _decode(text: str | bytes) -> wire.ClientEvent:
    try:
        return wire.decode_event(text)
    except msgspec.ValidationError as error:
        stamp = _stamp(text)
        if stamp.type not in _TYPES:
            known = ", ".join(sorted(_TYPES))
            message = f"{stamp.type!r} is no event of this endpoint; known here: {known}."
            raise BadEvent(message, "invalid_event_type", "type") from None
        problem = explain(error, wire.ClientEvent)
        raise BadEvent(f"{problem.path!r} {problem.message}.", param=problem.path or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadEvent("The message is not valid JSON.", "invalid_json") from None


_TYPES = frozenset(
    {
        "session.update",
        "input_audio_buffer.append",
        "input_audio_buffer.commit",
        "input_audio_buffer.clear",
        "transcription_session.update",
    }
)


def _stamp(text: str | bytes) -> wire.Stamp:
    try:
        return wire.decode_stamp(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return wire.Stamp()


def _audio(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadEvent("'audio' is no valid base64.", param="audio") from None
    if len(data) > MAX_APPEND:
        raise BadEvent(f"'audio' is longer than {MAX_APPEND} bytes; append it in pieces.", param="audio")
    return data


def _turn_detection(patch: wire.TurnDetectionPatch) -> TurnDetection:
    defaults = TurnDetection()
    return TurnDetection(
        threshold=defaults.threshold if patch.threshold is None else patch.threshold,
        prefix_padding_ms=defaults.prefix_padding_ms if patch.prefix_padding_ms is None else patch.prefix_padding_ms,
        silence_duration_ms=(
            defaults.silence_duration_ms if patch.silence_duration_ms is None else patch.silence_duration_ms
        ),
    )
