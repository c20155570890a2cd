"""No sentence lost: what a window's words leave out is decoded again, alone.

That is what lies behind the last segment that the model closed, and every stretch of speech without words. Where the
model takes that segment for the last, it is made to go on from there first. The alignment lays words over what the
model skipped, too; so what counts is whether a stretch has as many words as anyone says in its time, not whether some
word lies on it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from models.whisper.model import MAX_NEW_TOKENS, AlignedWord, Whisper
from pipelines.audio.agreement import plain
from pipelines.audio.fallback import is_degenerate, is_silent
from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.vad import Span
from pipelines.audio.windows import Hole, Window
from pipelines.messages.frames import Event

MIN_UNITS = 0.8  # in a second of speech: slow speakers say twice as much
LETTERS = 3  # letters or digits that count as much as a token: "1989" is one, and takes longer to say
MIN_ALONE = SAMPLE_RATE // 4  # speech that is decoded again where pauses set it apart on both sides
MIN_SPEECH = SAMPLE_RATE * 6 // 10  # and where they do not: the words' times are only about this exact
APART = SAMPLE_RATE * 3 // 10  # such a pause
PAD = SAMPLE_RATE * 3 // 10  # silence that is kept around it, at most
WORD_SECONDS = 0.5  # that a word takes, where the alignment can't be believed
MAX_REPEATED = 2  # words and punctuation marks
MAX_DEPTH = 2  # parts of parts
MAX_CONTINUED = MAX_NEW_TOKENS // 2  # tokens of a transcript that is made to go on
NO_PAUSE = 5 * SAMPLE_RATE  # speech without a pause that a model says whole or not at all


def missing(window: Window) -> list[Hole]:
    """The holes of a window that has its result and, where they were needed, its words. They do not overlap."""
    if window.depth == MAX_DEPTH or (window.result is not None and window.result.tokens and not window.words):
        return []
    fixed = _words_within(window.words, window.fixed)  # these stay as they are
    rest = _behind(window)
    words: Sequence[AlignedWord] = window.words
    speech: Sequence[Span] = window.speech
    if rest is not None:
        words, speech = words[: rest.first], _clipped(speech, 0, rest.start)
    found = [*holes(words, speech, rest.start if rest else len(window.audio)), *([rest] if rest else [])]
    return [after for hole in found if (after := _after(hole, fixed, window.words)) is not None]


def continuation(window: Window, found: Sequence[Hole]) -> tuple[int, ...]:
    """The tokens with which a window can be decoded once more where its last segment ends before its speech does: the
    model, which takes it for the last, is made to begin another. Empty where that is not so, or was tried."""
    result = window.result
    if window.continued or result is None or result.seek is None or not result.seek.last:
        return ()
    if not found or found[-1].first < len(window.words) or len(result.timed) > MAX_CONTINUED:
        return ()
    return (*result.timed, result.timed[-1])


def _after(hole: Hole, fixed: int, words: Sequence[AlignedWord]) -> Hole | None:
    """What there is of a hole behind the first `fixed` words."""
    if hole.first >= fixed:
        return hole
    if hole.last < fixed:
        return None
    last = words[fixed - 1]
    start = int(min(last.end, last.start + WORD_SECONDS) * SAMPLE_RATE)
    return replace(hole, start=start, first=fixed) if hole.end - start >= MIN_SPEECH else None


def _words_within(words: Sequence[AlignedWord], tokens: int) -> int:
    """How many words the first `tokens` tokens are, begun ones too."""
    count = seen = 0
    while count < len(words) and seen < tokens:
        seen += len(words[count].tokens)
        count += 1
    return count


def _behind(window: Window) -> Hole | None:
    """What is behind the last whole segment, if there is speech."""
    speech = _unsaid(window)
    if not speech:
        return None
    assert window.result is not None
    assert window.result.seek is not None
    seek = window.result.seek
    first = _words_within(window.words, seek.tokens)
    return Hole(speech[0].start, speech[-1].end, first, len(window.words), seek=not seek.last)


def _unsaid(window: Window) -> list[Span]:
    """The speech behind the last whole segment; none where it is too little to be sure.

    Where the model takes that segment for the last, its end may be early; then the last word's time counts, too. The
    times of words are not known before they are aligned.
    """
    seek = window.result.seek if window.result is not None else None
    if seek is None:
        return []
    start = seek.seconds
    if seek.last and window.words:
        word = window.words[-1]
        start = max(start, min(word.end, word.start + WORD_SECONDS))
    speech = _clipped(window.speech, int(start * SAMPLE_RATE), len(window.audio))
    enough = sum(span.samples for span in speech) >= (MIN_SPEECH if seek.last else MIN_ALONE)
    return speech if enough else []


def _clipped(speech: Sequence[Span], start: int, end: int) -> list[Span]:
    return [
        Span(max(each.start, start), min(each.end, end)) for each in speech if each.start < end and each.end > start
    ]


def needs_alignment(window: Window) -> bool:
    """Whether something may be missing in a window's result that only the times of its words can show."""
    result, spans = window.result, window.speech
    if result is None or not spans:
        return False
    if len(spans) > 1 or spans[0].samples > NO_PAUSE or _unsaid(window):
        return True
    return _units(len(result.tokens), result.text) < 2 * MIN_UNITS * spans[0].samples / SAMPLE_RATE


