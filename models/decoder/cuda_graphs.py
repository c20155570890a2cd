"""Decode forwards captured as CUDA graphs: a step is then one launch, where it would be hundreds.

A graph has a fixed number of rows and a fixed width of block tables. A forward runs in the smallest one that holds it;
rows that it does not need write into a block that no sequence has, and nobody reads their logits.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.decoder.attention.batched import RowTables
from models.decoder.attention.paged import KVCache
from models.decoder.batch import ForwardBatch, Segment
from models.decoder.transformer import Decoder

MOST_ROWS = 256  # of a graph; larger forwards keep the device busy by themselves
NARROWEST = 256  # positions of the narrowest tables, where a row costs what its table does
WIDENING = 4  # from one width to the next
SHARED = 8  # blocks that the rows of a trial have in common
WARM_UPS = 2  # runs before a capture: kernels are loaded and workspaces made in them
_TABLE = 3  # where the block table begins in a row of a graph's inputs
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05}  # of a replay, relative to the largest logit


class GraphError(Exception):
    """Why there are no graphs."""


class StaticStep:
    """A decode forward of a fixed shape, from a buffer of inputs to one of logits."""

    def __init__(self, decoder: Decoder, cache: KVCache, *, rows: int, width: int, scratch: int) -> None:
        """`width`: blocks of a table. `scratch`: a block of the cache that no sequence has."""
        self.rows = rows
        self.capacity = width * cache.block_size  # positions of a sequence
        self._decoder = decoder
        self._cache = cache
        self._scratch = scratch
        self._tile = decoder.new_tile(rows)
        pinned = decoder.device.type == "cuda"
        # A row: token id, position in the sequence, and for ropes, block table. One buffer: a step takes one transfer.
        self._host = torch.zeros((rows, _TABLE + width), dtype=torch.int32, pin_memory=pinned)
        self._host[:, _TABLE:] = scratch
        self._inputs = self._host.to(decoder.device, copy=True)
        self._array = self._host.numpy()
        self._filled = 0
        self.logits: Tensor | None = None  # [rows, vocab] float32, of the last `compute`

    def fill(
        self,
        ids: Sequence[int],
        segments: Sequence[Segment],
        positions: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> None:
        """At most `rows` ids, which stand at the segments' positions, in order. `positions`: see `DecodeGraphs.run`."""
        array, size = self._array, self._cache.block_size
        row = 0
        for segment in segments:
            end = segment.context + segment.length
            blocks = segment.blocks[: -(-end // size)]
            for position in range(segment.context, end):
                turned = position if positions is None else positions[row]
                array[row, 0], array[row, 1], array[row, 2] = ids[row], position, turned
                array[row, _TABLE : _TABLE + len(blocks)] = blocks
                array[row, _TABLE + len(blocks) :] = self._scratch
                row += 1
        array[row : self._filled, :_TABLE] = 0
        array[row : self._filled, _TABLE:] = self._scratch
        self._filled = row
        self._inputs.copy_(self._host)

    def compute(self) -> None:
        """What a graph captures: reads and writes tensors of fixed addresses alone."""
        inputs = self._inputs.long()
        tables = RowTables(inputs[:, 1], inputs[:, _TABLE:])
        self.logits = self._decoder.decode_rows(self._tile, inputs[:, 0], inputs[:, 2], tables, self._cache)


class Graph(Protocol):
    def replay(self) -> None: ...


class Recorder(Protocol):
    """Captures `StaticStep.compute`. Raises RuntimeError where that can't be done."""

    def __call__(self, step: StaticStep) -> Graph: ...


class DecodeGraphs:
    """All graphs of one decoder and cache. Not reentrant, as the decoder is not."""

    def __init__(self, graphs: Sequence[tuple[StaticStep, Graph]]) -> None:
        """`graphs`: the smallest first."""
        self._graphs = graphs

    def __str__(self) -> str:
        return f"{len(self._graphs)}, of up to {max(step.rows for step, _ in self._graphs)} rows"

    @torch.inference_mode()
    def run(
        self,
        ids: Sequence[int],
        segments: Sequence[Segment],
        positions: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> Tensor | None:
        """[rows, vocab] float32, valid until the next run; None where no graph is large enough.

        `ids` stand at the segments' positions, in order. `positions`: what ropes turn the rows by, equal on all axes;
        None: by those.
        """
        longest = max(segment.context + segment.length for segment in segments)
        for step, graph in self._graphs:
            if step.rows >= len(ids) and step.capacity >= longest:
                step.fill(ids, segments, positions)
                graph.replay()
                assert step.logits is not None
                return step.logits[: len(ids)]
        return None

    @staticmethod
    @torch.inference_mode()
    def capture(
        decoder: Decoder,
        cache: KVCache,
        *,
        scratch: int,
        max_rows: int,
        max_positions: int,
        recorder: Recorder | None = None,
    ) -> "DecodeGraphs":
        """Graphs for up to `max_rows` rows (at most MOST_ROWS) of sequences of up to `max_positions`.

        `scratch`: a block that no sequence will have. `recorder`: CUDA's when None. Before any sequence has blocks: it
        writes into them. Raises GraphError where forwards can't be captured, or a replay is not what the same forward
        gives without a graph.
        """
        record = recorder or _CudaRecorder(decoder.device)
        try:
            decoder.reserve(max_positions)
            steps = _steps(decoder, cache, scratch, max_rows, max_positions)
            graphs = DecodeGraphs([(step, record(step)) for step in steps][::-1])
            graphs._verify(decoder, cache, scratch)
        except RuntimeError as error:
            raise GraphError(str(error).splitlines()[0]) from error
        finally:
            cache.pool.zero_()
        return graphs

    def _verify(self, decoder: Decoder, cache: KVCache, scratch: int) -> None:
        """Raises GraphError."""
        for step, graph in self._graphs:
            ids, segments = _trial(cache, step, scratch)
            step.fill(ids, segments)
            graph.replay()
            assert step.logits is not None
            positions = np.array([each.context for each in segments])
            batch = ForwardBatch("decode", np.array(ids), positions, segments)
            plain = decoder.forward(batch, cache)
            largest = plain.abs().max().clamp(min=1e-6)
            error = ((step.logits[: len(ids)] - plain).abs().max() / largest).item()
            if not error <= TOLERANCE[decoder.dtype]:  # NaN is not
                raise GraphError(f"a replay of {step.rows} rows differs by {error:.3g} of the largest logit")


def graph_sizes(max_rows: int) -> list[int]:
    """Powers of two, the last not below `max_rows`, none above MOST_ROWS."""
    sizes = [1]
    while sizes[-1] < min(max_rows, MOST_ROWS):
        sizes.append(2 * sizes[-1])
    return sizes


def graph_widths(max_positions: int, block_size: int, *, reads_all: bool) -> list[int]:
    """Blocks of the tables: one width where a row costs what its length does, several where it costs its table's."""
    positions = [max_positions]
    if reads_all:
        narrow = NARROWEST
        while narrow < max_positions:
            positions.insert(-1, narrow)
            narrow *= WIDENING
    return [-(-each // block_size) for each in positions]


def _trial(cache: KVCache, step: StaticStep, scratch: int) -> tuple[list[int], list[Segment]]:
    """An id and a segment for each row, as far as the cache has blocks, over random keys and values.

    A row's last block is its own, so that nobody reads what another row writes; all read the same blocks before it.
    """
    usable = [block for block in range(cache.num_blocks) if block != scratch]
    count = min(SHARED, len(usable) // 2)
    shared, own = usable[:count], usable[count : count + step.rows]
    if not own:
        raise GraphError(f"a cache of {cache.num_blocks} blocks is too small to try them")
    device = cache.pool.device
    chance = torch.Generator(device).manual_seed(step.rows)
    index = torch.tensor([*shared, *own], device=device)
    for layer in cache.blocks:
        shape = (len(index), *layer.shape[1:])
        layer.index_copy_(0, index, torch.randn(shape, generator=chance, device=device, dtype=layer.dtype))
    most = step.capacity // cache.block_size - 1  # blocks before the last
    segments = []
    for row, last in enumerate(own):
        before = [shared[(row + each) % count] for each in range(min(row % (count + 1), most))]
        segments.append(Segment(1, len(before) * cache.block_size + row % cache.block_size, [*before, last]))
    return [row % 7 for row in range(len(own))], segments


def _steps(decoder: Decoder, cache: KVCache, scratch: int, max_rows: int, max_positions: int) -> Iterator[StaticStep]:
    """The largest first: its memory then serves the others."""
    path = decoder.decode_path
    if path is None:
        raise GraphError("decode attention is a call a position here")
    widths = graph_widths(max_positions, cache.block_size, reads_all=path.reads_all)
    for rows in reversed(graph_sizes(max_rows)):
        for width in reversed(widths):
            yield StaticStep(decoder, cache, rows=rows, width=width, scratch=scratch)


def missing(device: torch.device) -> str | None:
    """Why nothing can be captured there; None: something small was, and its replay computes."""
    if device.type != "cuda":
        return "there is no CUDA device"
    try:
        with torch.cuda.device(device):
            value = torch.ones(1, device=device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                value.add_(1)
            graph.replay()
            found = value.item()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None if found == 2 else f"a replay gives {found} for 1 + 1"


class _CudaRecorder:
    def __init__(self, device: torch.device) -> None:
        """Raises GraphError."""
        if device.type != "cuda":
            raise GraphError("there is no CUDA device")
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: StaticStep) -> Graph:
        with torch.cuda.device(self._device):
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(WARM_UPS):
                    step.compute()
            torch.cuda.current_stream().wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                step.compute()
            return graph
