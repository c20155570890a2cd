"""The one shape in which the text pipeline hands rows to a decoder, and what it asks of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from models.decoder.config import DecoderConfig
from models.decoder.logits import Logits

if TYPE_CHECKING:
    import torch

BLOCK_SIZE = 16  # positions a block of the KV cache


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one sequence.

    Its rows stand at positions `context … context + length - 1`; keys and values of the positions before `context` are
    in the cache already, those of the rows themselves are written by the forward. `blocks[i]` holds positions
    `i * block_size … (i + 1) * block_size - 1`. These are places in the sequence, which decide what a row attends to;
    what its queries and keys are turned by is `ForwardBatch.positions`.

    `spans`: positions `[begin, end)` whose rows attend to those behind them in the span, too; ascending, apart from
    each other, in prefill alone. Each lies wholly in the segment's rows, or wholly before them, where it changes
    nothing. For models that the native library has no code for.
    """

    length: int
    context: int
    blocks: Sequence[int]
    spans: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Rows of one forward, all of one kind.

    `prefill`: prompt rows. Attention runs on aligned query tiles (`CausalDecoder.tile`): `context` of each segment is a
    multiple of the tile, and only a prompt's last chunk may end off a tile's border.
    `decode`: rows whose attention is one call a position: generated tokens, replayed ones, drafts under verification.

    A row's result depends on its own sequence alone, bit for bit on the bf16, int8 and int4 CPU paths.

    `positions` are what ropes turn by, below `config.max_position_embeddings` on every axis. In a sequence of text they
    are its places; an image's rows have their own, and what follows goes on from them. A model whose rope has several
    axes (`config.axes`) takes [rows] as equal on all; one of a single axis takes [rows] alone.

    `embeds` are as they enter the first layer: the model's own scale of embeddings isn't applied to them. `deepstack`
    is added to the residuals of its rows, the first of its layers behind the first layer, and so on. Either may be a
    part of an image's rows, where a chunk begins or ends inside of it. Both are in ascending order.
    """

    kind: Literal["prefill", "decode"]
    ids: NDArray[np.int64]  # [rows]
    positions: NDArray[np.int64]  # [rows], or [axes, rows] where the rope has several axes
    segments: Sequence[Segment]
    logit_rows: NDArray[np.int64] | None = None  # [k], ascending: rows whose logits are wanted; None: all
    embeds: Sequence[tuple[int, NDArray[np.float32]]] = ()  # (first row, [n, hidden]) replacing the ids' embeddings
    deepstack: Sequence[tuple[int, NDArray[np.float32]]] = ()  # (first row, [layers, n, hidden])


class Cache(Protocol):
    """A pool of KV blocks."""

    @property
    def block_size(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def bytes_per_block(self) -> int: ...


class CausalDecoder(Protocol):
    """A loaded decoder-only transformer. Not reentrant: one thread owns it."""

    @property
    def config(self) -> DecoderConfig: ...

    @property
    def tile(self) -> int:
        """Positions: chunk borders and prefix reuse fall on multiples of it."""
        ...

    @property
    def gpu(self) -> "torch.device | None":
        """None where it runs on the CPU."""
        ...

    @property
    def captures(self) -> bool:
        """Whether its decode forwards may be captured as graphs."""
        ...

    def new_cache(self, num_blocks: int) -> Any:
        """An empty `Cache` of its own kind. The caller hands out its blocks."""
        ...

    def forward(self, batch: ForwardBatch, cache: Any) -> Logits:
        """[k, vocab] float32: the logits of `batch.logit_rows`, of all rows where that is None."""
        ...

    def details(self) -> dict[str, str]:
        """For people: what was loaded and how it runs."""
        ...
