"""How many padded tokens a step should take: measured on the model and the machine that will run it."""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from models.embedder import Embedder
from pipelines.embedding.batching import Budget

LENGTH = 32  # tokens of a measured text
SIZES = (256, 512, 1024, 2048)  # tokens a step, on a CPU: past its caches, more is slower
GPU_SIZES = (4096, 16384, 65536)
REPEATS = 3
ENOUGH = 0.97  # of the best throughput: the smallest step that has it is taken, since others wait for it

# Beside small requests, a step of a large one lasts about so long: they wait for half of it in the mean.
SHARED_STEP_S = 0.008
LEAST_SHARED = 64  # tokens: below it a step is mostly the reading of the weights


def measure(embedder: Embedder, sizes: tuple[int, ...], clock: Callable[[], float] = perf_counter) -> Budget:
    """Run the text encoder at each size; warms it up on the way."""
    length = embedder.config.max_tokens if embedder.config.fixed_length else min(LENGTH, embedder.config.max_tokens)
    rates: dict[int, float] = {}
    for size in sizes:
        rows = max(1, size // length)
        rates[size] = rows * length / _fastest(embedder, rows, length, clock)
    best = max(rates.values())
    full = min(size for size, rate in rates.items() if rate >= ENOUGH * best)
    return Budget(full, shared_budget(full, rates[full]))


def shared_budget(full: int, tokens_per_second: float) -> int:
    return min(full, max(LEAST_SHARED, int(SHARED_STEP_S * tokens_per_second)))


def _fastest(embedder: Embedder, rows: int, length: int, clock: Callable[[], float]) -> float:
    """The best of a few runs: whatever else runs on the machine only ever adds."""
    ids = np.full((rows, length), min(5, embedder.config.vocab_size - 1), dtype=np.int64)
    mask = np.ones_like(ids)
    times = []
    for _ in range(REPEATS):
        began = clock()
        embedder.texts(ids, mask)
        times.append(clock() - began)
    return min(times)
