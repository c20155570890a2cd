"""Transcribing files, against faster-whisper: many short utterances, and one long file."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from models.source import resolve
from tests import speech
from tests.benchmarks.figures import Bounds, Figure, at_least, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.processes import Service

MODEL = "embedded:whisper-tiny.en"
UTTERANCES = 40
LONG_SECONDS = 600
GAPS = (0.3, 0.8, 1.5, 0.5, 2.5)  # seconds of silence between the sentences of the long file, in turn
OURS, SEQUENTIAL, BATCHED = "ours", "WhisperModel", "BatchedInferencePipeline"


def compare(bench: Bench) -> Iterator[Figure]:
    services = start(bench)
    try:
        utterances = [str(clip) for clip in speech.CLIPS * (bench.scaled(UTTERANCES, 10) // len(speech.CLIPS))]
        yield from _case(bench, services, f"{len(utterances)} utterances", utterances, at_least(2.5, 1.5))
        long = long_file(bench.logs / "long.wav", bench.scaled(LONG_SECONDS, 60))
        yield from _case(bench, services, "one long file", [str(long)], at_least(1.1, 0.95))
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
    bench: Bench, services: dict[str, Service], name: str, files: Sequence[str], bounds: Bounds
) -> Iterator[Figure]:
    audio = sum(len(speech.samples(Path(file))) for file in files) / speech.RATE

    def speed(service: Service) -> float:
        start = perf_counter()
        service.ask(files=files, language="en")
        return audio / (perf_counter() - start)

    found = bench.interleave({key: Subject(partial(speed, each), [each]) for key, each in services.items()})
    better = [max(pair) for pair in zip(found[SEQUENTIAL], found[BATCHED], strict=True)]
    definition = (
        f"audio seconds per second over {name} ({audio:.0f} s in all), int8, a beam of 5, {bench.threads} threads"
    )
    yield ratio(f"{name}: ours ÷ the better of faster-whisper's two", definition, found[OURS], better, bounds)
    for key, values in found.items():
        yield Figure(f"{name}: {key}", definition, "s/s", values)


def long_file(path: Path, seconds: float) -> Path:
    """The clips over and over, with silences of several lengths between them."""
    pieces: list[speech.Samples] = []
    length = 0.0
    while length < seconds:
        index = len(pieces) // 2
        clip, gap = speech.samples(speech.CLIPS[index % len(speech.CLIPS)]), speech.silence(GAPS[index % len(GAPS)])
        pieces += [clip, gap]
        length += (len(clip) + len(gap)) / speech.RATE
    return speech.wav(np.concatenate(pieces), path)