def holes(words: Sequence[AlignedWord], speech: Sequence[Span], samples: int) -> list[Hole]:
    """Where a window of `samples` samples has `speech` without words. Times of words are of the window."""
    if not speech:
        return []
    places = [_place(word, speech) for word in words]
    units = [0.0] * len(speech)
    for word, place in zip(words, places, strict=True):
        units[place] += _units(len(word.tokens), word.text)
    silent = [count < MIN_UNITS * span.samples / SAMPLE_RATE for count, span in zip(units, speech, strict=True)]
    runs = list(_runs(silent))
    if runs == [(0, len(speech))]:  # all of it: to decode it again is of use in parts alone
        middle = max(range(1, len(speech)), key=lambda i: speech[i].start - speech[i - 1].end, default=0)
        runs = [(0, middle), (middle, len(speech))] if middle else []
    return [_hole(first, last, words, places, speech) for first, last in runs if _is_sure(first, last, speech, samples)]


def pause_before(start: int, speech: Sequence[Span]) -> int | None:
    """Where the speech before a pause that lasts up to `start` ends; None where speech goes on at `start`, or there is
    none before it. Words that were said lie on both sides of any other place."""
    if any(span.start < start < span.end for span in speech):
        return None
    return max((span.end for span in speech if span.end <= start), default=None)


def audio_of(hole: Hole, window: Window) -> Span:
    """The part of a window's audio that a hole is decoded from: with the silence around it, up to other speech."""
    before = max((min(span.end, hole.start) for span in window.speech if span.start < hole.start), default=0)
    after = min((max(span.start, hole.end) for span in window.speech if span.end > hole.end), default=len(window.audio))
    return Span(hole.start - min(PAD, (hole.start - before) // 2), hole.end + min(PAD, (after - hole.end) // 2))


class Patch:
    """A window's holes, each on its way as a window of its own. Once closed, the window is done. Engine thread only."""

    def __init__(self, window: Window, found: Sequence[Hole], model: Whisper) -> None:
        self.outcomes: Counter[str] = Counter()  # "seek", or whether something was said: "recovered", "empty"
        self.window = window
        self._model = model
        self._holes = [(hole, self._again(hole, number)) for number, hole in enumerate(found)]
        self._open = len(self._holes)

    @property
    def windows(self) -> list[Window]:
        """One a hole."""
        return [window for _, window in self._holes]

    @property
    def closed(self) -> bool:
        return not self._open

    def detected(self, window: Window, probabilities: dict[str, float]) -> list[Window]:
        raise AssertionError("a window's language is known before it is decoded")

    def finished(self, window: Window) -> None:
        self._open -= 1
        self.window.tried += window.tried
        if self.closed:
            self._close()

    def take(self) -> tuple[list[Event], list[Window], list[Window]]:
        return self.window.owner.take()

    def _again(self, hole: Hole, number: int) -> Window:
        window, where = self.window, audio_of(hole, self.window)
        inside = _clipped(window.speech, hole.start, hole.end)
        return Window(
            ticket=window.ticket,
            owner=self,
            lane=window.lane,
            number=number,
            audio=window.audio[where.start : where.end],
            queued=window.queued,
            speech=tuple(Span(span.start - where.start, span.end - where.start) for span in inside),
            task=window.task,
            language=window.language,
            context=window.context,
            temperatures=window.temperatures,
            aligned=True,
            depth=window.depth + 1,
        )

    def _close(self) -> None:
        """The words that were found take the place of those that seemed to be there."""
        words, changed = list(self.window.words), False
        for hole, again in reversed(self._holes):
            heard = _heard(again)
            old = words[hole.first : hole.last]
            better = _amount(heard) > _amount(old) and not _repeats(heard, words[: hole.first], words[hole.last :])
            self.outcomes["seek" if hole.seek else "recovered" if better else "empty"] += 1
            if not better:
                continue
            offset = audio_of(hole, self.window).start / SAMPLE_RATE
            words[hole.first : hole.last] = [
                replace(word, start=word.start + offset, end=word.end + offset) for word in heard
            ]
            changed = True
            self.window.result = self.window.result or again.result
        if changed and self.window.result is not None:
            tokens = tuple(token for word in words for token in word.tokens)
            self.window.words = words
            self.window.result = replace(self.window.result, tokens=tokens, text=self._model.decode_text(tokens))


def _heard(window: Window) -> list[AlignedWord]:
    """What was said in a hole, if it can be believed."""
    result = window.result
    if result is None or is_silent(result) or is_degenerate(result, window.seconds):
        return []
    return window.words


def _repeats(heard: Sequence[AlignedWord], before: Sequence[AlignedWord], after: Sequence[AlignedWord]) -> bool:
    """Whether it is but a word that stands beside it: its time was wrong, and nothing is missing."""
    if not 0 < len(heard) <= MAX_REPEATED:
        return False
    said = "".join(plain(word.text) for word in heard)
    left = "".join(plain(word.text) for word in before[-len(heard) :])
    right = "".join(plain(word.text) for word in after[: len(heard)])
    return left.endswith(said) or right.startswith(said)


def _amount(words: Iterable[AlignedWord]) -> int:
    return sum(len(plain(word.text)) for word in words)


def _units(tokens: int, text: str) -> float:
    letters = sum(map(str.isalnum, text))
    return max(tokens if letters else 0, letters / LETTERS)


def _place(word: AlignedWord, speech: Sequence[Span]) -> int:
    """The stretch of speech that holds most of a word; else the nearest."""
    start, end = word.start * SAMPLE_RATE, word.end * SAMPLE_RATE
    return max(range(len(speech)), key=lambda i: min(end, speech[i].end) - max(start, speech[i].start))


def _runs(flags: Sequence[bool]) -> Iterable[tuple[int, int]]:
    """[first, last) of those that are set and stand side by side."""
    first: int | None = None
    for index, flag in enumerate([*flags, False]):
        if flag and first is None:
            first = index
        elif not flag and first is not None:
            yield first, index
            first = None


def _is_sure(first: int, last: int, speech: Sequence[Span], samples: int) -> bool:
    """Whether there is enough speech that it can't be a word of its neighbours."""
    before = speech[first].start - (speech[first - 1].end if first else -samples)
    after = (speech[last].start if last < len(speech) else 2 * samples) - speech[last - 1].end
    spoken = sum(span.samples for span in speech[first:last])
    return spoken >= (MIN_ALONE if min(before, after) >= APART else MIN_SPEECH)


def _hole(
    first: int,
    last: int,
    words: Sequence[AlignedWord],
    places: Sequence[int],
    speech: Sequence[Span],
) -> Hole:
    """Words that reach in from before or out behind belong there, and stay."""
    start, end = speech[first].start, speech[last - 1].end
    inside = [
        index
        for index, (word, place) in enumerate(zip(words, places, strict=True))
        if first <= place < last
        and not (first and word.start * SAMPLE_RATE < speech[first - 1].end)
        and not (last < len(speech) and word.end * SAMPLE_RATE > speech[last].start)
    ]
    if inside:
        return Hole(start, end, inside[0], inside[-1] + 1)
    at = sum(
        place < first or (place < last and bool(first) and word.start * SAMPLE_RATE < speech[first - 1].end)
        for word, place in zip(words, places, strict=True)
    )
    return Hole(start, end, at, at)
