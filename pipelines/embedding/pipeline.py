"""The embedding pipeline: one step is one run of a batch of inputs, whichever requests they are of."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from models.device import available_cpus
from models.embedder import Embedder, EmbedderOptions, load_embedder, ready_made, unit
from models.errors import ModelLoadError
from models.onnx_export import Quantization
from models.source import resolve
from pipelines.base import InvalidRequest, ModelError, StepFailed, StepResult, Ticket
from pipelines.embedding import budget as budgets
from pipelines.embedding.batching import BatchQueue, Budget, Input, Request
from pipelines.embedding.images import load_pixels
from pipelines.embedding.tokenize import Tokenizer, Tokens
from pipelines.messages import (
    ChoiceDone,
    Done,
    EmbeddingRequest,
    Event,
    Failed,
    ImageBytes,
    ModelSpec,
    Ready,
    RerankRequest,
    Scores,
    Stats,
    StepReport,
    StringPrompt,
    Timing,
    TokenPrompt,
    Truncate,
    Usage,
    Vectors,
)
from pipelines.messages import Request as AnyRequest

# Inputs that the gateway may have open, as it counts them: a request holds one slot for each of its inputs up to 32.
# What a request has beyond those waits inside it, behind its own inputs and nobody else's.
SLOTS = 1024

POLL_S = 0.0005  # how often a step that waits for company looks for it
GPU_MEMORY = 2 * 2**30  # bytes that the arena of one encoder may grow to, beside the weights


@dataclass(slots=True, eq=False)
class Job(Request):
    """A request under way."""

    rerank: bool = False
    dimensions: int | None = None
    cosine: bool = False  # rerank by vectors; input 0 is the query
    left: int = 0  # inputs without a result
    prompt_tokens: int = 0
    rows: NDArray[np.float32] | None = None  # of a rerank: results so far, by index
    prepared: float = 0.0
    started: float = 0.0


@dataclass(slots=True)
class Totals:
    """Over this worker's life."""

    inputs: int = 0
    tokens: int = 0
    padded: int = 0
    truncated: int = field(default=0)


