"""The one queue of everything there is to decode: files and live streams, a batch at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from models.whisper.model import AlignedWord, Hypothesis, Task
from pipelines.audio.features import FRAMES_PER_SECOND, MAX_FRAMES, SAMPLE_RATE, Floats, Samples
from pipelines.audio.vad import Span
from pipelines.base import Ticket
from pipelines.messages.frames import Event

TAIL = 2 * FRAMES_PER_SECOND  # silent frames after the audio: with fewer the model does not see that it ends
FLOOR = 15 * FRAMES_PER_SECOND  # shorter windows loop: the model was trained on 30 s
BUCKET = 3 * FRAMES_PER_SECOND  # lengths are rounded up to this, so that windows can share a batch
NEARLY_ALL = 24 * FRAMES_PER_SECOND  # longer ones see all 30 s: the windows of a long file are of one length then
WITH_LIVE = 2  # windows of files in a step while someone speaks live: what they then wait for at most


class Lane(Enum):
    """How long a window may wait before it is as urgent as a final that comes just now, in seconds.

    So nothing starves: files overtake live streams once they have waited, and batch files other files.
    """

    FINAL = 0.0
    PARTIAL = 0.2
    FILE = 2.0
    BATCH_FILE = 10.0


class Stage(Enum):
    ENCODE = auto()
    DECODE = auto()
    ALIGN = auto()


class Owner(Protocol):
    """Whose windows they are: a file or a live stream. Engine thread."""

    def detected(self, window: "Window", probabilities: dict[str, float]) -> Iterable["Window"]:
        """The languages that a window may be in. Returns windows to be queued now; this one may have to wait."""
        ...

    def finished(self, window: "Window") -> None:
        """A window has its `result`; None: nobody speaks in it."""
        ...

    def take(self) -> tuple[list[Event], list["Window"], list["Window"]]:
        """(what to say, windows to be queued, windows that nobody waits for any more) since the last time."""
        ...


@dataclass(frozen=True, slots=True)
class Hole:
    """Samples [start, end) of a window have speech, and not its words: of them [first, last) are to be found again."""

    start: int
    end: int
    first: int
    last: int
    seek: bool = False  # it is what is behind the last whole segment


@dataclass(slots=True, eq=False)
class Window:
    """At most 30 s of audio on its way to text. `owner` makes it, the engine thread takes it through its stages."""

    ticket: Ticket
    owner: Owner
    lane: Lane
    number: int  # the owner's own
    audio: Samples
    queued: float
    speech: tuple[Span, ...] = ()  # samples of the audio that have speech
    task: Task = "transcribe"
    language: str | None = None  # None: to be detected
    context: tuple[int, ...] = ()  # tokens of text before it
    prefix: tuple[int, ...] = ()  # tokens that it begins with, whatever is heard; those of time too
    fixed: int = 0  # tokens of text that were said already
    continued: bool = False  # it was made to go on behind what the model took for its end
    temperatures: tuple[float, ...] = (0.0,)
    rung: int = 0  # index of the temperature to decode at
    full: bool = False  # encode all of 30 s
    aligned: bool = False  # words are to have times, whatever is in it
    depth: int = 0  # how often it was parted from a window, to be decoded alone
    stage: Stage = Stage.ENCODE
    encoded: Floats | None = None  # [frames / 2, d_model]
    tried: list[Hypothesis] = field(default_factory=list)
    result: Hypothesis | None = None
    spent: float = 0.0  # seconds of steps, its share of them
    words: list[AlignedWord] = field(default_factory=list)  # none if they were not needed
    missing: list[Hole] = field(default_factory=list)  # of a partial; those of other windows are decoded again

    @property
    def due(self) -> float:
        return self.queued + self.lane.value

    @property
    def seconds(self) -> float:
        return len(self.audio) / SAMPLE_RATE

    @property
    def temperature(self) -> float:
        return self.temperatures[self.rung]

    @property
    def live(self) -> bool:
        return self.lane in (Lane.FINAL, Lane.PARTIAL)

    @property
    def frames(self) -> int:
        """Mel frames that the encoder is to see."""
        if self.full:
            return MAX_FRAMES
        spoken = -(-len(self.audio) * FRAMES_PER_SECOND // SAMPLE_RATE) + TAIL
        return MAX_FRAMES if spoken > NEARLY_ALL else max(FLOOR, -(-spoken // BUCKET) * BUCKET)

    @property
    def shape(self) -> tuple[Stage, int, int, float, bool]:
        """Windows of one shape can be in one step."""
        if self.stage is Stage.DECODE:
            return self.stage, self.frames, len(self.context), self.temperature, self.live
        return self.stage, self.frames, 0, 0.0, self.live


class WindowQueue:
    """Most urgent first. Windows stay in it until they are done: a step that fails has changed nothing."""

    def __init__(self) -> None:
        self._windows: dict[Window, None] = {}  # an ordered set

    def __len__(self) -> int:
        return len(self._windows)

    def __contains__(self, window: Window) -> bool:
        return window in self._windows

    def __iter__(self) -> Iterator[Window]:
        return iter(self._windows)

    def put(self, windows: Iterable[Window]) -> None:
        for window in windows:
            self._windows[window] = None

    def remove(self, window: Window) -> None:
        self._windows.pop(window, None)

    def forget(self, request_id: str) -> None:
        for window in [window for window in self._windows if window.ticket.id == request_id]:
            del self._windows[window]

    def group(self, limit: int, only: str | None = None) -> Sequence[Window]:
        """The most urgent window, and those of its shape that are next: `limit` at most, fewer beside live speech."""
        windows = [window for window in self._windows if only is None or window.ticket.id == only]
        if not windows:
            return ()
        windows.sort(key=lambda window: window.due)
        head = windows[0]
        if not head.live and any(window.live for window in windows):
            limit = min(limit, WITH_LIVE)
        return [window for window in windows if window.shape == head.shape][:limit]
