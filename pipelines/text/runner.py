"""From scheduled chunks to forwards."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor

from models.batch import ForwardBatch, Segment
from models.decoder import Decoder
from models.graphs import DecodeGraphs, GraphError, Recorder
from pipelines.base import ModelError
from pipelines.messages import TextOptions
from pipelines.text.scheduler import LOGPROB_ROWS, Chunk, Plan
from pipelines.text.speculative import StepCost

log = logging.getLogger(__name__)

TRIALS = 3  # of each size of a step that is timed
VERIFIED = 8  # rows of the larger one


class Runner:
    """Owns the KV cache, and alone calls the decoder."""

    def __init__(self, decoder: Decoder, num_blocks: int) -> None:
        self._decoder = decoder
        spare = decoder.decode_path is not None  # one block more, for the rows that a graph has too many
        self._cache = decoder.new_cache(num_blocks + spare)
        self._scratch = num_blocks
        self._graphs: DecodeGraphs | None = None
        self.graphs = "off"  # for people
        self.block_size = self._cache.block_size

    def capture_graphs(
        self, wanted: bool | None, *, max_rows: int, max_positions: int, recorder: Recorder | None = None
    ) -> None:
        """Replay decode forwards of up to `max_rows` rows from now on. None: where that works.

        Before any sequence has blocks. Raises ModelError where they are wanted and can't be had.
        """
        if wanted is False or (wanted is None and self._decoder.device.type != "cuda"):
            return
        try:
            self._graphs = DecodeGraphs.capture(
                self._decoder,
                self._cache,
                scratch=self._scratch,
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

    @torch.inference_mode()
    def run(self, plan: Plan) -> Tensor:
        """The wanted logits [rows, vocab] float32, in the order of the plan's chunks.

        Decode and prefill rows go in forwards of their own: they differ in attention, and may in weights.
        """
        logits = [self._forward(kind, chunks) for kind, chunks in _forwards(plan)]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _forward(self, kind: Literal["decode", "prefill"], chunks: Sequence[Chunk]) -> Tensor:
        segments = [Segment(chunk.length, chunk.start, chunk.sequence.table) for chunk in chunks]
        ids: Iterable[int]
        positions: Iterable[int]
        if all(chunk.length == 1 for chunk in chunks):
            ids = [chunk.sequence.tokens[chunk.start] for chunk in chunks]
            positions = [chunk.start for chunk in chunks]
        else:
            ids = chain.from_iterable(chunk.ids for chunk in chunks)
            positions = chain.from_iterable(range(c.start, c.start + c.length) for c in chunks)
        if kind == "decode" and self._graphs is not None:
            ids = list(ids)
            replayed = self._graphs.run(ids, segments)
            if replayed is not None:
                rows = self._logit_rows(chunks)
                return replayed if rows is None else replayed.index_select(0, rows)
        return self._decoder.forward(
            ForwardBatch(kind, self._tensor(ids), self._tensor(positions), segments, self._logit_rows(chunks)),
            self._cache,
        )

    def _logit_rows(self, chunks: Sequence[Chunk]) -> Tensor | None:
        """None where all rows are wanted."""
        if all(chunk.logits == chunk.length for chunk in chunks):
            return None
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            end += chunk.length
            rows.extend(range(end - chunk.logits, end))
        return self._tensor(rows)

    def _tensor(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64).to(self._decoder.device)

    @torch.inference_mode()
    def warm_up(self) -> StepCost:
        """Run each kind of forward, so that no request pays for what is set up lazily; what decode steps cost.

        Writes into blocks that no sequence holds yet.
        """
        tile = self._decoder.tile
        self._time("prefill", tile, 0)
        one, several = (min(self._time("decode", rows, tile - rows) for _ in range(TRIALS)) for rows in (1, VERIFIED))
        return StepCost.of(one, several, VERIFIED)

    def _time(self, kind: Literal["decode", "prefill"], length: int, context: int) -> float:
        """Seconds of a forward of so many rows of one sequence, behind `context` positions."""
        ids, positions = self._tensor([0] * length), self._tensor(range(context, context + length))
        segment = Segment(length, context, range(-(-(context + length) // self.block_size)))
        began = perf_counter()
        logits = self._graphs.run([0] * length, [segment]) if kind == "decode" and self._graphs else None
        if logits is None:
            logits = self._decoder.forward(ForwardBatch(kind, ids, positions, [segment]), self._cache)
        logits[:, 0].cpu()  # a GPU has finished then
        return perf_counter() - began


@torch.inference_mode()
def try_largest(decoder: Decoder, options: TextOptions) -> None:
    """A prefill of as many tokens as a step may have, over a cache of its own: what it takes, steps may take."""
    tokens, context = options.max_num_batched_tokens, decoder.config.max_position_embeddings
    cache = decoder.new_cache(-(-min(tokens, context) // decoder.new_cache(1).block_size))
    lengths = [min(context, tokens - start) for start in range(0, tokens, context)]
    segments = [Segment(length, 0, range(cache.num_blocks)) for length in lengths]
    positions = torch.cat([torch.arange(length) for length in lengths]).to(decoder.device)
    wanted = torch.arange(max(0, tokens - LOGPROB_ROWS), tokens).to(decoder.device)
    decoder.forward(ForwardBatch("prefill", torch.zeros_like(positions), positions, segments, wanted), cache)


def _forwards(plan: Plan) -> Iterator[tuple[Literal["decode", "prefill"], Sequence[Chunk]]]:
    if plan.decode:
        yield "decode", plan.decode
    if plan.prefill:
        yield "prefill", plan.prefill
