"""The text pipeline: schedule, run, postprocess."""

from collections.abc import Sequence as Rows
from time import monotonic

from metrics.definitions import text as metrics
from metrics.definitions.common import DEVICE_MEMORY
from metrics.metric import GaugeSeries
from models.decoder.loading import LoadedModel
from models.errors import ModelLoadError
from pipelines.base import InvalidRequest, ModelError, StepFailed, StepResult, Ticket, non_finite
from pipelines.messages.frames import Event, Failed, ModelSpec, Ready, Stats, StepReport
from pipelines.messages.text import FinishReason, TextOptions, TextRequest
from pipelines.text.assembly import (
    cache_size,
    find_proposers,
    image_encoder,
    image_preparer,
    load_model,
    make_scheduler,
    require_sight,
)
from pipelines.text.cache.block_manager import BlockManager
from pipelines.text.cache.memory import reserved_bytes
from pipelines.text.plan import Plan
from pipelines.text.postprocess import Postprocessor
from pipelines.text.prompt.chat_template import ChatTemplate
from pipelines.text.prompt.effort import effort
from pipelines.text.prompt.prepare import Preparer
from pipelines.text.prompt.vocabulary import Vocabulary
from pipelines.text.results import Failure, Result, read_logits
from pipelines.text.runner import Runner
from pipelines.text.sample.defaults import sampling_defaults
from pipelines.text.sample.sampler import Choice
from pipelines.text.sequence import Sequence, State
from pipelines.text.speculative import Speculation
from pipelines.text.vision.encoder import ImageEncoder


class TextPipeline:
    """Continuous batching of sequences; implements `pipelines.base.Pipeline`."""

    def __init__(
        self, model: LoadedModel, options: TextOptions, draft: LoadedModel | None = None, source: str = ""
    ) -> None:
        """`draft`: the model that proposes. `source`: what the model was loaded from. Raises ModelError where options,
        models and machine do not fit together."""
        decoder, tokenizer = model.decoder, model.tokenizer
        vision = model.vision
        require_sight(vision, options)
        self._encoder = None if vision is None else image_encoder(vision, decoder, options)
        size = cache_size(decoder, options, draft)
        self._decoder = decoder
        self._options = options
        self._runner = Runner(decoder, size.num_blocks)
        self._runner.warm_up()
        self._runner.capture_graphs(
            options.cuda_graphs, max_rows=options.max_num_seqs, max_positions=size.max_model_len
        )
        proposers = find_proposers(model, options, draft, size)
        self._speculation = Speculation(proposers, self._runner.decode_cost)
        if options.speculation or draft:
            self._speculation.measure()  # before there are requests, rather than within the first
        self._blocks = BlockManager(size.num_blocks, self._runner.block_size)
        self._scheduler = make_scheduler(self._blocks, decoder.tile, options, size, self._speculation)
        vocabulary = Vocabulary(tokenizer, decoder.config.vocab_size)
        template = (vision and vision.chat_template) or tokenizer.chat_template
        self._sampling = sampling_defaults(options.sampling, model.generation.sampling, source)
        self._preparer = Preparer(
            tokenizer,
            vocabulary,
            self._sampling,
            model.generation.eos_ids,
            None
            if template is None
            else ChatTemplate(template, tokenizer.special_tokens, tokenizer.controls, sees=vision is not None),
            max_model_len=size.max_model_len,
            block_size=self._runner.block_size,
            options=options,
            proposers=tuple(proposers),
            images=None if vision is None else image_preparer(vision, tokenizer.spelling(vision.placeholder), options),
        )
        self._postprocessor = Postprocessor(vocabulary)
        self._max_model_len = size.max_model_len
        self._sees = "off" if vision is None else vision.family
        self._encoded = False  # whether the last step did
        self._unchecked = False  # whether sequences have run since the blocks were last verified

    @classmethod
    def load(cls, spec: ModelSpec[TextOptions]) -> "tuple[TextPipeline, Ready]":
        try:
            model = load_model(spec.source, spec, spec.options.vision)
        except ModelLoadError as error:
            raise ModelError(str(error)) from error
        try:
            draft = load_model(spec.options.draft, spec) if spec.options.draft else None
        except ModelLoadError as error:
            raise ModelError(f"text.draft: {error}") from error
        pipeline = cls(model, spec.options, draft, spec.source)
        return pipeline, pipeline.ready()

    def ready(self) -> Ready:
        batch = self._options.max_num_seqs
        return Ready(
            slots=batch + max(2, batch // 4),  # prepared sequences at hand when others end
            context_length=self._max_model_len,
            details={
                **self._decoder.details(),
                "kv_cache_tokens": str(self._blocks.num_blocks * self._blocks.block_size),
                "cuda_graphs": self._runner.graphs,
                "prefix_cache": "on" if self._options.prefix_cache else "off",
                "speculation": self._options.speculation or "off",
                "draft": self._options.draft or "none",
                "vision": self._sees,
            },
            sampling=self._sampling,
            images=self._encoder is not None,
        )

    # --- requests -----------------------------------------------------------------------------------------------------

    def prepare(self, ticket: Ticket, request: TextRequest) -> list[Sequence]:
        sequences = self._preparer.prepare(ticket, request)
        sequences[0].group.prepared = monotonic()
        return sequences

    def brief(self, request: TextRequest) -> bool:
        return self._preparer.brief(request)

    def effort(self, request: TextRequest) -> int:
        return effort(request)

    def feed(self, ticket: Ticket, data: bytes) -> list[Sequence]:
        raise InvalidRequest("a text request takes no further input")

    def admit(self, works: Rows[Sequence]) -> None:
        images = works[0].images
        if self._encoder is not None and images is not None:
            self._encoder.add(works, images)
        else:
            for sequence in works:
                self._scheduler.add(sequence)
        self._unchecked = True

    def abort(self, request_id: str) -> None:
        self._scheduler.abort(request_id)
        if self._encoder is not None:
            self._encoder.release(request_id)

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._schedulable or (self._encoder is not None and self._encoder.num_waiting > 0)

    @property
    def _schedulable(self) -> bool:
        return self._scheduler.num_running > 0 or self._scheduler.num_waiting > 0

    def step(self, only: str | None = None) -> StepResult:
        if self._encoder is not None and self._encodes(self._encoder, only):
            return self._encoder.step(only)
        started = monotonic()
        self._speculation.propose(self._scheduler.drafting(only), self._scheduler.num_running)
        plan = self._scheduler.schedule(started, only)
        if not plan.chunks:
            return StepResult()
        results = self._run(plan)
        ended = monotonic()
        self._scheduler.observe(plan, ended - started)
        events = self._postprocess(plan, results, started, ended)
        return StepResult(events, StepReport(plan.kind, len(plan.chunks), plan.tokens, ended - started))

    def _encodes(self, encoder: ImageEncoder[Sequence], only: str | None) -> bool:
        """Whether this step encodes images: at most every other one does while there are sequences to run. Those that
        wait for nothing more are scheduled."""
        for sequence in encoder.ready():
            sequence.group.encoded = monotonic()
            self._scheduler.add(sequence)
        turn = only is not None or not self._encoded or not self._schedulable
        self._encoded = turn and encoder.due(only)
        return self._encoded

    def _run(self, plan: Plan) -> list[Result]:
        """Forward and sample. Changes nothing but the cache behind each sequence's computed positions."""
        try:
            return read_logits(plan, self._runner.run(plan))
        except Exception as cause:
            raise StepFailed(plan.request_ids, cause) from cause

    def _postprocess(self, plan: Plan, results: list[Result], started: float, ended: float) -> list[Event]:
        self._scheduler.commit(plan, [result.accepted for result in results])
        events: list[Event] = []
        for chunk, result in zip(plan.chunks, results, strict=True):
            sequence = chunk.sequence
            group = sequence.group
            if group.first_step is None:
                group.first_step = started
            if sequence.state is State.FINISHED:  # with another of its request, a moment ago
                continue
            if result.failure is not None:
                self.abort(sequence.ticket.id)
                events.append(_failed(sequence.ticket.id, result.failure, result.reason))
                continue
            if chunk.scores:
                self._postprocessor.score(sequence, chunk.start + 1, result.scores)
            if result.choices:
                self._speculation.learn(sequence, len(chunk.drafts), result.accepted, result.choices[0].token)
            if sequence.computed >= len(sequence.tokens):
                for choice in _steps(result):
                    said, done = self._postprocessor.advance(sequence, choice, ended)
                    events.extend(said)
                    if done:  # what was drafted behind an end is not said
                        self._scheduler.finish(sequence)
                        if group.unfinished == 0 and self._encoder is not None:
                            self._encoder.release(group.ticket.id)
                        break
        return events

    # --- counters -----------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Also verifies, when there is nothing left to do, that every block has come back. Raises RuntimeError."""
        scheduler, blocks, encoder = self._scheduler, self._blocks, self._encoder
        if self._unchecked and not self.busy:
            scheduler.check()
            self._speculation.check()
            if encoder is not None:
                encoder.check()
            self._unchecked = False
        gauges: dict[GaugeSeries, float] = {
            metrics.KV_BLOCKS.series(): blocks.num_blocks,
            metrics.KV_BLOCKS_USED.series(): blocks.num_used,
            metrics.KV_BLOCKS_CACHED.series(): blocks.num_cached,
            **self._speculation.gauges(),
            **(encoder.gauges() if encoder else {}),
        }
        if self._decoder.gpu is not None:
            gauges[DEVICE_MEMORY.series()] = reserved_bytes(self._decoder.gpu)
        return Stats(
            scheduler.num_running,
            scheduler.num_waiting + (encoder.num_waiting if encoder else 0),
            counters={
                metrics.PREFIX_QUERY_TOKENS.series(): scheduler.prefix_query_tokens,
                metrics.PREFIX_HIT_TOKENS.series(): scheduler.prefix_hit_tokens,
                metrics.PREEMPTIONS.series(): scheduler.num_preemptions,
                **self._speculation.counters(),
                **(encoder.counters() if encoder else {}),
            },
            gauges=gauges,
        )


def _steps(result: Result) -> Rows[Choice | FinishReason]:
    """What a step says of a sequence, token by token."""
    if result.complete:
        return (*result.choices, "stop")
    return result.choices or ("length",)


def _failed(id: str, failure: Failure, reason: str) -> Failed:
    if failure == "all banned":
        message = "the request's settings leave no token that may come next"
        return Failed(id, "invalid_request", f"{message}: {reason}" if reason else message)
    return non_finite(id)
