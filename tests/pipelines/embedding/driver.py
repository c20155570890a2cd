"""The pipeline over a small encoder of our own, spoken to as the engine does."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.embedder.embedder_config import EmbedderConfig
from pipelines.base import Ticket
from pipelines.embedding.input_tokens import InputTokenizer
from pipelines.embedding.pipeline import EmbeddingPipeline
from pipelines.embedding.step_budget import StepBudget
from pipelines.messages.embedding import EmbeddingRequest, Vectors
from pipelines.messages.frames import Event
from pipelines.messages.text import StringPrompt
from tests.models.checkpoints import word_tokenizer

CONFIG = EmbedderConfig(family="text", dimensions=4, max_tokens=64, vocab_size=204, pad_id=0, token_types=True)


class SmallEmbedder:
    """A vector says which ids it was made of; a cross-encoder scores the mean id. See `Embedder`."""

    def __init__(
        self, config: EmbedderConfig = CONFIG, *, streams: int = 1, concurrency: int = 0, multiple: int = 1
    ) -> None:
        self.config = config
        self.details = {"device": "cpu", "dtype": "float32" if streams == 1 else "bfloat16"}
        self.streams = streams
        self.concurrency = concurrency or streams
        self.multiple = multiple
        self.gates: dict[int, threading.Event] = {}  # an id -> what a run that has it waits for
        self.batches: list[int] = []
        self.drift = 0.0  # how far a result depends on its row
        self.poison: int | None = None  # an id that makes a run fail
        self.infinite: int | None = None  # an id whose vector is not finite

    def texts(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], types: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        self.batches.append(len(ids))
        assert ids.shape[1] % self.multiple == 0
        for id, gate in self.gates.items():
            if (ids == id).any():
                assert gate.wait(10)
        if self.poison is not None and (ids == self.poison).any():
            raise MemoryError("the batch was too large")
        total = (ids * mask).sum(1).astype(np.float32) * (1 + self.drift * np.arange(len(ids)))
        if self.config.family == "cross_encoder":
            return (total / mask.sum(1) / 1000)[:, None].astype(np.float32)
        vectors = np.stack([np.cos(total * power) for power in (1, 0.1, 0.01, 0.001)], axis=1)
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        if self.infinite is not None:
            vectors[(ids == self.infinite).any(1)] = np.nan
        return vectors


class EmbeddingDriver:
    def __init__(
        self,
        folder: Path,
        config: EmbedderConfig = CONFIG,
        *,
        tokens: int = 40,
        slack: int = 8,
        max_wait: float = 0.0,
        streams: int = 1,
        concurrency: int = 0,
        multiple: int = 1,
    ) -> None:
        tokenizer = word_tokenizer(start="[CLS]", end="[SEP]")
        tokenizer.save(str(folder / "tokenizer.json"))
        self.embedder = SmallEmbedder(config, streams=streams, concurrency=concurrency, multiple=multiple)
        embedder: Any = self.embedder
        self.pipeline = EmbeddingPipeline(
            embedder, InputTokenizer(folder, config), StepBudget(tokens, slack, 1e9), max_wait
        )

    def open(self, id: str, request: Any, received: float = 0.0) -> None:
        works = self.pipeline.prepare(Ticket(id, "interactive", received), request)
        self.pipeline.admit(works)

    def run(self) -> list[Event]:
        events: list[Event] = []
        while self.pipeline.busy:
            events += self.pipeline.step().events
        return events


def embedding(*texts: str, **fields: Any) -> EmbeddingRequest:
    return EmbeddingRequest(inputs=[StringPrompt(text) for text in texts], **fields)


def words(count: int, first: int = 0) -> str:
    return " ".join(f"w{number}" for number in range(first, first + count))


def rows(events: Sequence[Event], id: str) -> dict[int, list[float]]:
    """A request's vectors by index; each index came once."""
    found: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event, Vectors) and event.id == id:
            vectors = np.frombuffer(event.data, "<f4").reshape(len(event.indices), -1)
            for index, vector in zip(event.indices, vectors, strict=True):
                assert index not in found
                found[index] = vector.tolist()
    return found


def last(events: Sequence[Event], id: str) -> Event:
    return [event for event in events if event.id == id][-1]
