"""Transcribing files, against faster-whisper: many short utterances, one long file, and one of many utterances with
pauses. Beside the speed stands what was left out: a decoder that loses sentences is a fast one.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from time import perf_counter

from models.files.source import resolve
from tests import recordings, speech
from tests.benchmarks.figures import Bounds, Figure, at_least, at_most, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.processes import Service
from tests.recordings import Recording, Utterance

MODEL = "embedded:whisper-tiny.en"
UTTERANCES = 40
LONG_SECONDS = 600
GAPS = (0.3, 0.8, 1.5, 0.5, 2.5)  # seconds of silence between the sentences of the long file, in turn
PAUSED_UTTERANCES = 210
SLACK = 0.002  # of the words, by which there may be more left out than faster-whisper does
OURS, SEQUENTIAL, BATCHED = "ours", "WhisperModel", "BatchedInferencePipeline"


def compare(bench: Bench) -> Iterator[Figure]:
    services = start(bench)
    clips = recordings.utterances()[: len(speech.CLIPS)]
    try:
        single = [recordings.joined([clip], [0.0, 0.0]) for clip in clips]
        utterances = single * (bench.scaled(UTTERANCES, 10) // len(clips))
        yield from _case(bench, services, f"{len(utterances)} utterances", utterances, at_least(2.5, 1.5))
        long = long_file(clips, bench.scaled(LONG_SECONDS, 60))
        yield from _case(bench, services, "one long file", [long], at_least(1.1, 0.95))
        paused = recordings.recording(bench.scaled(PAUSED_UTTERANCES, 45))
        name = f"{len(paused.said)} utterances with pauses in one file"
        yield from _case(bench, services, name, [paused], at_least(1.1, 0.95))
    finally:
        for service in services.values():
            service.stop()


def start(bench: Bench) -> dict[str, Service]:
    folder, threads = str(resolve(MODEL)), str(bench.threads)
    return {
        OURS: bench.spawn(OURS, folder, threads, "adaptive", module="transcriber", env={"OPENBLAS_NUM_THREADS": "1"}),
        SEQUENTIAL: bench.spawn(SEQUENTIAL, folder, threads, "sequential", module="whisper_reference"),
        BATCHED: bench.spawn(BATCHED, folder, threads, "batched", module="whisper_reference"),
    }


def _case(
    bench: Bench, services: dict[str, Service], name: str, said: Sequence[Recording], bounds: Bounds
) -> Iterator[Figure]:
    audio = sum(each.seconds for each in said)
    files = [
        str(speech.wav(each.audio, bench.logs / f"{name.replace(' ', '-')}-{number}.wav"))
        for number, each in enumerate(said)
    ]
    texts: dict[str, list[str]] = {}

    def speed(key: str) -> float:
        start = perf_counter()
        answer = services[key].ask(files=files, language="en")
        seconds = perf_counter() - start
        texts[key] = [text for text, _ in answer]
        return audio / seconds

    found = bench.interleave({key: Subject(partial(speed, key), [each]) for key, each in services.items()})
    better = [max(pair) for pair in zip(found[SEQUENTIAL], found[BATCHED], strict=True)]
    definition = (
        f"audio seconds per second over {name} ({audio:.0f} s in all), int8, a beam of 5, {bench.threads} threads"
    )
    yield ratio(f"{name}: ours ÷ the better of faster-whisper's two", definition, found[OURS], better, bounds)
    scores = {key: recordings.score_all(said, transcripts) for key, transcripts in texts.items()}
    words = sum(len(utterance.starts) for each in said for _, utterance in each.said)
    missing = f"of {words} words, what has no word in the transcript; time tokens, a beam of 5, int8"
    extra = scores[OURS].deletions - scores[SEQUENTIAL].deletions
    yield Figure(f"{name}: words left out, ours − WhisperModel's", missing, "", [extra], at_most(SLACK))
    lost = f"of {len(_utterances(said))} utterances, those of which four words in five are left out"
    yield Figure(f"{name}: utterances lost", lost, "", [len(scores[OURS].lost)], at_most(0))
    for key, values in found.items():
        yield Figure(f"{name}: {key}", definition, "s/s", values)
        yield Figure(f"{name}: {key}, words left out", missing, "", [scores[key].deletions])
        yield Figure(f"{name}: {key}, utterances lost", lost, "", [len(scores[key].lost)])
        yield Figure(f"{name}: {key}, word error rate", f"of {words} words", "", [scores[key].word_error_rate])


def _utterances(said: Sequence[Recording]) -> list[Utterance]:
    return [utterance for each in said for _, utterance in each.said]


def long_file(clips: Sequence[Utterance], seconds: float) -> Recording:
    """The clips over and over, with silences of several lengths between them."""
    said: list[Utterance] = []
    length = 0.0
    for clip, gap in zip(cycle(clips), cycle(GAPS), strict=False):
        if length >= seconds:
            break
        said.append(clip)
        length += clip.seconds + gap
    return recordings.joined(said, [0.0, *islice(cycle(GAPS), len(said))])
