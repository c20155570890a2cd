"""From scheduled chunks to forwards."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from models.decoder.batch import Cache, CausalDecoder, ForwardBatch, Segment
from models.decoder.logits import Logits, joined, on_host
from pipelines.base import ModelError
from pipelines.messages.text import TextOptions
from pipelines.text.plan import Chunk, Plan
from pipelines.text.scheduler import LOGPROB_ROWS
from pipelines.text.step_cost import StepCost
from pipelines.text.vision.forward import with_images
from pipelines.text.vision.prompt_images import PromptImages

if TYPE_CHECKING:
    from models.decoder.cuda_graphs import DecodeGraphs, Recorder
    from models.decoder.transformer import Decoder

log = logging.getLogger(__name__)

TRIALS = 3  # of each size of a step that is timed
VERIFIED = 8  # rows of the larger one


class RowSpan(Protocol):
    """Rows of one sequence, at positions `start … start + length - 1`."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def start(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def table(self) -> Sequence[int]:
        """Its blocks."""
        ...

    @property
    def logits(self) -> int:
        """The number of last rows whose logits are wanted."""
        ...

    @property
    def images(self) -> PromptImages | None:
        """Those that the sequence's prompt shows."""
        ...


class Runner:
    """Owns a KV cache, and alone calls its decoder."""

    def __init__(self, decoder: CausalDecoder, num_blocks: int) -> None:
        self._decoder = decoder
        spare = decoder.captures  # one block more, for the rows that a graph has too many
        self._cache = decoder.new_cache(num_blocks + spare)
        self._spare = num_blocks
        self._graphs: DecodeGraphs | None = None
        self.graphs = "off"  # for people
        self.block_size = self._cache.block_size

    def capture_graphs(
        self, wanted: bool | None, *, max_rows: int, max_positions: int, recorder: "Recorder | None" = None
    ) -> None:
        """Replay decode forwards of up to `max_rows` rows from now on. None: where that works.

        Before any sequence has blocks. Raises ModelError where they are wanted and can't be had.
        """
        if wanted is False or (wanted is None and self._decoder.gpu is None):
            return
        if self._decoder.gpu is None and recorder is None:
            raise ModelError("text.cuda_graphs: there is no CUDA device")
        from models.decoder.cuda_graphs import DecodeGraphs, GraphError

        try:
            self._graphs = DecodeGraphs.capture(
                cast("Decoder", self._decoder),  # no other one is captured
                self._cache,
                scratch=self._spare,
                max_rows=max_rows,
                max_positions=max_positions,
                recorder=recorder,
            )
        except GraphError as error:
            if wanted:
                raise ModelError(f"text.cuda_graphs: {error}") from error
            log.warning("decode steps are not captured as CUDA graphs: %s", error)
            self.graphs = f"none: {error}"
        else:
            self.graphs = str(self._graphs)

    def run(self, plan: Plan) -> Logits:
        """The wanted logits [rows, vocab] float32, in the order of the plan's chunks.

        Decode and prefill rows go in forwards of their own: they differ in attention, and may in weights.
        """
        return joined([self.forward(kind, chunks) for kind, chunks in _forwards(plan)])

    def forward(self, kind: Literal["decode", "prefill"], rows: Sequence[RowSpan]) -> Logits:
        """The wanted logits [rows, vocab] float32, in order; those of a decode forward until the next one."""
        segments = [Segment(each.length, each.start, each.table) for each in rows]
        ids = list(chain.from_iterable(each.ids for each in rows))
        wanted = _logit_rows(rows)
        positions = chain.from_iterable(range(each.start, each.start + each.length) for each in rows)
        batch = ForwardBatch(kind, _array(ids), _array(positions), segments, wanted)
        if any(each.images is not None for each in rows):
            batch = with_images(batch, rows)
        if kind == "decode" and self._graphs is not None:
            replayed = self._graphs.run(ids, segments, batch.positions)
            if replayed is not None:
                return replayed if wanted is None else replayed[wanted]
        return self._decoder.forward(batch, self._cache)

    # --- on the side --------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Run each kind of forward, so that no request pays for what is set up lazily."""
        tile = self._decoder.tile
        scratch = self._scratch(tile + 1)
        self._time("prefill", tile, 0, scratch)
        self._time("decode", 1, tile, scratch)

    def decode_cost(self) -> StepCost:
        """What decode steps cost, as measured now."""
        scratch = self._scratch(2 * VERIFIED)
        one, several = (
            min(self._time("decode", rows, 2 * VERIFIED - rows, scratch) for _ in range(TRIALS))
            for rows in (1, VERIFIED)
        )
        return StepCost.of(one, several, VERIFIED)

    def _scratch(self, positions: int) -> Cache:
        """A cache of no sequence's."""
        scratch: Cache = self._decoder.new_cache(-(-positions // self.block_size))
        return scratch

    def _time(self, kind: Literal["decode", "prefill"], length: int, context: int, cache: Cache) -> float:
        """Seconds of a forward of so many rows of one sequence, behind `context` positions."""
        segment = Segment(length, context, range(cache.num_blocks))
        batch = ForwardBatch(kind, _array([0] * length), _array(range(context, context + length)), [segment])
        nobodys = Segment(length, context, [self._spare] * cache.num_blocks)
        began = perf_counter()
        logits: Logits | None = self._graphs.run([0] * length, [nobodys]) if kind == "decode" and self._graphs else None
        if logits is None:
            logits = self._decoder.forward(batch, cache)
        on_host(logits[:, 0])  # a GPU has finished then
        return perf_counter() - began


def try_largest(decoder: CausalDecoder, options: TextOptions) -> None:
    """A prefill of as many tokens as a step may have, over a cache of its own: what it takes, steps may take."""
    tokens, context = options.max_num_batched_tokens, decoder.config.max_position_embeddings
    cache = decoder.new_cache(-(-min(tokens, context) // decoder.new_cache(1).block_size))
    lengths = [min(context, tokens - start) for start in range(0, tokens, context)]
    segments = [Segment(length, 0, range(cache.num_blocks)) for length in lengths]
    positions = np.concatenate([np.arange(length) for length in lengths])
    wanted = np.arange(max(0, tokens - LOGPROB_ROWS), tokens)
    decoder.forward(ForwardBatch("prefill", np.zeros_like(positions), positions, segments, wanted), cache)


def _logit_rows(spans: Sequence[RowSpan]) -> NDArray[np.int64] | None:
    """None where all rows are wanted."""
    if all(each.logits == each.length for each in spans):
        return None
    rows: list[int] = []
    end = 0
    for each in spans:
        end += each.length
        rows.extend(range(end - each.logits, end))
    return _array(rows)


def _array(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)


def _forwards(plan: Plan) -> Iterator[tuple[Literal["decode", "prefill"], Sequence[Chunk]]]:
    if plan.decode:
        yield "decode", plan.decode
    if plan.prefill:
        yield "prefill", plan.prefill
