"""Decoding beside processes that want the cores, too: what native threads keep of their speed, and of their lead."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from models.device import CPU_LEVEL
from tests.benchmarks.figures import Figure, at_least, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.processes import Service

PROMPT, DECODED = 64, 128
SETTLED_S = 0.3


def compare(bench: Bench) -> Iterator[Figure]:
    sides = {"native": bench.engine(), "torch": bench.engine("engine-torch", env={CPU_LEVEL: "bfloat16"})}
    tokens = bench.scaled(DECODED, 32)

    def rate(service: Service) -> float:
        (stamps,) = service.generate(bench.prompts(1, PROMPT), tokens)
        return (tokens - 1) / (stamps[-1] - stamps[0])

    def beside(service: Service) -> float:
        """One busy process a thread, each of which a fair scheduler gives half a core."""
        with ExitStack() as stack:
            for _ in range(bench.threads):
                busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                stack.callback(busy.wait)
                stack.callback(busy.kill)
            time.sleep(SETTLED_S)
            return rate(service)

    subjects = {}
    for name, service in sides.items():
        subjects[f"{name} alone"] = Subject(partial(rate, service), [service])
        subjects[f"{name} beside"] = Subject(partial(beside, service), [service])
    found = bench.interleave(subjects)
    definition = (
        f"one stream, {tokens} tokens, {bench.threads} threads: (tokens − 1) / (last token − first token), alone and "
        f"beside {bench.threads} processes that never sleep"
    )
    share = at_least(0.5, 0.45)
    yield ratio("native, beside ÷ alone", definition, found["native beside"], found["native alone"], share)
    yield ratio("torch's kernels, beside ÷ alone", definition, found["torch beside"], found["torch alone"])
    yield ratio("native ÷ torch's, beside", definition, found["native beside"], found["torch beside"], at_least(1.0))
    yield from (Figure(name, definition, "tokens/s", values) for name, values in found.items())
