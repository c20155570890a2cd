"""`POST /v1/chat/completions`: the answer, whole or in chunks."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.api.answer import Head, Timing, Usage, finite, timing, usage
from gateway.http.sse import DONE, frame
from metrics.timeline import Phases
from pipelines.messages.base import Said
from pipelines.messages.frames import Done
from pipelines.messages.text import ChoiceDone, Delta, TokenLogprob


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(Struct, frozen=True):
    content: list[Logprob]
    refusal: None = None


class AssistantMessage(Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class Choice(Struct, frozen=True):
    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: str


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage


class ChunkDelta(Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChunkChoice(Struct, frozen=True):
    index: int
    delta: ChunkDelta
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    timing: Timing | UnsetType = UNSET


class ChatAnswer:
    """One body."""

    streamed = False

    def __init__(self, head: Head, choices: int, *, logprobs: bool) -> None:
        self._head = head
        self._texts: list[list[str]] = [[] for _ in range(choices)]
        self._logprobs: list[list[Logprob]] | None = [[] for _ in range(choices)] if logprobs else None
        self._reasons: list[str] = ["stop"] * choices

    def render(self, event: Said) -> bytes:
        match event:
            case Delta(index=index, text=text, logprobs=entries):
                self._texts[index].append(text)
                if self._logprobs is not None:
                    self._logprobs[index].extend(map(_logprob, entries))
            case ChoiceDone(index=index, reason=reason):
                self._reasons[index] = reason
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        head = self._head
        return _encoder.encode(
            ChatCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.system_fingerprint,
                choices=[self._choice(index) for index in range(len(self._texts))],
                usage=usage(done.usage),
            )
        )

    def _choice(self, index: int) -> Choice:
        logprobs = None if self._logprobs is None else Logprobs(self._logprobs[index])
        return Choice(index, AssistantMessage(content="".join(self._texts[index])), logprobs, self._reasons[index])


class ChatStream:
    """Chunks. The role comes once for each choice, then its text, then one chunk with its finish reason.

    The last finish chunk carries the timing, so a finish chunk is held until it is known whether it is the last: no
    longer than until the next event.
    """

    streamed = True

    def __init__(self, head: Head, choices: int, *, include_usage: bool) -> None:
        self._head = head
        self._usage: UnsetType | None = None if include_usage else UNSET  # what a chunk that carries none shows
        self._roles: list[str | None] = ["assistant"] * choices  # still to be sent
        self._finished: ChoiceDone | None = None

    def render(self, event: Said) -> bytes:
        held = self._release()
        match event:
            case ChoiceDone(index=index):
                self._finished = event
                return held + self._frame(index, ChunkDelta(self._role(index), "")) if self._roles[index] else held
            case Delta(index=index, text=text, logprobs=entries):
                if not text and not entries:
                    return held
                logprobs = Logprobs(list(map(_logprob, entries))) if entries else None
                return held + self._frame(index, ChunkDelta(self._role(index), text), logprobs)
            case _:  # of other kinds of models
                return held

    def finish(self, done: Done, spent: Phases) -> bytes:
        data = self._release(timing(spent))
        if self._usage is None:
            data += frame(self._chunk([], usage(done.usage), UNSET))
        return data + DONE

    def _release(self, timing: Timing | UnsetType = UNSET) -> bytes:
        finished, self._finished = self._finished, None
        if finished is None:
            return b""
        choice = ChunkChoice(finished.index, ChunkDelta(), None, finished.reason)
        return frame(self._chunk([choice], self._usage, timing))

    def _role(self, index: int) -> str | None:
        role, self._roles[index] = self._roles[index], None
        return role

    def _frame(self, index: int, delta: ChunkDelta, logprobs: Logprobs | None = None) -> bytes:
        return frame(self._chunk([ChunkChoice(index, delta, logprobs)], self._usage, UNSET))

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None, timing: Timing | UnsetType) -> Chunk:
        head = self._head
        return Chunk(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
            usage=usage,
            timing=timing,
        )


_encoder = msgspec.json.Encoder()


def _logprob(entry: TokenLogprob) -> Logprob:
    return Logprob(
        entry.text,
        finite(entry.logprob or 0.0),
        list(entry.raw),
        [TopLogprob(top.text, finite(top.logprob), list(top.raw)) for top in entry.top],
    )