class EmbeddingPipeline:
    def __init__(self, embedder: Embedder, tokenizer: Tokenizer, budget: Budget, max_wait: float = 0.0) -> None:
        self._embedder = embedder
        self._config = embedder.config
        self._tokenizer = tokenizer
        self._max_wait = max_wait  # seconds
        self._queue = BatchQueue(budget)
        self._jobs: dict[str, Job] = {}
        self._running = 0  # inputs of the step that runs
        self._totals = Totals()

    @classmethod
    def load(cls, spec: ModelSpec) -> "tuple[EmbeddingPipeline, Ready]":
        try:
            options = _options(spec)
            path = resolve(spec.source)
            embedder = load_embedder(path, options)
            ready = ready_made(path)
            tokenizer = Tokenizer(path if ready is None else ready[1], embedder.config)
        except ModelLoadError as error:
            raise ModelError(str(error)) from error
        gpu = embedder.details["device"] != "cpu"
        fixed = spec.embedding.max_batch_tokens
        sizes = (fixed,) if fixed else budgets.GPU_SIZES if gpu else budgets.SIZES
        budget = budgets.measure(embedder, sizes)
        if embedder.config.image is not None:
            size = embedder.config.image
            embedder.images(np.zeros((1, 3, size.height, size.width), np.float32))
        details = {
            **embedder.details,
            "dimensions": str(embedder.config.dimensions),
            "max_batch_tokens": str(budget.full),
            "max_batch_tokens_shared": str(budget.shared),
        }
        pipeline = cls(embedder, tokenizer, budget, spec.embedding.max_wait_ms / 1e3)
        return pipeline, Ready(slots=SLOTS, context_length=embedder.config.max_tokens, details=details)

    # --- pool threads -------------------------------------------------------------------------------------------------

    def prepare(self, ticket: Ticket, request: AnyRequest) -> list[Input]:
        match request:
            case EmbeddingRequest():
                job = self._embedding(ticket, request)
            case RerankRequest():
                job = self._rerank(ticket, request)
            case _:
                raise InvalidRequest("this model embeds and ranks; it answers no other request", "model")
        job.left = len(job.inputs)
        job.prompt_tokens = sum(each.prompt_tokens for each in job.inputs)
        job.prepared = monotonic()
        return list(job.inputs)

    def feed(self, ticket: Ticket, data: bytes) -> list[Input]:
        raise InvalidRequest("an embedding request takes no further input")

    def _embedding(self, ticket: Ticket, request: EmbeddingRequest) -> Job:
        config = self._config
        if config.family == "cross_encoder":
            raise InvalidRequest("this model scores pairs of texts and has no vectors; use /v1/rerank", "model")
        if request.dimensions is not None and not 1 <= request.dimensions <= config.dimensions:
            raise InvalidRequest(f"'dimensions' may be 1 to {config.dimensions} for this model", "dimensions")
        job = Job(ticket, dimensions=request.dimensions)
        texts = [(i, each.text) for i, each in enumerate(request.inputs) if isinstance(each, StringPrompt)]
        params = [f"input[{i}]" for i, _ in texts]
        tokens = self._tokenizer.texts([text for _, text in texts], request.truncate, params)
        by_index = {i: each for (i, _), each in zip(texts, tokens, strict=True)}
        for index, each in enumerate(request.inputs):
            job.inputs.append(self._input(job, index, each, by_index.get(index), request.truncate))
        return job

    def _input(
        self,
        job: Job,
        index: int,
        given: StringPrompt | TokenPrompt | ImageBytes,
        tokens: Tokens | None,
        truncate: Truncate,
    ) -> Input:
        param = f"input[{index}]"
        match given:
            case ImageBytes(data=data):
                image = self._config.image
                if image is None:
                    raise InvalidRequest(f"{param!r} is an image, but this model embeds text only", param)
                return Input(job, index, "image", image.tokens, load_pixels(data, image, param), 0)
            case TokenPrompt(ids=ids):
                tokens = self._tokenizer.ids(ids, truncate, param)
        assert tokens is not None
        return Input(job, index, "text", len(tokens.ids), tokens, tokens.count)

    def _rerank(self, ticket: Ticket, request: RerankRequest) -> Job:
        job = Job(ticket, rerank=True)
        tokenizer, limit = self._tokenizer, request.max_tokens_per_document
        if self._config.family == "cross_encoder":
            tokens = tokenizer.pairs(request.query, request.documents, request.truncate, limit)
        else:
            job.cosine = True
            tokens = tokenizer.texts([request.query], "none", ["query"])
            tokens += tokenizer.documents(request.documents, request.truncate, limit)
        job.inputs = [Input(job, i, "text", len(each.ids), each, each.count) for i, each in enumerate(tokens)]
        return job

    # --- engine thread ------------------------------------------------------------------------------------------------

    def admit(self, works: Sequence[Input]) -> None:
        job = works[0].owner
        assert isinstance(job, Job)
        self._jobs[job.ticket.id] = job
        if job.rerank:
            job.rows = np.zeros((len(works), self._config.dimensions), np.float32)
        self._totals.truncated += sum(isinstance(each.content, Tokens) and each.content.truncated for each in works)
        self._queue.add(job, monotonic())

    def abort(self, request_id: str) -> None:
        self._jobs.pop(request_id, None)
        self._queue.remove(request_id)

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    def step(self, only: str | None = None) -> StepResult:
        began = monotonic()
        if only is None and self._waits_for_company(began):
            time.sleep(POLL_S)
            return StepResult()
        batch = self._queue.take(began, only)
        if not batch:
            return StepResult()
        self._running = len(batch)
        try:
            rows = self._run(batch)
        except Exception as error:
            self._queue.put_back(batch)
            raise StepFailed(dict.fromkeys(each.ticket.id for each in batch), error) from error
        finally:
            self._running = 0
        now = monotonic()
        tokens = sum(each.content.count if isinstance(each.content, Tokens) else each.size for each in batch)
        self._totals.inputs += len(batch)
        self._totals.tokens += tokens
        self._totals.padded += len(batch) * max(each.size for each in batch)
        events = self._results(batch, rows, began, now)
        return StepResult(events, StepReport("encode", len(batch), tokens, now - began))

    def stats(self) -> Stats:
        totals = self._totals
        return Stats(
            running=self._running,
            waiting=self._queue.inputs_waiting,
            counters={
                "embedding_inputs": totals.inputs,
                "embedding_tokens": totals.tokens,
                "embedding_padded_tokens": totals.padded,
                "embedding_truncated_inputs": totals.truncated,
            },
        )

    def _waits_for_company(self, now: float) -> bool:
        """Whether a step that would not be full should wait for more inputs."""
        if self._max_wait == 0 or self._queue.tokens_waiting >= self._queue.budget.full:
            return False
        oldest = self._queue.oldest()
        return oldest is not None and now < oldest + self._max_wait

    def _run(self, batch: Sequence[Input]) -> NDArray[np.float32]:
        if batch[0].tower == "image":
            return self._embedder.images(np.stack([_pixels(each) for each in batch]))
        return self._embedder.texts(*padded([_tokens(each) for each in batch], self._config.pad_id))

    def _results(self, batch: Sequence[Input], rows: NDArray[np.float32], began: float, now: float) -> list[Event]:
        """Sort the rows of a batch to the requests that they belong to."""
        finite = np.isfinite(rows).all(axis=1)
        by_job: dict[str, list[int]] = {}
        for row, each in enumerate(batch):
            by_job.setdefault(each.ticket.id, []).append(row)
        events: list[Event] = []
        for id, members in by_job.items():
            job = self._jobs[id]
            job.started = job.started or began
            job.left -= len(members)
            indices = [batch[row].index for row in members]
            if not finite[members].all():
                index = next(batch[row].index for row in members if not finite[row])
                what = f"The model's result for input {index} is not a finite number; nothing was returned."
                events.append(Failed(id, "invalid_output", what))
                self.abort(id)
                continue
            if job.rows is not None:
                job.rows[indices] = rows[members]
            else:
                vectors = shortened(rows[members], job.dimensions)
                events.append(Vectors(id, indices, vectors.astype("<f4", copy=False).tobytes()))
            if job.left == 0:
                events += self._finished(job, now)
                self.abort(id)
        return events

    def _finished(self, job: Job, now: float) -> list[Event]:
        id, received = job.ticket.id, job.ticket.received
        timing = Timing(
            prepare=job.prepared - received,
            queue=job.started - job.prepared,
            compute=now - job.started,
            total=now - received,
        )
        events: list[Event] = []
        if job.rows is not None:
            scores = (job.rows[1:] @ job.rows[0]) if job.cosine else job.rows[:, 0]
            events.append(Scores(id, "cosine" if job.cosine else "cross_encoder", scores.tolist()))
        return [*events, ChoiceDone(id, 0, "stop"), Done(id, Usage(prompt_tokens=job.prompt_tokens), timing)]


