"""Decode attention by torch's variable-length kernel over a paged cache, without a gather.

FlashAttention-2 is what `torch.nn.attention.varlen` runs where nothing else was activated: half precision, heads of up
to 256, compute capability 8.0 and pages of a multiple of 256 positions.
"""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor

from models.decoder.attention.batched import BatchedAttention, RowTables
from models.decoder.attention.paged import KVCache
from models.decoder.frequencies import NO_ROPE
from models.decoder.layers import LayerSpec

PAGE = 256  # positions a block
# Lengths of the probe's rows: around the borders of a page and in one of several.
PROBED = (1, 2, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 5)
TOLERANCE = 0.03  # of bf16 averages of values of about 1


class VarlenAttention:
    """One call a layer; every row is a sequence with one query. Takes what `BatchedAttention` takes."""

    def __init__(
        self, cache: KVCache, layers: Sequence[LayerSpec], tables: RowTables, queries: Tensor, outputs: Tensor
    ) -> None:
        rows, width = tables.blocks.shape
        self._cache = cache
        self._layers = layers
        self._queries, self._outputs = queries.flatten(1, 2), outputs.flatten(1, 2)  # [rows, heads, head_dim]
        self._slots = tables.slots(cache.block_size)
        self._blocks = tables.blocks.int()
        self._lengths = (tables.positions + 1).int()
        self._capacity = width * cache.block_size
        counts = torch.arange(rows + 1, dtype=torch.int32, device=queries.device)
        self._query_starts, self._key_starts = counts, counts * self._capacity

    def __call__(self, layer: int, keys_values: Tensor) -> None:
        """`keys_values`: [rows, 2 · kv_heads · head_dim], the rows' own, written to the cache before attending."""
        from torch.nn.attention.varlen import varlen_attn

        self._cache.rows[layer].index_copy_(0, self._slots, keys_values)
        keys, values = self._cache.blocks[layer].unbind(2)  # [blocks, block_size, kv_heads, head_dim]
        spec = self._layers[layer]
        out = varlen_attn(
            self._queries,
            keys,
            values,
            self._query_starts,
            self._key_starts,
            1,
            self._capacity,
            scale=spec.scale,
            window_size=(-1, -1) if spec.window is None else (spec.window - 1, 0),
            enable_gqa=True,
            seqused_k=self._lengths,
            block_table=self._blocks,
            num_splits=1,  # a row's result then doesn't depend on the longest row beside it
        )
        assert isinstance(out, Tensor)  # a pair where more was asked for
        self._outputs.copy_(out)


def missing(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernel can't be used for such heads here; None: it was tried, and gives what `BatchedAttention` gives."""
    if device.type != "cuda":
        return "there is no CUDA device"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"it takes no {str(dtype).removeprefix('torch.')}"
    if head_dim > 256 or head_dim % 8:
        return f"it takes no heads of {head_dim}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return "this torch has no torch.nn.attention.varlen"
    lacking = {"block_table", "seqused_k", "num_splits", "enable_gqa"} - set(inspect.signature(varlen_attn).parameters)
    if lacking:
        return f"this torch's varlen_attn lacks {', '.join(sorted(lacking))}"
    try:
        error = probe(kv_heads, group, head_dim, dtype, device)
    except (RuntimeError, TypeError, ValueError) as caught:
        return f"its probe failed: {str(caught).splitlines()[0]}"
    return None if error <= TOLERANCE else f"its probe differs by {error:.3g} from the reference"


@torch.inference_mode()
def probe(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> float:
    """The largest difference from `BatchedAttention` over rows of several lengths, with a window and without.

    Slots behind a row's length hold NaN, as they may after a request that broke: they must not be seen.
    Raises RuntimeError where the kernel refuses.
    """
    width = -(-max(PROBED) // PAGE)
    rows = len(PROBED)
    layers = (LayerSpec(NO_ROPE), LayerSpec(NO_ROPE, window=PAGE // 2 + 3))
    cache = KVCache(len(layers), rows * width, kv_heads, head_dim, dtype, device, PAGE)
    chance = torch.Generator(device).manual_seed(0)
    cache.pool.copy_(torch.randn(cache.pool.shape, generator=chance, device=device))
    lengths = torch.tensor(PROBED, device=device)
    blocks = torch.randperm(rows * width, generator=chance, device=device).view(rows, width)
    for row, length in enumerate(PROBED):
        whole = (blocks[row][:, None] * PAGE + torch.arange(PAGE, device=device)).flatten()
        cache.pool[:, whole[length:]] = float("nan")
    tables = RowTables(lengths - 1, blocks)
    queries = torch.randn((rows, kv_heads, group, head_dim), generator=chance, device=device).to(dtype)
    own = torch.randn((rows, 2 * kv_heads * head_dim), generator=chance, device=device).to(dtype)
    worst = 0.0
    for layer in range(len(layers)):
        found, wanted = torch.empty_like(queries), torch.empty_like(queries)
        VarlenAttention(cache, layers, tables, queries, found)(layer, own)
        BatchedAttention(cache, layers, tables, queries, wanted)(layer, own)
        difference = (found.float() - wanted.float()).abs().max().item()
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst
