"""Which decode attention a device gets."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models.decoder.attention import varlen
from models.decoder.attention.batched import BatchedAttention, RowTables
from models.decoder.attention.paged import KVCache
from models.decoder.attention.varlen import VarlenAttention
from models.decoder.batch import BLOCK_SIZE
from models.decoder.layers import LayerSpec

log = logging.getLogger(__name__)


class HeadShape(Protocol):
    """What the choice asks of a model's config."""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def head_dim(self) -> int: ...


RowAttention = Callable[
    [KVCache, Sequence[LayerSpec], RowTables, Tensor, Tensor],
    Callable[[int, Tensor], None],
]


@dataclass(frozen=True, slots=True)
class DecodePath:
    """Attention over all rows of a decode forward at once."""

    name: str  # for people
    block_size: int  # positions a block of the KV cache
    attention: RowAttention
    reads_all: bool  # whether a row costs what the widest table of the batch costs, not what its own length does


BATCHED = DecodePath("gather of KV blocks and one SDPA call", BLOCK_SIZE, BatchedAttention, reads_all=True)
VARLEN = DecodePath(f"varlen_attn over pages of {varlen.PAGE}", varlen.PAGE, VarlenAttention, reads_all=False)


def choose_path(shape: HeadShape, dtype: torch.dtype, device: torch.device) -> DecodePath | None:
    """None: one call a position, which on a CPU gives a row the same bits among any others."""
    if device.type != "cuda":
        return None
    reason = varlen.missing(shape.num_kv_heads, shape.group, shape.head_dim, dtype, device)
    if reason is None:
        return VARLEN
    log.warning("decode attention gathers KV blocks: varlen_attn is not used, %s", reason)
    return BATCHED
