"""Buffers for a few rows on their way through the layers."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from models.decoder.attention.paged import TILE
from models.decoder.config import DecoderConfig
from models.decoder.rope import RopeTable

SMALL = 16  # rows up to which a copy into a buffer is cheaper than making views of a new tensor
KEPT_ROWS = TILE  # larger tiles are rare (a replay), and are not kept
KEPT_TILES = 16  # of one number of rows


class Rotation:
    """Cosines and sines of the rows' positions, by one rope. Values are multiplied by a cosine of one, that is all."""

    def __init__(self, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        heads, head_dim, kv_heads = config.num_heads, config.head_dim, config.num_kv_heads
        total = heads + 2 * kv_heads
        self.cos = torch.ones(rows, total * head_dim, dtype=dtype, device=device)
        self.sin = torch.zeros(rows, 1, head_dim // 2, dtype=dtype, device=device)
        self._cos_heads = self.cos.view(rows, total, head_dim)[:, : heads + kv_heads]

    def enter(self, positions: Tensor, table: RopeTable) -> None:
        """positions: [n] or [axes, n], n ≤ rows"""
        cos, sin = table.rows(positions)
        count = positions.shape[-1]
        if count == self.sin.shape[0]:
            self._cos_heads.copy_(cos)
            self.sin.copy_(sin)
        else:
            self._cos_heads[:count], self.sin[:count] = cos, sin


class Tile:
    """Buffers of up to `rows` rows, and views of them: making a view costs as much as a small operation.

    The residual stream is kept beside its negative. The pair's mean is zero, so LayerNorm over it *is* RMSNorm over one
    half, in one kernel (`rms_norm` on a CPU is six).
    """

    def __init__(self, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        total, rotated = heads + 2 * kv_heads, heads + kv_heads
        zeros = partial(torch.zeros, dtype=dtype, device=device)
        self.rows = rows
        self.hidden_size = config.hidden_size
        self.pair = zeros(rows, 2 * config.hidden_size)
        self.positive, self.negative = self.pair.chunk(2, 1)  # [rows, hidden]
        self._row_shape, self._row_stride = (1, config.hidden_size), (config.hidden_size, 1)
        self._pair_shape = (2 * config.hidden_size,)

        # q, k and v as they are projected, and after the rope.
        self.projected = zeros(rows, total * head_dim)
        self.projected_heads = self.projected.view(rows, total, head_dim)[:, :rotated]
        self.qkv = zeros(rows, total * head_dim)
        qkv_heads = self.qkv.view(rows, total, head_dim)
        self.rotations = [Rotation(config, rows, dtype, device) for _ in config.ropes]
        self.first_halves, self.second_halves = qkv_heads[:, :rotated].chunk(2, 2)
        self.projected_first_halves, self.projected_second_halves = self.projected_heads.chunk(2, 2)
        self.query = qkv_heads[:, :heads].view(rows, kv_heads, config.group, head_dim)
        self.keys_values = self.qkv[:, heads * head_dim :]

        self.attended = zeros(rows, heads * head_dim)
        self.attended_heads = self.attended.view(rows, kv_heads, config.group, head_dim)
        self._gate_up = zeros(rows, 2 * config.intermediate_size) if rows <= SMALL else None
        self._gate, self._up = self._gate_up.chunk(2, 1) if self._gate_up is not None else (self.pair, self.pair)
        self.activated = zeros(rows, config.intermediate_size)

    def enter(self, embedded: Tensor, positions: Tensor, tables: Sequence[RopeTable]) -> None:
        """Start with up to `rows` rows. embedded: [n, hidden]; positions: [n] or [axes, n]; `tables`: of the config's
        ropes."""
        count = embedded.shape[0]
        if count == self.rows:
            self.positive.copy_(embedded)
        else:
            self.positive[:count] = embedded
        for rotation, table in zip(self.rotations, tables, strict=True):
            rotation.enter(positions, table)
        torch.neg(self.positive, out=self.negative)

    def normed(self, weight: Tensor, eps: float) -> Tensor:
        """[rows, hidden]: RMSNorm (https://arxiv.org/abs/1910.07467) of the residual.

        weight: [2 · hidden], the norm's weight twice.
        """
        pair = torch.layer_norm(self.pair, self._pair_shape, weight, None, eps)
        if self.rows == 1:
            return pair.as_strided(self._row_shape, self._row_stride)
        return torch.narrow_copy(pair, 1, 0, self.hidden_size)

    def add(self, branch: Tensor) -> None:
        """Add to the residual. branch: [rows, hidden]"""
        self.positive.add_(branch)
        self.negative.sub_(branch)

    def add_rows(self, first: int, rows: Tensor) -> None:
        """Add to the residual of some rows. rows: [n, hidden], for those from `first` on."""
        self.positive[first : first + rows.shape[0]].add_(rows)
        self.negative[first : first + rows.shape[0]].sub_(rows)

    def rotate(self, rope: int) -> None:
        """Give the projected q and k their positions, by the config's rope of that index."""
        rotation = self.rotations[rope]
        torch.mul(self.projected, rotation.cos, out=self.qkv)
        self.first_halves.addcmul_(self.projected_second_halves, rotation.sin, value=-1)
        self.second_halves.addcmul_(self.projected_first_halves, rotation.sin)

    def halves(self, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, 2 · intermediate] -> gate and up, [rows, intermediate]; valid until the next call."""
        if self._gate_up is None:
            gate, up = gate_up.chunk(2, 1)
            return gate, up
        self._gate_up.copy_(gate_up)
        return self._gate, self._up


class TilePool:
    """Tiles by their number of rows, made once and used again by every forward."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._make = partial(Tile, config, dtype=dtype, device=device)
        self._tiles: dict[int, list[Tile]] = {}
        self._taken: dict[int, int] = {}

    def reset(self) -> None:
        """All tiles are free again."""
        self._taken.clear()

    def take(self, rows: int) -> Tile:
        """A tile of exactly `rows` rows, with whatever an earlier forward left in it."""
        tiles, taken = self._tiles.setdefault(rows, []), self._taken.get(rows, 0)
        self._taken[rows] = taken + 1
        if taken < len(tiles):
            return tiles[taken]
        tile = self._make(rows)
        if rows <= KEPT_ROWS and taken < KEPT_TILES:
            tiles.append(tile)
        return tile
