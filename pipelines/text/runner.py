"""From scheduled chunks to forwards."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor

from models.batch import ForwardBatch, Segment
from models.decoder import Decoder
from pipelines.text.scheduler import Chunk, Plan
from pipelines.text.speculative import StepCost

TRIALS = 3  # of each size of a step that is timed
VERIFIED = 8  # rows of the larger one


class Runner:
    """Owns the KV cache, and alone calls the decoder."""

    def __init__(self, decoder: Decoder, num_blocks: int) -> None:
        self._decoder = decoder
        self._cache = decoder.new_cache(num_blocks)
        self.block_size = self._cache.block_size

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
        logits = self._decoder.forward(ForwardBatch(kind, ids, positions, [segment]), self._cache)
        logits[:, 0].cpu()  # a GPU has finished then
        return perf_counter() - began


def _forwards(plan: Plan) -> Iterator[tuple[Literal["decode", "prefill"], Sequence[Chunk]]]:
    if plan.decode:
        yield "decode", plan.decode
    if plan.prefill:
        yield "prefill", plan.prefill
