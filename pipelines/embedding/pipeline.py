"""The embedding pipeline: one step is one run of a batch of inputs, whichever requests they are of."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from metrics.definitions import embedding as metrics
from models.embedder.embedder import Embedder, Ids
from models.embedder.embedder import Vectors as Rows
from models.errors import ModelLoadError
from pipelines.base import InvalidRequest, ModelError, StepFailed, StepResult, Ticket
from pipelines.embedding import loading
from pipelines.embedding.batching import BatchQueue, Input
from pipelines.embedding.effort import effort
from pipelines.embedding.input_tokens import InputTokenizer, Tokens
from pipelines.embedding.job import Job
from pipelines.embedding.prepare import Preparer
from pipelines.embedding.runs import Run, Runs
from pipelines.embedding.step_budget import StepBudget, warm_up
from pipelines.messages.embedding import EmbeddingOptions, EmbeddingRequest, RerankRequest
from pipelines.messages.frames import Event, ModelSpec, Ready, Stats, StepReport
from pipelines.messages.text import StringPrompt

# Inputs that the gateway may have open, as it counts them: a request holds one slot for each of its inputs up to 32.
# What a request has beyond those waits inside it, behind its own inputs and nobody else's.
SLOTS = 1024

BRIEF = 500  # characters of a text: preparing more takes longer than waking a thread

LISTEN_S = 0.001  # how often a step that another one could run beside looks for that one

POLL_S = 0.0005  # how often a step that waits for more requests looks for them


@dataclass(slots=True)
class Totals:
    """Over this worker's life."""

    inputs: int = 0
    tokens: int = 0
    padded: int = 0
    truncated: int = 0


