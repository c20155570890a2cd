"""`POST /v1/completions`: the answer, whole or in chunks. Both are the same object."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.api.answer import Head, Timing, Usage, finite, timing, usage
from gateway.http.sse import DONE, frame
from metrics.timeline import Phases
from pipelines.messages.base import Said
from pipelines.messages.frames import Done
from pipelines.messages.text import ChoiceDone, Delta, TokenLogprob


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


class CompletionAnswer:
    """One body."""

    streamed = False

    def __init__(self, head: Head, choices: int, *, logprobs: bool) -> None:
        self._head = head
        self._texts: list[list[str]] = [[] for _ in range(choices)]
        self._logprobs: list[list[TokenLogprob]] | None = [[] for _ in range(choices)] if logprobs else None
        self._reasons: list[str] = ["stop"] * choices

    def render(self, event: Said) -> bytes:
        match event:
            case Delta(index=index, text=text, logprobs=entries):
                self._texts[index].append(text)
                if self._logprobs is not None:
                    self._logprobs[index].extend(entries)
            case ChoiceDone(index=index, reason=reason):
                self._reasons[index] = reason
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        choices = [self._choice(index) for index in range(len(self._texts))]
        return _encoder.encode(_completion(self._head, choices, usage(done.usage)))

    def _choice(self, index: int) -> Choice:
        logprobs = None if self._logprobs is None else _LogprobsWriter().write(self._logprobs[index])
        return Choice(index, "".join(self._texts[index]), logprobs, self._reasons[index])


class CompletionStream:
    """Chunks: text, then for each choice one chunk with its finish reason.

    The last of those carries the timing, so each is held until the next event shows whether it is the last.
    """

    streamed = True

    def __init__(self, head: Head, choices: int, *, include_usage: bool) -> None:
        self._head = head
        self._usage: UnsetType | None = None if include_usage else UNSET  # what a chunk that carries none shows
        self._logprobs = [_LogprobsWriter() for _ in range(choices)]
        self._finished: ChoiceDone | None = None

    def render(self, event: Said) -> bytes:
        held = self._release()
        match event:
            case ChoiceDone():
                self._finished = event
                return held
            case Delta(index=index, text=text, logprobs=entries):
                if not text and not entries:
                    return held
                logprobs = self._logprobs[index].write(entries) if entries else None
                return held + frame(_completion(self._head, [Choice(index, text, logprobs)], self._usage))
            case _:  # of other kinds of models
                return held

    def finish(self, done: Done, spent: Phases) -> bytes:
        data = self._release(timing(spent))
        if self._usage is None:
            data += frame(_completion(self._head, [], usage(done.usage)))
        return data + DONE

    def _release(self, timing: Timing | UnsetType = UNSET) -> bytes:
        finished, self._finished = self._finished, None
        if finished is None:
            return b""
        choice = Choice(finished.index, "", None, finished.reason)
        return frame(_completion(self._head, [choice], self._usage, timing))


_encoder = msgspec.json.Encoder()


def _completion(
    head: Head, choices: list[Choice], usage: Usage | UnsetType | None, timing: Timing | UnsetType = UNSET
) -> Completion:
    return Completion(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=choices,
        usage=usage,
        timing=timing,
    )
