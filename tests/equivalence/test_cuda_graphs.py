"""A step over static buffers gives what a plain forward gives; what is captured is checked before it is used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.decoder.attention.paged import KVCache
from models.decoder.batch import ForwardBatch, Segment
from models.decoder.cuda_graphs import DecodeGraphs, Graph, GraphError, StaticStep, graph_sizes, graph_widths
from models.decoder.decode_path import BATCHED, choose_path
from models.decoder.loading import load_decoder
from models.decoder.transformer import Decoder
from pipelines.base import ModelError
from pipelines.text.plan import Chunk, Plan
from pipelines.text.runner import Runner
from tests.equivalence.conftest import VOCAB, prefill

BLOCKS, SCRATCH = 40, 39


class Eager:
    """Runs what a graph would replay."""

    def __init__(self, step: StaticStep) -> None:
        self.step = step
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self.step.compute()


@pytest.fixture(scope="module")
def decoder(save_checkpoint: Callable[..., tuple[Path, Any]]) -> Decoder:
    folder, _ = save_checkpoint("Qwen3", num_hidden_layers=2, head_dim=16)
    made = load_decoder(folder, device="cpu", dtype="float32", threads=1).decoder
    made.decode_path = BATCHED
    return made


def prompts(decoder: Decoder, cache: KVCache, count: int) -> list[Segment]:
    """As many sequences of different lengths in the cache, each about to decode its next position."""
    segments = []
    for number in range(count):
        length = 3 + 7 * number
        blocks = [4 * number + each for each in (2, 0, 3, 1)]
        prefill(decoder, cache, [(number + each) % VOCAB for each in range(length)], blocks=blocks)
        segments.append(Segment(1, length, blocks))
    return segments


def plain(decoder: Decoder, cache: KVCache, ids: Sequence[int], segments: Sequence[Segment]) -> Tensor:
    positions = torch.cat([torch.arange(each.context, each.context + each.length) for each in segments])
    return decoder.forward(ForwardBatch("decode", torch.tensor(ids), positions, segments), cache)


@pytest.mark.parametrize("count", [1, 3, 8])
@torch.inference_mode()
def test_a_static_step_is_a_plain_forward_and_its_spare_rows_do_nothing(decoder: Decoder, count: int) -> None:
    cache = decoder.new_cache(BLOCKS)
    segments = prompts(decoder, cache, count)
    ids = [5 + each for each in range(count)]
    expected = plain(decoder, cache, ids, segments)
    before = cache.pool.clone()
    step = StaticStep(decoder, cache, rows=8, width=6, scratch=SCRATCH)
    step.fill(ids, segments)
    step.compute()
    assert step.logits is not None
    assert (step.logits[:count] - expected).abs().max() <= 1e-5
    untouched = cache.pool[:, : SCRATCH * 16] - before[:, : SCRATCH * 16]
    assert untouched.abs().max() <= 1e-5  # nothing but its rows' own, which stood there already


@torch.inference_mode()
def test_rows_of_an_earlier_step_are_forgotten(decoder: Decoder) -> None:
    cache = decoder.new_cache(BLOCKS)
    segments = prompts(decoder, cache, 4)
    step = StaticStep(decoder, cache, rows=4, width=6, scratch=SCRATCH)
    step.fill([1, 2, 3, 4], segments)
    step.compute()
    expected = plain(decoder, cache, [9], segments[:1])
    before = cache.pool[:, 16 : SCRATCH * 16].clone()
    own = segments[0].blocks[0] * 16 + segments[0].context
    step.fill([9], segments[:1])
    step.compute()
    assert step.logits is not None
    assert (step.logits[:1] - expected).abs().max() <= 1e-5
    changed = (cache.pool[:, 16 : SCRATCH * 16] - before).abs().amax((0, 2, 3, 4)).nonzero().flatten() + 16
    assert set(changed.tolist()) <= {own}


@torch.inference_mode()
def test_drafts_run_as_rows_of_a_graph(decoder: Decoder) -> None:
    cache = decoder.new_cache(BLOCKS)
    first, second = prompts(decoder, cache, 2)
    drafted = [Segment(3, first.context, first.blocks), second]
    graphs = captured(decoder, cache)
    first, second = prompts(decoder, cache, 2)  # capturing leaves an empty cache
    found = graphs.run([4, 5, 6, 7], drafted)
    assert found is not None
    assert (found - plain(decoder, cache, [4, 5, 6, 7], drafted)).abs().max() <= 1e-5


def captured(decoder: Decoder, cache: KVCache, recorder: Callable[[StaticStep], Graph] = Eager) -> DecodeGraphs:
    return DecodeGraphs.capture(
        decoder, cache, scratch=SCRATCH, max_rows=5, max_positions=400, recorder=lambda step: recorder(step)
    )


@torch.inference_mode()
def test_ropes_turn_rows_by_positions_of_their_own(decoder: Decoder) -> None:
    """Behind a picture, ropes have a sequence's rows elsewhere than they stand."""
    cache = decoder.new_cache(BLOCKS)
    graphs = captured(decoder, cache)
    segments, ids = prompts(decoder, cache, 3), [5, 6, 7]
    elsewhere = np.array([each.context - number for number, each in enumerate(segments)])
    expected = decoder.forward(ForwardBatch("decode", np.array(ids), elsewhere, segments), cache)
    found = graphs.run(ids, segments, elsewhere)
    assert found is not None
    assert (found - expected).abs().max() <= 1e-5
    in_place = graphs.run(ids, segments)
    assert in_place is not None
    assert (in_place - expected)[1:].abs().max() > 1e-3