class EmbeddingPipeline:
    def __init__(
        self, embedder: Embedder, tokenizer: InputTokenizer, step_budget: StepBudget, max_wait: float = 0.0
    ) -> None:
        self._embedder = embedder
        self._preparer = Preparer(tokenizer, embedder.config, embedder.multiple)
        self._max_wait = max_wait  # seconds
        self._step_budget = step_budget
        self._queue = BatchQueue(step_budget.budget)
        self._runs = Runs(self._run, embedder.streams, embedder.concurrency)
        self._jobs: dict[str, Job] = {}
        self._totals = Totals()

    @classmethod
    def load(cls, spec: ModelSpec[EmbeddingOptions]) -> "tuple[EmbeddingPipeline, Ready]":
        try:
            embedder, tokenizer = loading.load(spec)
        except ModelLoadError as error:
            raise ModelError(str(error)) from error
        step_budget = warm_up(embedder, spec.options.max_batch_tokens)
        details = {
            **embedder.details,
            "dimensions": str(embedder.config.dimensions),
            "max_batch_tokens": str(step_budget.budget.full),
        }
        pipeline = cls(embedder, tokenizer, step_budget, spec.options.max_wait_ms / 1e3)
        config = embedder.config
        sees = config.image is not None
        return pipeline, Ready(slots=SLOTS, context_length=config.max_tokens, details=details, images=sees)

    # --- pool threads -------------------------------------------------------------------------------------------------

    def prepare(self, ticket: Ticket, request: EmbeddingRequest | RerankRequest) -> list[Input]:
        return list(self._preparer.prepare(ticket, request).inputs)

    def brief(self, request: EmbeddingRequest | RerankRequest) -> bool:
        """One text or two, as a search box sends them."""
        if not isinstance(request, EmbeddingRequest) or len(request.inputs) > 2:
            return False
        return all(isinstance(each, StringPrompt) and len(each.text) <= BRIEF for each in request.inputs)

    def effort(self, request: EmbeddingRequest | RerankRequest) -> int:
        return effort(request)

    def feed(self, ticket: Ticket, data: bytes) -> list[Input]:
        raise InvalidRequest("an embedding request takes no further input")

    # --- engine thread ------------------------------------------------------------------------------------------------

    def admit(self, works: Sequence[Input]) -> None:
        job = works[0].owner
        assert isinstance(job, Job)
        self._jobs[job.ticket.id] = job
        self._totals.truncated += sum(isinstance(each.content, Tokens) and each.content.truncated for each in works)
        self._queue.add(job, monotonic())

    def abort(self, request_id: str) -> None:
        self._jobs.pop(request_id, None)
        self._queue.remove(request_id)

    @property
    def busy(self) -> bool:
        return bool(self._queue) or bool(self._runs)

    def step(self, only: str | None = None) -> StepResult:
        """Batches start wherever there is room for one; the step ends with the first to end, or after LISTEN_S to see
        what has come meanwhile."""
        if only is not None:
            batch = self._queue.take(monotonic(), only)
            return self._result(self._runs.run(batch)) if batch else StepResult()
        while not self._waits_for_more() and (batch := self._next()):
            self._runs.start(batch, alone=not self._queue)
        if not self._runs:
            time.sleep(POLL_S)
            return StepResult()
        ended = self._runs.ended(LISTEN_S)
        return StepResult() if ended is None else self._result(ended)

    def stats(self) -> Stats:
        return Stats(
            running=self._runs.inputs,
            waiting=self._queue.inputs_waiting,
            counters={
                metrics.EMBEDDING_INPUTS.series(): self._totals.inputs,
                metrics.EMBEDDING_TOKENS.series(): self._totals.tokens,
                metrics.EMBEDDING_PADDED_TOKENS.series(): self._totals.padded,
                metrics.EMBEDDING_TRUNCATED.series(): self._totals.truncated,
            },
        )

    def _next(self) -> list[Input]:
        now = monotonic()
        room = self._runs.room(expects_small=self._queue.expects_small(now))
        return self._queue.take(now, classes=room) if room else []

    def _waits_for_more(self) -> bool:
        """Whether a step that would not be full should wait for more inputs."""
        if self._max_wait == 0 or self._queue.tokens_waiting >= self._queue.budget.full:
            return False
        oldest = self._queue.oldest()
        return oldest is not None and monotonic() < oldest + self._max_wait

    def _run(self, batch: Sequence[Input]) -> Rows:
        contents = [each.content for each in batch]
        if batch[0].tower == "image":
            return self._embedder.images(np.stack([each for each in contents if isinstance(each, np.ndarray)]))
        return run_texts(self._embedder, [each for each in contents if isinstance(each, Tokens)])

    def _result(self, run: Run) -> StepResult:
        """Raises StepFailed."""
        batch, outcome = run.batch, run.outcome
        if isinstance(outcome, Exception):
            self._queue.put_back(batch)
            raise StepFailed(dict.fromkeys(each.ticket.id for each in batch), outcome) from outcome
        tokens = sum(each.content.count if isinstance(each.content, Tokens) else each.size for each in batch)
        padded = len(batch) * max(each.size for each in batch)
        self._totals.inputs += len(batch)
        self._totals.tokens += tokens
        self._totals.padded += padded
        seconds = run.ended - run.began
        self._step_budget.observe(padded, seconds)
        self._queue.budget = self._step_budget.budget
        return StepResult(self._sorted(run, outcome), StepReport("encode", len(batch), tokens, seconds))

    def _sorted(self, run: Run, rows: Rows) -> list[Event]:
        """The rows of a batch, to the requests that they belong to."""
        members: dict[str, list[int]] = {}
        for row, each in enumerate(run.batch):
            members.setdefault(each.ticket.id, []).append(row)
        events: list[Event] = []
        for id, places in members.items():
            job = self._jobs.get(id)
            if job is None:  # it has left, or failed, while this ran
                continue
            events += job.take([run.batch[row].index for row in places], rows[places], run.began, run.ended)
            if job.left == 0:
                self.abort(id)
        return events


def run_texts(embedder: Embedder, texts: Sequence[Tokens]) -> Rows:
    return embedder.texts(*padded(texts, embedder.config.pad_id, embedder.multiple))


def padded(texts: Sequence[Tokens], pad_id: int, multiple: int) -> tuple[Ids, Ids, Ids | None]:
    """Ids, mask and types [rows, longest], which is rounded up to a multiple; types are None where no text has any."""
    longest = max(len(text.ids) for text in texts)
    shape = len(texts), longest + -longest % multiple
    ids: NDArray[np.int64] = np.full(shape, pad_id, np.int64)
    mask = np.zeros(shape, np.int64)
    types = None if texts[0].types is None else np.zeros(shape, np.int64)
    for row, text in enumerate(texts):
        length = len(text.ids)
        ids[row, :length] = text.ids
        mask[row, :length] = 1
        if types is not None and text.types is not None:
            types[row, :length] = text.types
    return ids, mask, types
