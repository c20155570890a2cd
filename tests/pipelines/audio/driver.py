"""Drives an AudioPipeline as the engine does, without processes."""

from collections.abc import Sequence
from time import monotonic

from models.whisper.model import AlignedWord, Floats, Hypothesis, Spoken, Task
from pipelines.audio.pipeline import AudioPipeline
from pipelines.base import StepFailed, Ticket
from pipelines.messages.audio import (
    Audio,
    AudioEvent,
    End,
    Passage,
    StreamItem,
    StreamRequest,
    TranscriptionRequest,
)
from pipelines.messages.base import encode_item
from pipelines.messages.frames import Done, Event, Failed, Priority
from tests.speech import Samples


class Driver:
    """Requests in, their events out."""

    def __init__(self, pipeline: AudioPipeline) -> None:
        self.pipeline = pipeline
        self.events: dict[str, list[Event]] = {}
        self.reports: list[tuple[str, int]] = []  # (kind, rows) of every step
        self._tickets: dict[str, Ticket] = {}

    def open(self, request: TranscriptionRequest | StreamRequest, priority: Priority = "interactive") -> str:
        id = f"r{len(self._tickets)}"
        ticket = self._tickets[id] = Ticket(id, priority, monotonic())
        self.events[id] = []
        self.pipeline.admit(self.pipeline.prepare(ticket, request))
        return id

    def feed(self, id: str, *items: StreamItem) -> None:
        for item in items:
            self.pipeline.admit(self.pipeline.feed(self._tickets[id], encode_item(item)))

    def step(self) -> None:
        """One step; a failed one is run again with each of its requests alone, as the engine does."""
        try:
            results = [self.pipeline.step()]
        except StepFailed as failure:
            results = []
            for id in failure.request_ids:
                try:
                    results.append(self.pipeline.step(only=id))
                except StepFailed:
                    self.pipeline.abort(id)
                    self.events[id].append(Failed(id, "internal_error", "it breaks its step"))
        for result in results:
            for event in result.events:
                self.events[event.id].append(event)
            if result.report is not None:
                self.reports.append((result.report.kind, result.report.rows))

    def run(self) -> None:
        while self.pipeline.busy:
            self.step()

    def transcribe(self, *requests: TranscriptionRequest) -> list[list[Event]]:
        """All of them at once."""
        ids = [self.open(request) for request in requests]
        self.run()
        for id in ids:
            assert [type(event) for event in self.events[id]].count(Done) == 1
            assert isinstance(self.events[id][-1], Done)
        return [self.events[id] for id in ids]

    def stream(self, request: StreamRequest, audio: Samples, piece: int = 3200) -> list[AudioEvent]:
        """Say `audio` piece by piece, as if the model took no time, and hang up."""
        id = self.open(request)
        for first in range(0, len(audio), piece):
            self.feed(id, Audio(audio[first : first + piece].tobytes()))
            self.run()
        self.feed(id, End())
        self.run()
        *said, end = self.events[id]
        assert isinstance(end, Done)
        return said  # type: ignore[return-value]


def text(events: Sequence[Event]) -> str:
    passages = [event for event in events if isinstance(event, Passage)]
    assert [passage.until for passage in passages] == sorted(passage.until for passage in passages)
    return "".join(segment.text for passage in passages for segment in passage.segments).strip()


class FakeWhisper:
    """Says what it is told to: `script` holds a text for each window in the order in which they are decoded.

    Its words fill their window, or take `pace` seconds each.
    """

    n_mels = 80
    multilingual = True
    languages = ("en", "de", "fr")
    start_of_previous = 1

    def __init__(
        self,
        script: Sequence[str | Hypothesis | Exception],
        detections: Sequence[dict[str, float]] = (),
        pace: float | None = None,
    ) -> None:
        self.pace = pace
        self.prefixes: list[tuple[int, ...]] = []
        self.script = list(script)
        self.detections = list(detections)
        self.calls: list[tuple[int, float, list[tuple[int, ...]]]] = []  # (frames, temperature, prompts)
        self._texts: list[str] = []

    def encode(self, mels: Sequence[Floats]) -> list[Floats]:
        return [mel[:1, ::2].T for mel in mels]

    def detect_language(self, encoded: Sequence[Floats]) -> list[dict[str, float]]:
        return [self.detections.pop(0) for _ in encoded]

    def generate(
        self, encoded: Sequence[Floats], prompts: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]],
        *, beam_size: int, temperature: float, best_of: int,
    ) -> list[Hypothesis]:  # fmt: skip
        self.prefixes += [tuple(prefix) for prefix in prefixes]
        self.calls.append((2 * len(encoded[0]), temperature, [tuple(prompt) for prompt in prompts]))
        for number in range(len(encoded)):
            if isinstance(self.script[number], Exception):
                raise self.script.pop(number)  # type: ignore[misc]
        said = [self.script.pop(0) for _ in encoded]
        return [self.hypothesis(each, temperature) if isinstance(each, str) else each for each in said]

    def hypothesis(self, text: str, temperature: float = 0.0, logprob: float = -0.2, silent: float = 0.0) -> Hypothesis:
        tokens = tuple(self._token(word) for word in text.split())
        return Hypothesis(tokens, self.decode_text(tokens), logprob, silent, temperature)

    def align(self, spoken: Sequence[Spoken]) -> list[list[AlignedWord]]:
        return [self._align(each.tokens, each.seconds) for each in spoken]

    def _align(self, tokens: Sequence[int], seconds: float) -> list[AlignedWord]:
        share = self.pace or seconds / max(1, len(tokens))
        return [
            AlignedWord(
                self._texts[token], (token,), min(index * share, seconds), min((index + 1) * share, seconds), 0.9
            )
            for index, token in enumerate(tokens)
        ]

    def start(self, language: str, task: Task) -> list[int]:
        return [2, 3 + self.languages.index(language), 8 if task == "transcribe" else 9]

    def encode_text(self, text: str) -> list[int]:
        return [self._token(word) for word in text.split()]

    def decode_text(self, tokens: Sequence[int]) -> str:
        return "".join(self._texts[token] for token in tokens)

    def beginning(self, hypothesis: Hypothesis, count: int) -> tuple[int, ...]:
        return hypothesis.tokens[:count]

    def words(self, tokens: Sequence[int], language: str) -> list[tuple[str, tuple[int, ...]]]:
        return [(self._texts[token], (token,)) for token in tokens]

    def _token(self, word: str) -> int:
        self._texts.append(f" {word}")
        return len(self._texts) - 1