def test_the_smallest_graph_that_holds_a_forward_runs_it(decoder: Decoder) -> None:
    made: list[Eager] = []

    def record(step: StaticStep) -> Graph:
        made.append(Eager(step))
        return made[-1]

    cache = decoder.new_cache(BLOCKS)
    graphs = captured(decoder, cache, record)
    assert [(each.step.rows, each.step.capacity) for each in reversed(made)] == [
        (rows, capacity) for rows in (1, 2, 4, 8) for capacity in (256, 400)
    ]
    assert not cache.pool.any()  # of what was tried nothing is left

    def ran(ids: int, context: int) -> tuple[int, int] | None:
        counts = [each.replays for each in made]
        found = graphs.run([1] * ids, [Segment(1, context, range(each, each + 25)) for each in range(ids)])
        if found is None:
            return None
        assert found.shape == (ids, VOCAB)
        (which,) = [each for each, count in zip(made, counts, strict=True) if each.replays > count]
        return which.step.rows, which.step.capacity

    assert ran(1, 10) == (1, 256)
    assert ran(3, 255) == (4, 256)
    assert ran(3, 256) == (4, 400)
    assert ran(8, 0) == (8, 256)
    assert ran(9, 0) is None


def test_a_replay_that_differs_is_refused(decoder: Decoder) -> None:
    class Broken(Eager):
        def replay(self) -> None:
            super().replay()
            assert self.step.logits is not None
            self.step.logits = self.step.logits + 1

    with pytest.raises(GraphError, match="differs by"):
        captured(decoder, decoder.new_cache(BLOCKS), Broken)


def test_a_capture_that_fails_says_why(decoder: Decoder) -> None:
    def refuse(step: StaticStep) -> Graph:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with pytest.raises(GraphError, match=r"^operation not permitted when stream is capturing$"):
        captured(decoder, decoder.new_cache(BLOCKS), refuse)
    with pytest.raises(GraphError, match="no CUDA device"):
        DecodeGraphs.capture(decoder, decoder.new_cache(BLOCKS), scratch=SCRATCH, max_rows=1, max_positions=64)
    with pytest.raises(GraphError, match="too small"):
        DecodeGraphs.capture(
            decoder, decoder.new_cache(1), scratch=0, max_rows=1, max_positions=64, recorder=lambda step: Eager(step)
        )


