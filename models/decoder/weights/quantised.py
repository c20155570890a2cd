"""Weights in the forms that the weight-only kernels take: int8 with a scale a row, int4 in groups of 32."""

from dataclasses import dataclass, replace

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
    """w[n, order[k]] = (codes[n, k] - 8) · scale[n, k / 32] + zero[n, k / 32]"""

    codes: Tensor  # [n, k] uint8, 0 … 15
    scale: Tensor  # [n, k / 32] float32
    zero: Tensor  # [n, k / 32] float32
    order: Tensor | None = None  # [k] int64, the input of each column; None: inputs in their own order

    @staticmethod
    def quantise(weight: Tensor) -> "Int4Weight":
        """Asymmetric, from the least to the greatest value of each group. `k` is a multiple of 32."""
        groups = weight.float().view(weight.shape[0], -1, GROUP)
        low, high = groups.amin(2), groups.amax(2)
        scale = (high - low).clamp_(min=1e-8).div_(15)
        codes = (groups - low[..., None]).div_(scale[..., None]).round_().clamp_(0, 15).to(torch.uint8)
        return Int4Weight(codes.flatten(1), scale, low + 8 * scale)

    def rows(self, order: Tensor) -> "Int4Weight":
        codes, scale, zero = (each.index_select(0, order) for each in (self.codes, self.scale, self.zero))
        return Int4Weight(codes, scale, zero, self.order)

    def to(self, device: torch.device) -> "Int4Weight":
        order = None if self.order is None else self.order.to(device)
        return Int4Weight(self.codes.to(device), self.scale.to(device), self.zero.to(device), order)

    def columns_as_stored(self) -> "Int4Weight":
        """The same without `order`, for inputs that are put in it."""
        return replace(self, order=None)

    def dense(self) -> Tensor:
        """[n, k] float32"""
        groups = self.codes.view(*self.scale.shape, GROUP).float()
        found = groups.mul_(self.scale[..., None]).add_((self.zero - 8 * self.scale)[..., None]).flatten(1)
        return found if self.order is None else found[:, self.order.argsort()]


Weight = Tensor | Int8Weight | Int4Weight


def dense(weight: Weight) -> Tensor:
    """[n, k], float32 where it was quantised"""
    return weight if isinstance(weight, Tensor) else weight.dense()


def concatenated(weights: "list[Weight]") -> Weight:
    """One weight with the rows of all, in their form where they share one, dense otherwise."""
    int4 = [weight for weight in weights if isinstance(weight, Int4Weight)]
    if len(int4) == len(weights) and all(_same(weight.order, int4[0].order) for weight in int4):
        codes, scale, zero = zip(*((weight.codes, weight.scale, weight.zero) for weight in int4), strict=True)
        return Int4Weight(torch.cat(codes), torch.cat(scale), torch.cat(zero), int4[0].order)
    int8 = [weight for weight in weights if isinstance(weight, Int8Weight)]
    if len(int8) == len(weights):
        return Int8Weight(torch.cat([weight.codes for weight in int8]), torch.cat([weight.scale for weight in int8]))
    return torch.cat([dense(weight) for weight in weights]) if len(weights) > 1 else dense(weights[0])


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
