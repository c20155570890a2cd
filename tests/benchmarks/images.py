"""Images of several requests in one step loop, against diffusers' own pipeline; a short job beside a long one."""

from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from gateway.backends.process import SPIN
from models.files.source import resolve
from tests.benchmarks.figures import Figure, at_least, at_most, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.processes import Service

STEPS, TOGETHER = 20, 8
SHORT, LONG = 4, 50
SAMPLES = 12  # short or cancelled jobs a round
PROMPTS = ("red apple", "cat", "rocket", "blue heart", "house", "penguin", "taxi", "birthday cake")


def compare(bench: Bench) -> Iterator[Figure]:
    arguments = (str(resolve("embedded:tiny-emoji-diffusion")), str(bench.threads))
    env = {"GOMP_SPINCOUNT": SPIN}
    ours = bench.spawn("image engine", *arguments, module="image_engine", env=env)
    stock = bench.spawn("diffusers", *arguments, module="image_stock", env=env)
    try:
        yield from _throughput(bench, ours, stock)
        yield from _short_beside_long(bench, ours)
        yield from _cancelled(bench, ours)
    finally:
        ours.stop()
        stock.stop()


def job(seed: int, steps: int = STEPS, after: float = 0.0) -> dict[str, Any]:
    return {"prompt": PROMPTS[seed % len(PROMPTS)], "steps": steps, "seed": seed, "after": after}


def _throughput(bench: Bench, ours: Service, stock: Service) -> Iterator[Figure]:
    def rate(service: Service, images: int) -> float:
        began = perf_counter()
        service.ask(jobs=[job(seed) for seed in range(images)])
        return images / (perf_counter() - began)

    for images, bounds in ((TOGETHER, at_least(1.5, 1.2)), (1, at_least(0.95))):
        found = bench.interleave(
            {
                "ours": Subject(partial(rate, ours, images), [ours]),
                "diffusers": Subject(partial(rate, stock, images), [stock]),
            }
        )
        what = f"{images} requests at once, by diffusers one after the other" if images > 1 else "one request"
        definition = f"{what}: 64 × 64 pixels, {STEPS} steps, guidance, float32, {bench.threads} threads; images / s"
        name = f"{images} images" if images > 1 else "one image"
        yield ratio(f"{name} ÷ diffusers", definition, found["ours"], found["diffusers"], bounds)
        yield from (Figure(f"{name}, {side}", definition, "images/s", values) for side, values in found.items())


def _short_beside_long(bench: Bench, ours: Service) -> Iterator[Figure]:
    samples = bench.scaled(SAMPLES, 3)

    def alone() -> list[float]:
        return [ours.ask(jobs=[job(seed, SHORT)])[0] for seed in range(samples)]

    def beside() -> list[float]:
        return [ours.ask(jobs=[job(seed, LONG), job(seed, SHORT, after=0.1)])[1] for seed in range(samples)]

    found = bench.interleave({"alone": Subject(alone, [ours]), "beside": Subject(beside, [ours])})
    definition = f"a job of {SHORT} steps that comes while one of {LONG} runs, its start → its end, against alone"
    for name, quantile in (("p50", 0.5), ("p95", 0.95)):
        sides = {side: [float(np.quantile(each, quantile)) * 1e3 for each in values] for side, values in found.items()}
        bounds = at_most(2.5)
        yield ratio(f"short job {name}, beside a long one ÷ alone", definition, sides["beside"], sides["alone"], bounds)
        yield from (Figure(f"short job {name}, {side}", definition, "ms", values) for side, values in sides.items())


def _cancelled(bench: Bench, ours: Service) -> Iterator[Figure]:
    samples = bench.scaled(SAMPLES, 3)

    def cancelled() -> list[float]:
        """At moments of all kinds, within steps too."""
        moments = (0.3 + 0.013 * seed for seed in range(samples))
        return [ours.ask(jobs=[{**job(seed, LONG), "cancel": at}])[0] for seed, at in enumerate(moments)]

    found = bench.interleave({"cancelled": Subject(cancelled, [ours])})
    longest = [max(each) for each in found["cancelled"]]
    definition = (
        f"a job of {LONG} steps whose client leaves on its way: until its slot is free, the longest of {samples}"
    )
    yield Figure("cancel → slot free ÷ the step it came in", definition, "×", longest, at_most(1.0))
