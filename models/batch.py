"""The one shape in which the text pipeline hands rows to a decoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one sequence.

    Its rows stand at positions `context … context + length - 1`; keys and values of the positions before `context` are
    in the cache already, those of the rows themselves are written by the forward. `blocks[i]` holds positions
    `i * block_size … (i + 1) * block_size - 1`.
    """

    length: int
    context: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Rows of one forward, all of one kind.

    `prefill`: prompt rows. Attention runs on aligned query tiles (`Decoder.tile`): `context` of each segment is a
    multiple of the tile, and only a prompt's last chunk may end off a tile's border.
    `decode`: rows whose attention is one call a position: generated tokens, replayed ones, drafts under verification.

    A row's result depends on its own sequence alone, bit for bit on the bf16, int8 and int4 CPU paths.
    """

    kind: Literal["prefill", "decode"]
    ids: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64, or [axes, rows] where the rope has several axes
    segments: Sequence[Segment]
    logit_rows: Tensor | None = None  # [k] int64: rows whose logits are wanted; None: all
    embeds: Sequence[tuple[int, Tensor]] = ()  # (first row, [n, hidden]) replacing the ids' embeddings