def test_a_runner_replays_decodes_and_reads_the_rows_that_are_wanted(decoder: Decoder) -> None:
    def plan(*rows: tuple[int, int, bool, tuple[int, ...]]) -> Plan:
        """Of (start, length, draws, drafts)."""
        chunks = []
        for number, (start, length, draws, drafts) in enumerate(rows):
            table = [8 * number + each for each in (3, 1, 0, 2, 4, 5)]
            tokens = [(7 * number + each) % VOCAB for each in range(90)]
            sequence: Any = SimpleNamespace(tokens=tokens, table=table, images=None)
            chunks.append(Chunk(sequence, start, length, draws, drafts=drafts))
        return Plan(tuple(chunks), ())

    made: list[Eager] = []

    def record(step: StaticStep) -> Graph:
        made.append(Eager(step))
        return made[-1]

    plans = [
        plan((20, 1, True, ()), (3, 1, True, ())),
        plan((21, 3, True, (8, 9)), (4, 2, False, ())),
        plan((24, 9, True, ())),  # more rows than any graph has
    ]
    plain_runner, replaying = Runner(decoder, 39), Runner(decoder, 39)
    plain_runner.capture_graphs(None, max_rows=5, max_positions=600)
    assert plain_runner.graphs == "off"
    replaying.capture_graphs(True, max_rows=5, max_positions=600, recorder=record)
    assert replaying.graphs == "8, of up to 8 rows"
    started = sum(each.replays for each in made)
    for each, replays in zip(plans, (1, 2, 2), strict=True):
        assert (replaying.run(each) - plain_runner.run(each)).abs().max() <= 1e-5
        assert sum(graph.replays for graph in made) - started == replays
    assert replaying.run(plans[1]).shape[0] == 3


def test_graphs_that_are_wanted_and_can_not_be_had_are_refused(decoder: Decoder) -> None:
    with pytest.raises(ModelError, match=r"text\.cuda_graphs: there is no CUDA device"):
        Runner(decoder, 39).capture_graphs(True, max_rows=1, max_positions=64)


@pytest.mark.parametrize("blocks", [2, 3, 10])
def test_a_small_cache_is_enough_to_try_graphs(decoder: Decoder, blocks: int) -> None:
    graphs = DecodeGraphs.capture(
        decoder,
        decoder.new_cache(blocks),
        scratch=blocks - 1,
        max_rows=4,
        max_positions=64,
        recorder=lambda step: Eager(step),
    )
    assert graphs.run([1], [Segment(1, 0, [0])]) is not None


def test_sizes_and_widths() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(16) == [1, 2, 4, 8, 16]
    assert graph_sizes(17) == [1, 2, 4, 8, 16, 32]
    assert graph_sizes(5000)[-1] == 256
    assert graph_widths(8192, 256, reads_all=False) == [32]
    assert graph_widths(8192, 16, reads_all=True) == [16, 64, 256, 512]
    assert graph_widths(100, 16, reads_all=True) == [7]


def test_a_cpu_keeps_a_call_a_position(decoder: Decoder) -> None:
    assert choose_path(decoder.config, torch.bfloat16, torch.device("cpu")) is None


@pytest.mark.requires_cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replays_on_cuda(save_checkpoint: Callable[..., tuple[Path, Any]], dtype: str) -> None:
    folder, _ = save_checkpoint("Llama")
    decoder = load_decoder(folder, device="cuda", dtype=dtype).decoder
    cache = decoder.new_cache(BLOCKS)
    graphs = DecodeGraphs.capture(decoder, cache, scratch=SCRATCH, max_rows=8, max_positions=512)
    assert graphs.run([3], [Segment(1, 0, [0])]) is not None
