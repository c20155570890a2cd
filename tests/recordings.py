"""Long recordings made of short utterances and pauses, the truth of them, and how far a transcript is from it.

The utterances are the LibriVox clips and the sentences of `made.ogg`, which espeak-ng has said. A recording knows what
was said in it when, so what is lost can be counted by the utterance, and word times can be checked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import av
import numpy as np

from tests import speech

LOST = 0.8  # share of an utterance's words that are missing, from which on it is lost
PAUSES = (0.2, 3.0)  # seconds, shortest and longest


@dataclass(frozen=True)
class Utterance:
    """`starts`: seconds from its beginning at which its words begin; None where that is not known."""

    text: str
    audio: speech.Samples
    starts: tuple[float | None, ...]

    @property
    def seconds(self) -> float:
        return len(self.audio) / speech.RATE


@dataclass(frozen=True)
class Recording:
    """Utterances in order, each with the second at which it begins."""

    audio: speech.Samples
    said: tuple[tuple[float, Utterance], ...]

    @property
    def text(self) -> str:
        return " ".join(utterance.text for _, utterance in self.said)

    @property
    def seconds(self) -> float:
        return len(self.audio) / speech.RATE


@dataclass(frozen=True)
class Score:
    """Of a transcript against a recording. Rates are shares of the words that were said."""

    word_error_rate: float
    deletions: float
    deleted_words: int
    lost: tuple[int, ...]  # numbers of the utterances of which nearly nothing is there
    time_errors: tuple[float, ...] = ()  # seconds, of the words that were heard right and whose time is known

    @property
    def time_error(self) -> float:
        """95 of 100 word times are this near to the truth, in seconds."""
        return float(np.percentile(self.time_errors, 95))


@cache
def utterances() -> tuple[Utterance, ...]:
    read = [
        Utterance(speech.transcript(clip), speech.samples(clip), (None,) * len(speech.words(speech.transcript(clip))))
        for clip in speech.CLIPS
    ]
    return (*read, *_made())


def recording(count: int, seed: int = 0, pauses: tuple[float, float] = PAUSES) -> Recording:
    """`count` utterances in a mixed order: each of them once before any comes twice."""
    random = Random(seed)
    order: list[Utterance] = []
    while len(order) < count:
        order += random.sample(utterances(), min(len(utterances()), count - len(order)))
    return joined(order, [random.uniform(*pauses) for _ in range(count + 1)])


def pairs(count: int, pause: float = 0.7, seed: int = 0) -> list[Recording]:
    """Two utterances each, `pause` seconds apart."""
    random = Random(seed)
    return [joined(random.sample(utterances(), 2), [0.3, pause, 0.5]) for _ in range(count)]


def joined(said: Sequence[Utterance], pauses: Sequence[float]) -> Recording:
    """`pauses`: seconds of silence before each utterance, and after the last."""
    pieces, starts, length = [], [], 0
    for utterance, pause in zip(said, pauses, strict=False):
        silence = speech.silence(pause)
        starts.append((length + len(silence)) / speech.RATE)
        pieces += [silence, utterance.audio]
        length += len(silence) + len(utterance.audio)
    return Recording(np.concatenate([*pieces, speech.silence(pauses[-1])]), tuple(zip(starts, said, strict=True)))


def score(recording: Recording, words: Iterable[tuple[str, float | None]]) -> Score:
    """`words`: what was transcribed, each word with its start in seconds where that is known."""
    expected: list[tuple[str, int, float | None]] = []  # word, number of its utterance, its start
    for number, (begin, utterance) in enumerate(recording.said):
        for word, start in zip(speech.words(utterance.text), utterance.starts, strict=True):
            expected.append((word, number, None if start is None else begin + start))
    found = [(each, start) for word, start in words for each in speech.words(word)]
    matches = align([word for word, _, _ in expected], [word for word, _ in found])
    missing = [0] * len(recording.said)
    errors, times = len(found) - sum(match is not None for match in matches), []
    for (word, number, start), match in zip(expected, matches, strict=True):
        if match is None:
            missing[number] += 1
            errors += 1
            continue
        heard, at = found[match]
        errors += heard != word
        if heard == word and start is not None and at is not None:
            times.append(abs(at - start))
    lost = tuple(
        number
        for number, (_, utterance) in enumerate(recording.said)
        if missing[number] >= LOST * len(utterance.starts)
    )
    return Score(errors / len(expected), sum(missing) / len(expected), sum(missing), lost, tuple(times))


def score_all(said: Sequence[Recording], texts: Sequence[str]) -> Score:
    """Of several recordings together, by their texts alone."""
    return total([(each, score(each, [(text, None)])) for each, text in zip(said, texts, strict=True)])


def total(scores: Sequence[tuple[Recording, Score]]) -> Score:
    """Of several recordings together; `lost` counts utterances through all of them."""
    words = [sum(len(utterance.starts) for _, utterance in recording.said) for recording, _ in scores]
    lost, before = [], 0
    for recording, each in scores:
        lost += [before + number for number in each.lost]
        before += len(recording.said)
    return Score(
        sum(each.word_error_rate * count for (_, each), count in zip(scores, words, strict=True)) / sum(words),
        sum(each.deleted_words for _, each in scores) / sum(words),
        sum(each.deleted_words for _, each in scores),
        tuple(lost),
        tuple(error for _, each in scores for error in each.time_errors),
    )


def align(expected: Sequence[str], found: Sequence[str]) -> list[int | None]:
    """For each expected word the index of the found one that stands for it, by Levenshtein; None: deleted."""
    numbers = {word: index for index, word in enumerate({*expected, *found})}
    a, b = (np.array([numbers[word] for word in text], np.int32) for text in (expected, found))
    steps = np.arange(len(b) + 1, dtype=np.int32)
    costs = np.empty((len(a) + 1, len(b) + 1), np.int32)
    costs[0] = steps
    for row in range(1, len(a) + 1):
        best = costs[row - 1] + 1
        best[1:] = np.minimum(best[1:], costs[row - 1, :-1] + (b != a[row - 1]))
        costs[row] = np.minimum.accumulate(best - steps) + steps
    matches: list[int | None] = [None] * len(a)
    row, column = len(a), len(b)
    while row and column:
        if costs[row, column] == costs[row - 1, column - 1] + int(a[row - 1] != b[column - 1]):
            row, column = row - 1, column - 1
            matches[row] = column
        elif costs[row, column] == costs[row - 1, column] + 1:
            row -= 1
        else:
            column -= 1
    return matches


def _made() -> list[Utterance]:
    with av.open(str(speech.FOLDER / "made.ogg")) as container:
        resampler = av.AudioResampler("s16", "mono", speech.RATE)
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        frames += resampler.resample(None)
    audio = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    found = []
    for line in Path(speech.FOLDER / "made.tsv").read_text().splitlines():
        start, end, text, words = line.split("\t")
        starts = tuple(None if word == "-" else float(word) - float(start) for word in words.split())
        found.append(Utterance(text, audio[int(float(start) * speech.RATE) : int(float(end) * speech.RATE)], starts))
    return found
