"""Windows' texts -> one transcript: words with times in the whole audio, gathered into segments."""

from collections.abc import Iterable, Iterator, Sequence

from models.whisper.model import AlignedWord, Hypothesis, Whisper
from pipelines.audio.cuts import Cut
from pipelines.audio.features import FRAMES_PER_SECOND, SAMPLE_RATE
from pipelines.audio.vad import Span
from pipelines.messages.audio import Segment, Word

OPENING = frozenset("\"'“¿([{-")  # stand before the word that they belong to
SENTENCE_END = frozenset(".?!。？！…")
CLAUSE_END = frozenset(",;:，、；：")
ABBREVIATION = 3  # letters: "Mr." ends no sentence
PAUSE = 0.3  # seconds after which even a short word with a full stop ends a sentence
BREAK = 1.0  # seconds of silence that end a segment wherever they are
LONG_CHARS, LONG_SECONDS = 84, 7.0  # two lines of a caption, and how long one stays up


def segments(
    model: Whisper, hypothesis: Hypothesis, words: Sequence[AlignedWord], where: Cut, speech: Sequence[Span]
) -> list[Segment]:
    """The segments of one window. Without `words` it is one, as long as the window.

    `speech`: where the whole audio has speech. Times are ordered and inside the window's own.
    """
    if not hypothesis.text.strip():
        return []
    seek = int(where.start * FRAMES_PER_SECOND)
    if not words:
        return [_segment(hypothesis, hypothesis.text, list(hypothesis.tokens), where.start, where.end, seek, [])]
    found: list[Segment] = []
    blank: list[int] = []  # tokens of a group without a word: its space parts the words on its sides
    for group in _sentences(_located(_whole_words(words), where, speech)):
        tokens = [*blank, *(token for word, _, _ in group for token in word.tokens)]
        text = model.decode_text(tokens)
        timed = [Word(w.text.strip(), start, end, round(w.probability, 4)) for w, start, end in group if w.text.strip()]
        if text.strip() and timed:
            found.append(_segment(hypothesis, text, tokens, timed[0].start, timed[-1].end, seek, timed))
            blank = []
        else:
            blank = tokens
    return found


def _segment(
    hypothesis: Hypothesis, text: str, tokens: list[int], start: float, end: float, seek: int, words: list[Word]
) -> Segment:
    return Segment(
        start=round(start, 3),
        end=round(end, 3),
        text=text,
        tokens=tokens,
        seek=seek,
        temperature=hypothesis.temperature,
        avg_logprob=hypothesis.avg_logprob,
        compression_ratio=hypothesis.compression_ratio,
        no_speech_prob=hypothesis.no_speech_prob,
        words=words,
    )


Timed = tuple[AlignedWord, float, float]  # a word, its start and end in the whole audio


def _whole_words(words: Sequence[AlignedWord]) -> list[AlignedWord]:
    """Punctuation joined to the word that it belongs to, and what has no space before it to the word before."""
    spaced = 2 * sum(word.text.startswith(" ") for word in words) > len(words)  # else each character is a word
    joined: list[AlignedWord] = []
    opening: AlignedWord | None = None
    for word in words:
        if opening is not None:
            word = _join(opening, word, probability=word.probability)
            opening = None
        bare = word.text.strip()
        if bare in OPENING and word.text.startswith(" "):
            opening = word
        elif joined and not word.text.startswith(" ") and (spaced or not any(map(str.isalnum, bare))):
            joined[-1] = _join(joined[-1], word, probability=joined[-1].probability)
        else:
            joined.append(word)
    return [*joined, opening] if opening is not None else joined


def _join(first: AlignedWord, second: AlignedWord, probability: float) -> AlignedWord:
    start, end = (first.start, second.end) if any(map(str.isalnum, second.text)) else (first.start, first.end)
    return AlignedWord(first.text + second.text, first.tokens + second.tokens, start, end, probability)


def _located(words: Sequence[AlignedWord], where: Cut, speech: Sequence[Span]) -> Iterator[Timed]:
    """Times in the whole audio, in order. A word that the alignment stretched over a pause is taken out of it."""
    earliest = where.start
    for word in words:
        start = max(earliest, where.locate(word.start))
        end = max(start, where.locate(word.end, ending=True))
        start, end = _out_of_silence(start, end, speech)
        start = max(start, earliest)
        end = round(min(max(end, start), where.end), 3)
        start = round(min(start, end), 3)
        yield word, start, end
        earliest = end


def _out_of_silence(start: float, end: float, speech: Sequence[Span]) -> tuple[float, float]:
    """The part of a word in the stretch of speech that holds most of it."""
    best, longest = (start, end), 0.0
    for span in speech:
        first, last = max(start, span.start / SAMPLE_RATE), min(end, span.end / SAMPLE_RATE)
        if span.start / SAMPLE_RATE >= end:
            break
        if last - first > longest:
            best, longest = (first, last), last - first
    return best


def _sentences(words: Iterable[Timed]) -> Iterator[list[Timed]]:
    group: list[Timed] = []
    for timed in words:
        if group and _breaks(group, timed):
            yield group
            group = []
        group.append(timed)
    if group:
        yield group


def _breaks(group: Sequence[Timed], following: Timed) -> bool:
    """Whether a segment ends between its words so far and the next."""
    word, _, end = group[-1]
    gap = following[1] - end
    if gap >= BREAK:
        return True
    bare = word.text.strip().rstrip("\"'”)]}")
    if bare and bare[-1] in SENTENCE_END:
        return gap >= PAUSE or bare[-1] != "." or sum(map(str.isalpha, bare)) > ABBREVIATION
    if not following[0].text.startswith(" ") and word.text.startswith(" "):
        return False  # inside a word
    chars = sum(len(each.text) for each, _, _ in group)
    seconds = following[2] - group[0][1]
    if bare and bare[-1] in CLAUSE_END:
        return chars > LONG_CHARS / 2 or seconds > LONG_SECONDS / 2
    return chars + len(following[0].text) > LONG_CHARS or seconds > LONG_SECONDS
