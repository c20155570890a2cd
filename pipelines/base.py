"""What every modality implements: a step loop that is batched continuously at its own natural step."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from pipelines.messages.base import Request
from pipelines.messages.frames import ErrorCode, Event, Failed, ModelSpec, Priority, Ready, Stats, StepReport


class InvalidRequest(Exception):
    """The request can't be served as asked. `param` names the field, as the wire spells it."""

    def __init__(self, message: str, param: str | None = None, code: ErrorCode = "invalid_request") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code: ErrorCode = code


def non_finite(request_id: str, where: str = "") -> Failed:
    """The end of a request whose result is no number. `where`: of which part of it, " for input 3"."""
    what = f"The model's result{where} is not a finite number, and another try gives the same."
    return Failed(request_id, "invalid_output", what)


class ModelError(Exception):
    """The model can't be loaded, and would not be at the next try: the reason, for the operator."""


class StepFailed(Exception):
    """A step broke. Its requests are as they were before it, so that each can be tried again alone."""

    def __init__(self, request_ids: Collection[str], cause: BaseException) -> None:
        super().__init__(str(cause))
        self.request_ids = tuple(request_ids)
        self.cause = cause


class Ticket(Struct, frozen=True):
    """Who a request is and when it came. `received` is on this process's monotonic clock."""

    id: str
    priority: Priority
    received: float
    deadline: float | None = None  # on the same clock
    tenant: str = ""


class Work(Protocol):
    """One schedulable unit of a prepared request: a sequence, an input, a window, an image."""

    @property
    def ticket(self) -> Ticket: ...

    @property
    def prompt_tokens(self) -> int:
        """Its part of the request's prompt tokens: choices of one prompt share them, so all but one of these have 0."""
        ...


R = TypeVar("R", bound=Request, contravariant=True)
W = TypeVar("W", bound=Work)


class StepResult(Struct, frozen=True):
    events: Sequence[Event] = ()
    report: StepReport | None = None


class Pipeline(Protocol[R, W]):
    """One model's step loop.

    `prepare` and `feed` run on pool threads and on the one that listens, concurrently; `admit`, `abort`, `step`, `busy`
    and `stats` on the engine thread, which alone touches the model. All work of one request is admitted together, then
    ends with one `Done` or `Failed` among the events of a step (the runtime itself answers an abort and a deadline that
    passes).
    """

    @classmethod
    def load(cls, spec: ModelSpec[Any]) -> "tuple[Pipeline[R, W], Ready]":
        """Load and warm the model, on the engine thread. `spec` has the options of its kind. Raises ModelError where a
        retry would not help."""
        ...

    def prepare(self, ticket: Ticket, request: R) -> list[W]:
        """Validate, tokenise, decode media. Raises InvalidRequest."""
        ...

    def brief(self, request: R) -> bool:
        """Whether preparing it takes about as long as waking another thread: then the one that listens does it."""
        ...

    def effort(self, request: R) -> int:
        """About the bytes of text that are tokenised in the time that it takes to prepare: less goes first."""
        ...

    def feed(self, ticket: Ticket, data: bytes) -> list[W]:
        """More input of an open stream; calls of one request come in order. Raises InvalidRequest."""
        ...

    def admit(self, works: Sequence[W]) -> None:
        """Queue the prepared work of one request for the coming steps."""
        ...

    def abort(self, request_id: str) -> None:
        """Forget a request before the next step. Idempotent; unknown ids are ignored, also those still in `prepare`."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        ...

    def step(self, only: str | None = None) -> StepResult:
        """One unit of batched work; with `only`, of that request alone. Raises StepFailed."""
        ...

    def stats(self) -> Stats: ...
