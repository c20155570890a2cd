"""Long audio -> windows that a model can take, cut where nobody speaks."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.audio.features import SAMPLE_RATE, Samples
from pipelines.audio.vad import FRAME, Span, speech_spans

PAD = SAMPLE_RATE // 2  # silence that is kept behind speech; longer silences are not decoded at all
MIN_SPEECH = 3 * FRAME  # shorter bursts are no speech
SMOOTHING = 5  # frames that a cut inside speech is judged on
MAX_SECONDS = 28.0  # of audio in a window: 2 s of the model's 30 are left silent


@dataclass(frozen=True, slots=True)
class Cut:
    """Pieces of the audio, in order; end to end they are one window's audio."""

    spans: tuple[Span, ...]

    @property
    def start(self) -> float:
        """Seconds in the whole."""
        return self.spans[0].start / SAMPLE_RATE

    @property
    def end(self) -> float:
        return self.spans[-1].end / SAMPLE_RATE

    @property
    def samples(self) -> int:
        return sum(span.samples for span in self.spans)

    def take(self, audio: Samples) -> Samples:
        return np.concatenate([audio[span.start : span.end] for span in self.spans])

    def within(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Spans of the whole, in order, as spans of the window: what it has of them."""
        found: list[Span] = []
        before = 0  # samples of the window
        for piece in self.spans:
            shift = before - piece.start
            first = bisect_right(spans, piece.start, key=lambda span: span.end)
            last = bisect_left(spans, piece.end, key=lambda span: span.start)
            found.extend(
                Span(max(span.start, piece.start) + shift, min(span.end, piece.end) + shift)
                for span in spans[first:last]
            )
            before += piece.samples
        return tuple(found)

    def locate(self, seconds: float, *, ending: bool = False) -> float:
        """A time in the window as a time in the whole. On the border of two pieces, what ends does so in the first."""
        position = round(seconds * SAMPLE_RATE)
        for span in self.spans:
            if position < span.samples or (ending and position == span.samples):
                return (span.start + position) / SAMPLE_RATE
            position -= span.samples
        return self.end


def cut(
    probabilities: npt.NDArray[np.float32],
    samples: int,
    *,
    threshold: float = 0.5,
    silence_ms: float = 500,
    padding_ms: float = 500,
    target: float = MAX_SECONDS,
) -> list[Cut]:
    """All that was spoken in `samples` samples, in windows of about `target` seconds (<= 30) and no more.

    `probabilities`: of speech, by frame. `padding_ms`: of silence that is kept before speech. Where nobody speaks there
    are no windows.
    """
    spans = [s for s in speech_spans(probabilities, threshold, silence_ms) if s.samples >= MIN_SPEECH]
    limit = int(target * SAMPLE_RATE)
    before = int(padding_ms * SAMPLE_RATE) // 1000
    pieces = [piece for span in _padded(spans, samples, before) for piece in _split(span, probabilities, limit)]
    return [Cut(tuple(_joined(group))) for group in _packed(pieces, limit)]


def quietest(probabilities: npt.NDArray[np.float32], first: int, last: int) -> int:
    """The frame in [first, last) around which speech is least likely."""
    smooth = np.convolve(probabilities[first:last], np.ones(SMOOTHING) / SMOOTHING, mode="same")
    return first + int(smooth.argmin())


def _padded(spans: Sequence[Span], samples: int, padding: int) -> Iterator[Span]:
    """Each with `padding` of silence before it and `PAD` behind it, or half of what there is between two."""
    for index, span in enumerate(spans):
        before = spans[index - 1].end if index else 0
        after = spans[index + 1].start if index + 1 < len(spans) else samples
        start = span.start - min(padding, (span.start - before) // 2 if index else span.start)
        end = span.end + min(PAD, (after - span.end + 1) // 2 if index + 1 < len(spans) else samples - span.end)
        yield Span(start, min(end, samples))


def _split(span: Span, probabilities: npt.NDArray[np.float32], limit: int) -> Iterator[Span]:
    """A span longer than `limit` in parts, cut where speech is least likely in the second half of each."""
    while span.samples > limit:
        first, last = (span.start + limit // 2) // FRAME, min((span.start + limit) // FRAME, len(probabilities))
        middle = quietest(probabilities, first, last) * FRAME
        yield Span(span.start, middle)
        span = Span(middle, span.end)
    yield span


def _packed(spans: Sequence[Span], limit: int) -> Iterator[list[Span]]:
    """As many in a row as fit."""
    group: list[Span] = []
    size = 0
    for span in spans:
        if group and size + span.samples > limit:
            yield group
            group, size = [], 0
        group.append(span)
        size += span.samples
    if group:
        yield group


def _joined(spans: Sequence[Span]) -> Iterator[Span]:
    """Neighbours that touch are one."""
    whole = spans[0]
    for span in spans[1:]:
        if span.start == whole.end:
            whole = Span(whole.start, span.end)
        else:
            yield whole
            whole = span
    yield whole
