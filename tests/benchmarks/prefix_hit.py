"""A prompt that the prefix cache has, against one that it has not."""

from collections.abc import Iterator

from tests.benchmarks.figures import Figure, at_most, ratio
from tests.benchmarks.harness import Bench, Subject

LONG = 1_000


def compare(bench: Bench) -> Iterator[Figure]:
    engine = bench.engine()

    def both() -> tuple[float, float]:
        prompt = bench.prompts(1, LONG)
        ((cold,),) = engine.generate(prompt, 1)
        ((hit,),) = engine.generate(prompt, 1)
        return cold, hit

    found = bench.interleave({"both": Subject(both, [engine])})["both"]
    cold, hit = zip(*found, strict=True)
    definition = f"request → first token of a {LONG}-token prompt, the second time against the first"
    yield ratio("TTFT on a prefix hit ÷ cold", definition, hit, cold, at_most(0.25))
    yield Figure("TTFT, cold", definition, "ms", [seconds * 1e3 for seconds in cold])
    yield Figure("TTFT, prefix hit", definition, "ms", [seconds * 1e3 for seconds in hit])
