"""A kind of model that is declared here alone: its card, and all that the card names. It says what it was told."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import msgspec
from litestar import Controller
from litestar.di import NamedDependency
from msgspec import Struct

from gateway.api.request import HttpRequest, json_body, terms, timeline
from gateway.endpoint import JSON, Endpoint, JsonBody
from gateway.http.endpoints import serves
from gateway.requests.dispatch import Dispatcher, Reply
from gateway.requests.exchange import Job
from metrics.metric import counter, metrics_of, worker_counter, worker_gauge
from metrics.timeline import Phases, Timeline
from models.files.signs import Signs
from pipelines.base import InvalidRequest, StepResult, Ticket
from pipelines.kinds import Kind
from pipelines.messages.base import Count, Options, Request, Said
from pipelines.messages.frames import Done, Event, ModelSpec, Ready, Stats, StepReport, Timing, Usage

# --- what it is asked, and what it says -------------------------------------------------------------------------------


class ParrotOptions(Options, frozen=True, kw_only=True):
    times: Count = 1  # that a word is said


class Sentence(Request, frozen=True, tag="sentence"):
    words: list[str]


class Cry(Said, frozen=True, tag="cry"):
    words: list[str]

    def stamp(self, timeline: Timeline, received: float) -> None:
        timeline.count(CRIES)


# --- what is measured of it -------------------------------------------------------------------------------------------

CRIES = counter("parrot_cries", "cries", "Cries of closed requests")
WORDS = worker_counter("parrot_words", "words", "Words said, by their first letter", label="letter")
HEARD = worker_gauge("parrot_heard", "sentences", "Sentences heard and not answered")

METRICS = metrics_of(globals())


# --- its step loop ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Turn:
    ticket: Ticket
    words: list[str]

    @property
    def prompt_tokens(self) -> int:
        return len(self.words)


class ParrotPipeline:
    def __init__(self, options: ParrotOptions) -> None:
        self._times = options.times
        self._turns: deque[Turn] = deque()
        self._words: dict[str, float] = {}

    @classmethod
    def load(cls, spec: ModelSpec[ParrotOptions]) -> "tuple[ParrotPipeline, Ready]":
        return cls(spec.options), Ready(slots=1)

    def prepare(self, ticket: Ticket, request: Sentence) -> list[Turn]:
        if not request.words:
            raise InvalidRequest("there is nothing to say", "words")
        return [Turn(ticket, request.words * self._times)]

    def brief(self, request: Sentence) -> bool:
        return True

    def effort(self, request: Sentence) -> int:
        return len(request.words)

    def feed(self, ticket: Ticket, data: bytes) -> list[Turn]:
        raise InvalidRequest("a parrot takes no further input")

    def admit(self, works: Sequence[Turn]) -> None:
        self._turns.extend(works)

    def abort(self, request_id: str) -> None:
        self._turns = deque(turn for turn in self._turns if turn.ticket.id != request_id)

    @property
    def busy(self) -> bool:
        return bool(self._turns)

    def step(self, only: str | None = None) -> StepResult:
        began = monotonic()
        turn = self._turns.popleft()
        for word in turn.words:
            series = WORDS.series(word[0])
            self._words[series] = self._words.get(series, 0) + 1
        total = monotonic() - turn.ticket.received
        events: list[Event] = [
            Cry(turn.ticket.id, turn.words),
            Done(turn.ticket.id, Usage(len(turn.words)), Timing(total=total)),
        ]
        return StepResult(events, StepReport("cry", 1, len(turn.words), monotonic() - began))

    def stats(self) -> Stats:
        return Stats(0, len(self._turns), dict(self._words), {HEARD.series(): len(self._turns)})


# --- its endpoint -----------------------------------------------------------------------------------------------------


class ParrotBody(Struct, forbid_unknown_fields=True):
    model: str
    words: list[str]


class ParrotAnswer(Struct):
    words: list[str]


class ParrotOutput:
    streamed = False

    def __init__(self) -> None:
        self._words: list[str] = []

    def render(self, event: Said) -> bytes:
        assert isinstance(event, Cry)
        self._words += event.words
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        return msgspec.json.encode(ParrotAnswer(self._words))


class ParrotController(Controller):
    @serves(
        Endpoint(
            method="POST",
            path="/v1/parrot",
            kind="parrot",
            line="what it was told",
            summary="What it was told",
            body=JsonBody(ParrotBody),
            answers={JSON: [ParrotAnswer]},
        )
    )
    async def say(self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher]) -> Reply:
        body = msgspec.json.decode(await json_body(request), type=ParrotBody)
        route = dispatcher.route(body.model, PARROT.name)
        job = Job("parrot-1", route, Sentence(body.words), 1, terms(request, route.settings))
        return dispatcher.reply(job, ParrotOutput(), timeline(request))


# --- its card ---------------------------------------------------------------------------------------------------------

PARROT = Kind(
    name="parrot",
    card="tests.kinds.parrot:PARROT",
    pipeline="tests.kinds.parrot:ParrotPipeline",
    options=ParrotOptions,
    requests=Sentence,
    events=Cry,
    endpoints=("tests.kinds.parrot:ParrotController",),
    signs=Signs(members=("feathers.json",)),
    metrics=METRICS,
)
