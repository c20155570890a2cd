"""Total rate by the number of streams in a batch."""

from collections.abc import Iterator
from functools import partial

from tests.benchmarks.figures import Figure, ratio
from tests.benchmarks.harness import Bench, Subject

PROMPT, DECODED = 128, 128
STREAMS = (1, 4, 8, 16)


def compare(bench: Bench) -> Iterator[Figure]:
    engine = bench.engine()
    tokens = bench.scaled(DECODED, 32)

    def total(streams: int) -> float:
        stamps = engine.generate(bench.prompts(streams, PROMPT), tokens)
        return streams * tokens / max(each[-1] for each in stamps)

    found = bench.interleave({str(n): Subject(partial(total, n), [engine]) for n in STREAMS})
    definition = f"streams at once, {PROMPT}-token prompts, {tokens} tokens each: all tokens / (start → last token)"
    for streams, values in found.items():
        yield Figure(f"total at {streams}", definition, "tokens/s", values)
    yield ratio(f"total at {STREAMS[-1]} ÷ 1", definition, found[str(STREAMS[-1])], found["1"])
