"""One file on its way through the queue: which of its windows are under way, and its transcript in order."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic

from models.whisper.model import Whisper
from pipelines.audio.cuts import Cut
from pipelines.audio.features import SAMPLE_RATE, Samples
from pipelines.audio.stitching import segments
from pipelines.audio.vad import Span
from pipelines.audio.windows import Lane, Window
from pipelines.base import Ticket
from pipelines.messages.audio import Media, Passage, Segment, TranscriptionRequest
from pipelines.messages.frames import Done, Event, Timing, Usage

LANGUAGE_THRESHOLD = 0.5  # probability at which a window tells the language of its file
LANGUAGE_WINDOWS = 4  # after so many that did not, the votes are counted
ASSUMED_LANGUAGE = "en"  # where there is nothing to tell it from


@dataclass(frozen=True, slots=True)
class Prepared:
    """A decoded file: the work of its request."""

    ticket: Ticket
    request: TranscriptionRequest
    audio: Samples
    cuts: tuple[Cut, ...]
    speech: tuple[Span, ...]
    context: tuple[int, ...]
    temperatures: tuple[float, ...]
    language: str | None
    ready: float  # when it was
    prompt_tokens: int = 0

    @property
    def seconds(self) -> float:
        return len(self.audio) / SAMPLE_RATE


@dataclass(slots=True, eq=False)
class FileJob:
    """Engine thread only. At most `in_flight` of its windows are under way; one by one until its language is known."""

    file: Prepared
    model: Whisper
    in_flight: int
    full: bool
    language: str | None = None
    next_cut: int = 0
    open: int = 0
    detecting: list[Window] = field(default_factory=list)  # encoded, waiting for the language
    votes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    passages: dict[int, Passage] = field(default_factory=dict)  # done, waiting for those before them
    said: int = 0  # passages so far
    generated: int = 0  # tokens, those of failed tries too
    started: float | None = None  # the first of its steps
    events: list[Event] = field(default_factory=list)

    def begin(self) -> None:
        self.language = self.file.language
        self.events.append(Media(self.file.ticket.id, self.file.seconds))
        if not self.file.cuts:
            self.events.append(self._passage([], self.file.seconds, 0))
            self.events.append(self._done())

    def take(self) -> tuple[list[Event], list[Window], list[Window]]:
        events, self.events = self.events, []
        return events, list(self._more()), []

    def detected(self, window: Window, probabilities: dict[str, float]) -> list[Window]:
        self.detecting.append(window)
        for language, probability in probabilities.items():
            self.votes[language] += probability
        likeliest = max(probabilities, key=lambda code: probabilities[code])
        if probabilities[likeliest] >= LANGUAGE_THRESHOLD:
            self.language = likeliest
        elif len(self.detecting) >= LANGUAGE_WINDOWS or self.next_cut == len(self.file.cuts):
            self.language = max(self.votes, key=lambda code: self.votes[code])
        if self.language is None:
            return []
        released, self.detecting = self.detecting, []
        for each in released:
            each.language = self.language
        return released

    def finished(self, window: Window) -> None:
        self.open -= 1
        cut = self.file.cuts[window.number]
        tokens = sum(len(each.tokens) for each in window.tried)
        self.generated += tokens
        found: list[Segment] = []
        if window.result is not None:
            found = segments(self.model, window.result, window.words, cut, self.file.speech)
        self.passages[window.number] = self._passage(found, cut.end, tokens)
        while (passage := self.passages.pop(self.said, None)) is not None:
            self.events.append(passage)
            self.said += 1
        if self.said == len(self.file.cuts):
            self.events.append(self._done())

    def _more(self) -> Iterator[Window]:
        """The next windows that may be in the queue now."""
        limit = self.in_flight if self.language is not None else len(self.detecting) + 1
        file = self.file
        while self.open < limit and self.next_cut < len(file.cuts):
            yield Window(
                ticket=file.ticket,
                owner=self,
                lane=Lane.FILE if file.ticket.priority == "interactive" else Lane.BATCH_FILE,
                number=self.next_cut,
                audio=file.cuts[self.next_cut].take(file.audio),
                queued=monotonic(),
                speech=file.cuts[self.next_cut].within(file.speech),
                task=file.request.task,
                language=self.language,
                context=file.context,
                temperatures=file.temperatures,
                full=self.full,
                aligned=file.request.timestamps,
            )
            self.open += 1
            self.next_cut += 1

    def _passage(self, found: list[Segment], until: float, tokens: int) -> Passage:
        return Passage(self.file.ticket.id, found, until, self.language or ASSUMED_LANGUAGE, tokens)

    def _done(self) -> Done:
        now, ticket = monotonic(), self.file.ticket
        started = self.started or now
        timing = Timing(
            prepare=self.file.ready - ticket.received,
            queue=started - self.file.ready,
            compute=now - started,
            total=now - ticket.received,
        )
        return Done(ticket.id, Usage(len(self.file.context), self.generated), timing)
