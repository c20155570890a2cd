"""From a text model's events to an answer, whole or streamed; a view says what each endpoint writes of it."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from gateway.api.answer import Timing, Usage, timing, usage
from metrics.timeline import Phases
from pipelines.messages.base import Said
from pipelines.messages.frames import Done
from pipelines.messages.text import ChoiceDone, Delta, FinishReason, TokenLogprob


class Form(Struct, frozen=True):
    """What an answer has to have."""

    choices: int  # of all prompts together
    logprobs: bool = False
    include_usage: bool = False  # at the end of a stream


class Choice:
    """One choice, as far as it has been said."""

    __slots__ = ("logprobs", "parts", "reason")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.reason: FinishReason = "stop"

    @property
    def text(self) -> str:
        return "".join(self.parts)


class View(Protocol):
    """The wire format of one answer: `body` of one that is whole, the others of a stream, each empty where the format
    has nothing to say."""

    def body(self, choices: Sequence[Choice], usage: Usage) -> bytes: ...

    def delta(self, index: int, text: str, logprobs: list[TokenLogprob]) -> bytes:
        """More of a choice: text, log-probabilities, or both."""
        ...

    def opening(self, index: int) -> bytes:
        """For a choice that ends: what opens it, where no delta has."""
        ...

    def finish(self, index: int, reason: FinishReason, timing: Timing | UnsetType) -> bytes:
        """The end of a choice; that of the last one has the timing."""
        ...

    def end(self, usage: Usage) -> bytes:
        """What comes after the last choice."""
        ...


class TextAnswer:
    """One body."""

    streamed = False

    def __init__(self, view: View, choices: int) -> None:
        self._view = view
        self._choices = [Choice() for _ in range(choices)]

    def render(self, event: Said) -> bytes:
        match event:
            case Delta(index=index, text=text, logprobs=entries):
                choice = self._choices[index]
                choice.parts.append(text)
                choice.logprobs += entries
            case ChoiceDone(index=index, reason=reason):
                self._choices[index].reason = reason
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        return self._view.body(self._choices, usage(done.usage))


class TextStream:
    """Server-sent events as they come.

    The last choice to finish carries the timing, so each finish is held until it is known whether it is the last: no
    longer than until the next event.
    """

    streamed = True

    def __init__(self, view: View) -> None:
        self._view = view
        self._finished: ChoiceDone | None = None

    def render(self, event: Said) -> bytes:
        held = b"" if self._finished is None else self._release()
        match event:
            case Delta(index=index, text=text, logprobs=entries):
                return held + self._view.delta(index, text, entries) if text or entries else held
            case ChoiceDone(index=index):
                self._finished = event
                return held + self._view.opening(index)
            case _:  # of other kinds of models
                return held

    def finish(self, done: Done, spent: Phases) -> bytes:
        return self._release(timing(spent)) + self._view.end(usage(done.usage))

    def _release(self, timing: Timing | UnsetType = UNSET) -> bytes:
        finished, self._finished = self._finished, None
        return b"" if finished is None else self._view.finish(finished.index, finished.reason, timing)
