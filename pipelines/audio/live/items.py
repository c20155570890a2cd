"""What is said of a live stream's items: their sections on the way through their final runs, and the text so far."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from models.whisper.model import Whisper
from pipelines.audio.agreement import SpokenWord
from pipelines.audio.cuts import Cut
from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.live.buffer import AudioBuffer
from pipelines.audio.stitching import segments
from pipelines.audio.vad import FRAME, Span
from pipelines.audio.windows import Window
from pipelines.messages.audio import Final, Partial, Word
from pipelines.messages.frames import Event


@dataclass(slots=True)
class Item:
    """Positions are samples since the start of the stream."""

    number: int
    start: int  # padding included
    speech_end: int  # where its speech was heard last
    end: int  # where the turn ended
    language: str | None
    text: str = ""  # said so far
    words: list[Word] = field(default_factory=list)
    announced: bool = False  # a partial was sent

    def say(self, text: str) -> str:
        """Add to the text; returns the part that is new, so that the parts add up."""
        delta = text if self.text else text.lstrip()
        self.text += delta
        return delta


@dataclass(slots=True)
class Section:
    """A part of an item, on its way through its final run. `last`: the item ends with it."""

    item: Item
    where: Cut
    speech: tuple[Span, ...]
    window: Window | None  # None: nobody speaks in it
    last: bool
    done: bool = False


class Items:
    """One stream's, in the order in which they began."""

    def __init__(self, stream_id: str, model: Whisper, buffer: AudioBuffer) -> None:
        self._id = stream_id
        self._model = model
        self._buffer = buffer
        self._sections: deque[Section] = deque()  # said from the front
        self._number = 0

    def new(self, start: int, end: int, language: str | None) -> Item:
        item = Item(self._number, start, end, end, language)
        self._number += 1
        return item

    def append(self, section: Section) -> None:
        self._sections.append(section)

    @property
    def pending(self) -> bool:
        """Whether there is a section that is not said yet."""
        return bool(self._sections)

    def awaits(self, item: Item) -> bool:
        return any(section.item is item for section in self._sections)

    @property
    def backlog(self) -> int:
        """Samples that wait for their final run."""
        return sum(len(each.window.audio) for each in self._sections if each.window is not None)

    @property
    def earliest(self) -> int | None:
        """Position of the first sample that is still needed."""
        return min((section.where.spans[0].start for section in self._sections), default=None)

    def settle(self, window: Window) -> None:
        """A window of a section has its result."""
        for section in self._sections:
            if section.window is window:
                section.done = True

    def finished(self) -> list[Event]:
        """What there is to say of the sections that are done, up to the first that is not."""
        events: list[Event] = []
        while self._sections and self._sections[0].done:
            events.append(self._say(self._sections.popleft()))
        return events

    def partial(
        self, item: Item, committed: Sequence[SpokenWord], tentative: Sequence[SpokenWord], speech: int, seen: int
    ) -> Partial:
        """A run over the open section up to `seen`, whose speech began at `speech`."""
        arrived = None if item.announced else self._buffer.arrival(speech + FRAME)
        item.announced = True
        delta = item.say("".join(text for text, _ in committed))
        rest = "".join(text for text, _ in tentative)
        return Partial(
            id=self._id,
            item=item.number,
            delta=delta,
            tentative=rest if item.text else rest.lstrip(),
            start=seconds(item.start),
            end=seconds(seen),
            latency=None if arrived is None else monotonic() - arrived,
        )

    def _say(self, section: Section) -> Partial | Final:
        item, window, model = section.item, section.window, self._model
        delta = ""
        if window is not None and window.result is not None:
            delta = item.say(model.decode_text(window.result.tokens[window.fixed :]))
            if window.words:
                for part in segments(model, window.result, window.words, section.where, section.speech):
                    item.words += part.words
        if not section.last:
            return Partial(self._id, item.number, delta, "", section.where.start, section.where.end)
        arrived = self._buffer.arrival(item.speech_end)
        return Final(
            id=self._id,
            item=item.number,
            delta=delta,
            transcript=item.text,
            start=seconds(item.start),
            end=seconds(item.speech_end),
            seconds=seconds(item.end - item.start),
            words=item.words,
            latency=None if arrived is None else monotonic() - arrived,
        )


def seconds(samples: int) -> float:
    return round(samples / SAMPLE_RATE, 3)
