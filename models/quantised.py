"""Weights in the forms that the weight-only kernels take: int8 with a scale a row, int4 in groups of 32."""

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32  # values of a row that share a scale and a zero point in int4


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """w[n, k] = codes[n, k] · scale[n]"""

    codes: Tensor  # [n, k] int8
    scale: Tensor  # [n] float32

    @staticmethod
    def quantise(weight: Tensor) -> "Int8Weight":
        """Symmetric, one scale a row."""
        weight = weight.float()
        scale = weight.abs().amax(1).clamp_(min=1e-8).div_(127)
        return Int8Weight((weight / scale[:, None]).round_().to(torch.int8), scale)

    def rows(self, order: Tensor) -> "Int8Weight":
        return Int8Weight(self.codes.index_select(0, order), self.scale.index_select(0, order))

    def dense(self) -> Tensor:
        """[n, k] float32"""
        return self.codes * self.scale[:, None]


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """w[n, k] = (codes[n, k] - 8) · scale[n, k / 32] + zero[n, k / 32]"""

    codes: Tensor  # [n, k] uint8, 0 … 15
    scale: Tensor  # [n, k / 32] float32
    zero: Tensor  # [n, k / 32] float32

    @staticmethod
    def quantise(weight: Tensor) -> "Int4Weight":
        """Asymmetric, from the least to the greatest value of each group. `k` is a multiple of 32."""
        groups = weight.float().view(weight.shape[0], -1, GROUP)
        low, high = groups.amin(2), groups.amax(2)
        scale = (high - low).clamp_(min=1e-8).div_(15)
        codes = (groups - low[..., None]).div_(scale[..., None]).round_().clamp_(0, 15).to(torch.uint8)
        return Int4Weight(codes.flatten(1), scale, low + 8 * scale)

    def rows(self, order: Tensor) -> "Int4Weight":
        return Int4Weight(*(each.index_select(0, order) for each in (self.codes, self.scale, self.zero)))

    def dense(self) -> Tensor:
        """[n, k] float32"""
        groups = self.codes.view(*self.scale.shape, GROUP).float()
        return groups.mul_(self.scale[..., None]).add_((self.zero - 8 * self.scale)[..., None]).flatten(1)


Weight = Tensor | Int8Weight | Int4Weight


def dense(weight: Weight) -> Tensor:
    """[n, k], float32 where it was quantised"""
    return weight if isinstance(weight, Tensor) else weight.dense()


def concatenated(weights: "list[Weight]") -> Weight:
    """One weight with the rows of all, in their form where they share one, dense otherwise."""
    if all(isinstance(weight, Int4Weight) for weight in weights):
        parts = [(weight.codes, weight.scale, weight.zero) for weight in weights if isinstance(weight, Int4Weight)]
        return Int4Weight(*(torch.cat(column) for column in zip(*parts, strict=True)))
    if all(isinstance(weight, Int8Weight) for weight in weights):
        pairs = [(weight.codes, weight.scale) for weight in weights if isinstance(weight, Int8Weight)]
        return Int8Weight(*(torch.cat(column) for column in zip(*pairs, strict=True)))
    return torch.cat([dense(weight) for weight in weights]) if len(weights) > 1 else dense(weights[0])
