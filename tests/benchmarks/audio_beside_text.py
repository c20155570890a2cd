"""Two modalities on the same cores: what each keeps of its speed while the other is busy too."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from models.files.source import resolve
from tests import speech
from tests.benchmarks.audio_files import MODEL
from tests.benchmarks.figures import Figure, at_least, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.processes import Service

SECONDS = 10.0  # of each measurement, about
TOKENS = 32  # decoded in one request of the text engine
FILES = [str(clip) for clip in speech.CLIPS]
AUDIO_SECONDS = sum(len(speech.samples(clip)) for clip in speech.CLIPS) / speech.RATE


def compare(bench: Bench) -> Iterator[Figure]:
    text = bench.engine()
    # As the gateway starts its workers.
    env = {"OPENBLAS_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000"}
    folder = str(resolve(MODEL))
    audio = bench.spawn("transcriber", folder, str(bench.threads), "adaptive", module="transcriber", env=env)
    seconds = bench.scaled(int(SECONDS), 4)

    def decode() -> float:
        """Tokens a second."""
        done, start = 0, perf_counter()
        while (spent := perf_counter() - start) < seconds:
            text.generate(bench.prompts(1, 16), TOKENS)
            done += TOKENS
        return done / spent if spent else 0.0

    def transcribe() -> float:
        """Audio seconds a second."""
        done, start = 0.0, perf_counter()
        while (spent := perf_counter() - start) < seconds:
            audio.ask(files=FILES, language="en")
            done += AUDIO_SECONDS
        return done / spent if spent else 0.0

    def both() -> tuple[float, float]:
        with ThreadPoolExecutor(2) as pool:
            tokens, spoken = pool.submit(decode), pool.submit(transcribe)
            return tokens.result(), spoken.result()

    def alone() -> tuple[float, float]:
        return decode(), transcribe()

    services: list[Service] = [text, audio]
    try:
        found = bench.interleave({"alone": Subject(alone, services), "together": Subject(both, services)})
    finally:
        audio.stop()
    (text_alone, audio_alone), (text_both, audio_both) = (
        zip(*found[key], strict=True) for key in ("alone", "together")
    )
    definition = "speed while the other is busy too, against alone; one decode, five clips at a time, each engine with "
    definition += f"{bench.threads} threads"
    yield ratio("decode tokens/s kept beside transcription", definition, text_both, text_alone, at_least(0.4, 0.35))
    yield ratio("transcription speed kept beside decoding", definition, audio_both, audio_alone, at_least(0.4, 0.35))
    yield Figure("decode alone", definition, "tokens/s", text_alone)
    yield Figure("transcription alone", definition, "s/s", audio_alone)