def padded(
    texts: Sequence[Tokens], pad_id: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None]:
    """Ids, mask and types [rows, longest]; types are None where no text has any."""
    shape = len(texts), max(len(text.ids) for text in texts)
    ids = np.full(shape, pad_id, np.int64)
    mask = np.zeros(shape, np.int64)
    types = None if texts[0].types is None else np.zeros(shape, np.int64)
    for row, text in enumerate(texts):
        length = len(text.ids)
        ids[row, :length] = text.ids
        mask[row, :length] = 1
        if types is not None and text.types is not None:
            types[row, :length] = text.types
    return ids, mask, types


def shortened(vectors: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """The first components, as unit vectors again (https://arxiv.org/abs/2205.13147)."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    return unit(vectors[:, :dimensions])


def _tokens(each: Input) -> Tokens:
    assert isinstance(each.content, Tokens)
    return each.content


def _pixels(each: Input) -> NDArray[np.float32]:
    assert isinstance(each.content, np.ndarray)
    return each.content


def _options(spec: ModelSpec) -> EmbedderOptions:
    quantization: Quantization = "none"
    match spec.quantization:
        case None | "none":
            if spec.embedding.dynamic_int8:
                raise ModelLoadError('embedding.dynamic_int8 needs quantization = "int8"')
        case "int8":
            quantization = "int8_dynamic" if spec.embedding.dynamic_int8 else "int8"
        case other:
            raise ModelLoadError(f'quantization {other!r} loses too much of an embedding model; use "int8"')
    match spec.dtype:
        case None | "float32" | "float16":
            dtype = spec.dtype
        case other:
            raise ModelLoadError(f"embedding models run in float32 or, on a GPU, float16; not in {other!r}")
    return EmbedderOptions(
        device=spec.device,
        dtype=dtype,
        quantization=quantization,
        threads=spec.threads or available_cpus(),
        memory_limit=GPU_MEMORY,
    )
