"""Against transformers' `generate` in bf16: one stream, and eight in one batch."""

from collections.abc import Iterator
from functools import partial

from tests.benchmarks.figures import Figure, at_least, ratio
from tests.benchmarks.harness import Bench, Subject, model_file
from tests.benchmarks.processes import Service

PROMPT, DECODED, STREAMS = 128, 128, 8


def compare(bench: Bench) -> Iterator[Figure]:
    other = bench.service("transformers", str(model_file()), str(bench.threads), module="transformers_generate")
    sides = {"ours": bench.engine(), "transformers": other}
    tokens = bench.scaled(DECODED, 32)

    def decode(service: Service) -> float:
        (stamps,) = service.generate(bench.prompts(1, PROMPT), tokens)
        return (tokens - 1) / (stamps[-1] - stamps[0])

    def total(service: Service) -> float:
        stamps = service.generate(bench.prompts(STREAMS, PROMPT), tokens)
        return STREAMS * tokens / max(each[-1] for each in stamps)

    ours_is = "ours as served (the file's own 4 bits), transformers in bf16"
    found = bench.interleave({name: Subject(partial(decode, service), [service]) for name, service in sides.items()})
    definition = f"one stream, {PROMPT}-token prompt, {tokens} tokens: (tokens − 1) / (last − first); {ours_is}"
    yield ratio("decode ÷ transformers", definition, found["ours"], found["transformers"])
    yield Figure("decode, transformers", definition, "tokens/s", found["transformers"])

    found = bench.interleave({name: Subject(partial(total, service), [service]) for name, service in sides.items()})
    definition = (
        f"{STREAMS} streams, {PROMPT}-token prompts, {tokens} tokens each: all tokens / (start → last); {ours_is}"
    )
    yield ratio(f"{STREAMS} streams ÷ transformers", definition, found["ours"], found["transformers"], at_least(1.8))
    yield from (Figure(f"{STREAMS} streams, {name}", definition, "tokens/s", values) for name, values in found.items())
