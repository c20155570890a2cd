"""Attention of all rows at once gives what attention of one row after the other gives."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from models.decoder.attention import batched
from models.decoder.attention.batched import BatchedAttention, RowTables
from models.decoder.attention.paged import DecodeAttention, KVCache
from models.decoder.batch import Segment
from models.decoder.frequencies import NO_ROPE
from models.decoder.layers import LayerSpec

LAYERS, KV_HEADS, GROUP, HEAD_DIM, BLOCKS = 2, 2, 3, 16, 64
LENGTHS = (1, 15, 16, 17, 40, 64, 100)


def filled(dtype: torch.dtype) -> KVCache:
    cache = KVCache(LAYERS, BLOCKS, KV_HEADS, HEAD_DIM, dtype, torch.device("cpu"))
    cache.pool.copy_(torch.randn(cache.pool.shape, generator=torch.Generator().manual_seed(0)))
    return cache


def scattered(*rows: tuple[int, int]) -> list[Segment]:
    """Of (length, context), each over blocks of its own in no order."""
    blocks = list(range(BLOCKS))
    random.Random(3).shuffle(blocks)
    made = []
    for length, context in rows:
        count = -(-(context + length) // 16) + 1  # one more than is used
        made.append(Segment(length, context, blocks[:count]))
        blocks = blocks[count:]
    return made


def inputs(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Queries, and the rows' own keys and values."""
    chance = torch.Generator().manual_seed(1)
    queries = torch.randn(rows, KV_HEADS, GROUP, HEAD_DIM, generator=chance).to(dtype)
    return queries, torch.randn(rows, 2 * KV_HEADS * HEAD_DIM, generator=chance).to(dtype)


def both(segments: Sequence[Segment], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, KVCache, KVCache]:
    rows = sum(each.length for each in segments)
    queries, own = inputs(rows, dtype)
    one, all_ = filled(dtype), filled(dtype)
    expected, found = torch.zeros_like(queries), torch.zeros_like(queries)
    tables = RowTables.of(segments, 16, torch.device("cpu"))
    DecodeAttention(one, [LayerSpec(NO_ROPE)] * LAYERS, segments, queries, expected)(1, own)
    BatchedAttention(all_, [LayerSpec(NO_ROPE)] * LAYERS, tables, queries, found)(1, own)
    return expected, found, one, all_


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_rows_of_different_lengths_in_scattered_blocks(dtype: torch.dtype, tolerance: float) -> None:
    expected, found, one, all_ = both(scattered(*((1, length - 1) for length in LENGTHS)), dtype)
    assert (found.float() - expected.float()).abs().max() <= tolerance
    assert torch.equal(one.pool, all_.pool)


def test_rows_are_gathered_in_parts_where_all_would_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = scattered((1, 99), (1, 5), (2, 40), (1, 0))
    expected, _, _, _ = both(segments)
    gathered: list[int] = []
    plain = Tensor.index_select

    def counted(self: Tensor, dim: int, index: Tensor) -> Tensor:
        gathered.append(len(index))
        return plain(self, dim, index)

    monkeypatch.setattr(Tensor, "index_select", counted)
    monkeypatch.setattr(batched, "GATHERED_BYTES", 2 * 7 * filled(torch.float32).blocks[0][0].nbytes)
    _, found, _, _ = both(segments)
    assert gathered[-3:] == [14, 14, 7]  # two rows of seven blocks at a time
    assert (found - expected).abs().max() <= 1e-5


def test_drafts_of_one_sequence_see_each_other_in_order() -> None:
    """Rows behind one another are written before any attends, and each sees those before it alone."""
    expected, found, _, _ = both(scattered((5, 30), (1, 12), (3, 0)))
    assert (found - expected).abs().max() <= 1e-5


def test_what_stands_behind_a_row_is_not_seen_whatever_it_is() -> None:
    (segment,) = scattered((1, 20))
    queries, own = inputs(1, torch.float32)
    clean, poisoned = filled(torch.float32), filled(torch.float32)
    poisoned.pool.fill_(float("nan"))
    for block in segment.blocks[:2]:
        poisoned.blocks[0][block] = clean.blocks[0][block]
    poisoned.blocks[0][segment.blocks[1], 5:] = float("nan")  # positions from 21 on
    found = []
    for cache in (clean, poisoned):
        output = torch.zeros_like(queries)
        tables = RowTables(torch.tensor([20]), torch.tensor([[*segment.blocks[:2], 63]]))
        BatchedAttention(cache, [LayerSpec(NO_ROPE)] * LAYERS, tables, queries, output)(0, own)
        found.append(output)
    assert torch.equal(*found)


@pytest.mark.parametrize("window", [1, 16, 30, 500])
def test_a_window_hides_what_is_older(window: int) -> None:
    segments = scattered((1, 99), (1, 5), (2, 40))
    queries, own = inputs(4, torch.float32)
    cache = filled(torch.float32)
    found = torch.zeros_like(queries)
    tables = RowTables.of(segments, 16, torch.device("cpu"))
    layers = [LayerSpec(NO_ROPE), LayerSpec(NO_ROPE, window, scale=0.5)]
    BatchedAttention(cache, layers, tables, queries, found)(1, own)
    keys, values = (each[0] for each in cache.keys_values[1])  # [kv_heads, slots, head_dim], with the rows' own
    row = 0
    for each in segments:
        for position in range(each.context, each.context + each.length):
            seen = range(max(0, position + 1 - window), position + 1)
            slots = [each.blocks[p // 16] * 16 + p % 16 for p in seen]
            scores = 0.5 * queries[row] @ keys[:, slots].transpose(1, 2)
            expected = scores.softmax(-1) @ values[:, slots]
            assert (found[row] - expected).abs().max() <= 1e-5
            row += 1


def test_slots_follow_the_table() -> None:
    tables = RowTables(torch.tensor([0, 17, 33]), torch.tensor([[4, 9, 9], [7, 2, 2], [1, 3, 8]]))
    assert tables.slots(16).tolist() == [64, 33, 129]
