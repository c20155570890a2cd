"""`POST /v1/chat/completions`: the answer, whole or in chunks."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.api.answer import Head, Timing, Usage, finite
from gateway.api.text import answer
from gateway.api.text.answer import Form
from gateway.http.sse import DONE, frame
from pipelines.messages.text import FinishReason, TokenLogprob


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


class ChatView:
    """See `gateway.api.text.answer.View`. The first chunk of each choice has its role."""

    def __init__(self, head: Head, form: Form) -> None:
        self._head = head
        self._with_logprobs = form.logprobs
        self._usage: UnsetType | None = None if form.include_usage else UNSET  # what a chunk that carries none shows
        self._roles: list[str | None] = ["assistant"] * form.choices  # still to be sent

    def body(self, choices: Sequence[answer.Choice], usage: Usage) -> bytes:
        head = self._head
        return _encoder.encode(
            ChatCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.system_fingerprint,
                choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
                usage=usage,
            )
        )

    def delta(self, index: int, text: str, logprobs: list[TokenLogprob]) -> bytes:
        return self._chunk(ChunkChoice(index, ChunkDelta(self._role(index), text), _logprobs(logprobs)))

    def opening(self, index: int) -> bytes:
        role = self._role(index)
        return self._chunk(ChunkChoice(index, ChunkDelta(role, ""))) if role else b""

    def finish(self, index: int, reason: FinishReason, timing: Timing | UnsetType) -> bytes:
        return self._chunk(ChunkChoice(index, ChunkDelta(), None, reason), timing)

    def end(self, usage: Usage) -> bytes:
        return DONE if self._usage is UNSET else self._frame([], usage, UNSET) + DONE

    def _choice(self, index: int, choice: answer.Choice) -> Choice:
        logprobs = Logprobs(list(map(_logprob, choice.logprobs))) if self._with_logprobs else None
        return Choice(index, AssistantMessage(content=choice.text), logprobs, choice.reason)

    def _role(self, index: int) -> str | None:
        role, self._roles[index] = self._roles[index], None
        return role

    def _chunk(self, choice: ChunkChoice, timing: Timing | UnsetType = UNSET) -> bytes:
        return self._frame([choice], self._usage, timing)

    def _frame(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None, timing: Timing | UnsetType) -> bytes:
        head = self._head
        return frame(
            Chunk(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.system_fingerprint,
                choices=choices,
                usage=usage,
                timing=timing,
            )
        )


_encoder = msgspec.json.Encoder()


def _logprobs(entries: list[TokenLogprob]) -> Logprobs | None:
    return Logprobs(list(map(_logprob, entries))) if entries else None


def _logprob(entry: TokenLogprob) -> Logprob:
    return Logprob(
        entry.text,
        finite(entry.logprob or 0.0),
        list(entry.raw),
        [TopLogprob(top.text, finite(top.logprob), list(top.raw)) for top in entry.top],
    )
