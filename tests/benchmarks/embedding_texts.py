"""Texts of realistic mixed lengths, from the words of the model's own vocabulary; and a gateway that embeds them."""

import random
from itertools import accumulate
from math import log
from pathlib import Path

from models.files.source import resolve
from tests.benchmarks.harness import Bench
from tests.benchmarks.processes import Server

SOURCE = "embedded:all-minilm-l6-v2"
MODEL = "embedding"
PATH = "/v1/embeddings"
SHORT = "a short question about the weather"

MEDIAN_WORDS, SPREAD, MOST_WORDS = 22, 0.9, 200


class Texts:
    """Log-normal lengths, Zipf-like words."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        lines = (resolve(SOURCE) / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self._words = [word for word in lines if word.isascii() and word.isalpha() and len(word) > 2]
        self._weights = list(accumulate(1 / (rank + 10) for rank in range(len(self._words))))

    def some(self, number: int) -> list[str]:
        return [self.one() for _ in range(number)]

    def one(self, words: int | None = None) -> str:
        count = words or max(1, min(MOST_WORDS, round(self._random.lognormvariate(log(MEDIAN_WORDS), SPREAD))))
        return " ".join(self._random.choices(self._words, cum_weights=self._weights, k=count))


def server(bench: Bench) -> Server:
    """A gateway that serves the embedded model and nothing else, started at the first call."""
    if (found := bench.started("gateway-embedding")) is not None:
        return found
    config = bench.logs / "embedding.toml"
    config.write_text(_CONFIG.format(spool=bench.logs / "spool-embedding", source=SOURCE, threads=bench.threads))
    return bench.serve("gateway-embedding", "--config", str(config))


def folder() -> Path:
    return resolve(SOURCE)


_CONFIG = """\
[server]
spool_dir = "{spool}"
log_level = "warning"

[[models]]
name = "embedding"
kind = "embedding"
source = "{source}"
threads = {threads}
max_queue = 256
"""
