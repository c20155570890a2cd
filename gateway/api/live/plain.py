"""The plain protocol of live transcription, for clients that want no more than text: audio in, JSON out."""

from collections.abc import Awaitable, Callable, Iterator

import msgspec

from gateway.api.live import plain_query as wire
from gateway.errors import ApiError, ErrorDetail
from gateway.requests.live import LiveCall
from pipelines.messages import audio as messages
from pipelines.messages.audio import Clear, Commit, End, StreamItem
from pipelines.messages.base import Said

CONTROLS: dict[str, StreamItem] = {"commit": Commit(), "clear": Clear(), "end": End()}
LEGAL = 'legal: {"type": "commit"}, {"type": "clear"}, {"type": "end"}'
MAX_CONTROL = 1024  # bytes: a longer binary frame is not looked at as a misplaced control

Send = Callable[[bytes], Awaitable[None]]


class SpeechSession:
    """One socket's. `receive` and `run` are called by two tasks."""

    def __init__(self, call: LiveCall, send: Send) -> None:
        self._call = call
        self._send = send
        self._committed: dict[int, str] = {}  # by item that is open
        self._ending = False

    async def receive(self, data: str | bytes) -> None:
        """One frame of the client: text is a control, binary is audio."""
        if isinstance(data, str):
            await self._control(data)
        elif _is_control(data):
            await self._refuse("A control was sent as binary: binary frames are audio, controls are text.")
        elif self._ending:
            await self._refuse("The stream was ended; no audio can follow.")
        else:
            await self._call.speak(data)

    async def _control(self, text: str) -> None:
        try:
            control = wire.decode_control(text)
        except msgspec.DecodeError:
            await self._refuse(f"A text frame is no control; {LEGAL}.")
            return
        self._ending = self._ending or control.type == "end"
        await self._call.send(CONTROLS[control.type])

    async def run(self) -> None:
        """Say what the stream says, until it ends. Raises ApiError where it breaks."""
        await self._say(wire.ReadyMessage(self._call.route.name))
        async for event in self._call.events():
            for message in self._render(event):
                await self._say(message)
        await self._say(wire.DoneMessage())

    def _render(self, event: Said) -> Iterator[wire.SpeechEvent]:
        match event:
            case messages.SpeechStarted(item=item, at=at):
                yield wire.SpeechMessage(item, at)
            case messages.Partial(item=item, delta=delta, tentative=tentative, start=start, end=end):
                committed = self._committed[item] = self._committed.get(item, "") + delta
                yield wire.PartialMessage(item, (committed + tentative).strip(), committed, tentative, start, end)
            case messages.Final(item=item, transcript=transcript, start=start, end=end, words=words):
                self._committed.pop(item, None)
                said = [wire.WireWord(word.text, word.start, word.end, word.probability) for word in words]
                yield wire.FinalMessage(item, transcript.strip(), start, end, said)
            case messages.ItemFailed(item=item):
                self._committed.pop(item, None)
            case messages.Cleared():
                yield wire.ClearedMessage()
            case messages.Refusal(code=code, message=message):
                yield wire.ErrorMessage(ErrorDetail(message, "invalid_request_error", None, code))

    async def broken(self, error: ApiError) -> None:
        """Say why the stream ends."""
        await self._say(wire.ErrorMessage(error.body.error))

    async def _refuse(self, message: str) -> None:
        await self._say(wire.ErrorMessage(ErrorDetail(message, "invalid_request_error", None, "invalid_message")))

    async def _say(self, message: wire.SpeechEvent) -> None:
        await self._send(wire.encode_message(message))


def _is_control(data: bytes) -> bool:
    """Whether a binary frame is JSON: no audio is, by chance."""
    if len(data) > MAX_CONTROL or not data.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
