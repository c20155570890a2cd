"""`POST /v1/completions`: the answer, whole or in chunks. Both are the same object."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.api.answer import Head, Timing, Usage, finite
from gateway.api.text import answer
from gateway.api.text.answer import Form
from gateway.http.sse import DONE, frame
from pipelines.messages.text import FinishReason, TokenLogprob


class Logprobs(Struct, frozen=True):
    """Four lists of one length, an entry a token."""

    text_offset: list[int]  # characters of the choice's text before the token
    token_logprobs: list[float | None]  # None: the first token of a prompt, which nothing predicts
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]  # the most likely ones, and the chosen one with them


class Choice(Struct, frozen=True):
    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Completion(Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    timing: Timing | UnsetType = UNSET


class _LogprobsWriter:
    """The legacy form of one choice's log-probabilities."""

    def __init__(self) -> None:
        self._characters = 0  # begun so far

    def write(self, entries: list[TokenLogprob]) -> Logprobs:
        return Logprobs(
            [self._offset(entry.raw) for entry in entries],
            [None if entry.logprob is None else finite(entry.logprob) for entry in entries],
            [entry.text for entry in entries],
            [_top(entry) for entry in entries],
        )

    def _offset(self, data: bytes) -> int:
        """A token that starts inside a character (10xxxxxx in UTF-8) belongs to that character."""
        inside = data[:1] and data[0] & 0xC0 == 0x80
        offset = self._characters - 1 if inside else self._characters
        self._characters += sum(byte & 0xC0 != 0x80 for byte in data)
        return max(0, offset)


def _top(entry: TokenLogprob) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    return {top.text: finite(top.logprob) for top in reversed(entry.top)} | {entry.text: finite(entry.logprob)}


class CompletionView:
    """See `gateway.api.text.answer.View`."""

    def __init__(self, head: Head, form: Form) -> None:
        self._head = head
        self._usage: UnsetType | None = None if form.include_usage else UNSET  # what a chunk that carries none shows
        self._logprobs = [_LogprobsWriter() for _ in range(form.choices)] if form.logprobs else None

    def body(self, choices: Sequence[answer.Choice], usage: Usage) -> bytes:
        return _encoder.encode(
            self._completion([self._choice(index, choice) for index, choice in enumerate(choices)], usage)
        )

    def delta(self, index: int, text: str, logprobs: list[TokenLogprob]) -> bytes:
        return self._chunk(Choice(index, text, self._written(index, logprobs) if logprobs else None))

    def opening(self, index: int) -> bytes:
        return b""

    def finish(self, index: int, reason: FinishReason, timing: Timing | UnsetType) -> bytes:
        return self._chunk(Choice(index, "", None, reason), timing)

    def end(self, usage: Usage) -> bytes:
        return DONE if self._usage is UNSET else frame(self._completion([], usage)) + DONE

    def _choice(self, index: int, choice: answer.Choice) -> Choice:
        return Choice(index, choice.text, self._written(index, choice.logprobs), choice.reason)

    def _written(self, index: int, entries: list[TokenLogprob]) -> Logprobs | None:
        return None if self._logprobs is None else self._logprobs[index].write(entries)

    def _chunk(self, choice: Choice, timing: Timing | UnsetType = UNSET) -> bytes:
        return frame(self._completion([choice], self._usage, timing))

    def _completion(
        self, choices: list[Choice], usage: Usage | UnsetType | None, timing: Timing | UnsetType = UNSET
    ) -> Completion:
        head = self._head
        return Completion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
            usage=usage,
            timing=timing,
        )


_encoder = msgspec.json.Encoder()
