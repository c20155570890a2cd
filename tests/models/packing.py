"""Packs 4-bit codes as AWQ, GPTQ and compressed-tensors publish them, by their descriptions and a code at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
WORD = 1 << 32


@dataclass(frozen=True)
class Codes:
    """w = (codes - zeros) · scales, by the group of each input."""

    codes: Tensor  # [n, k] int64, 0 … 15
    zeros: Tensor  # [n, groups] int64, 0 … 15
    scales: Tensor  # [n, groups] float16
    groups: Tensor  # [k] int64

    @staticmethod
    def random(n: int, k: int, group: int, *, seed: int = 0, lowest_zero: int = 0, shuffled: bool = False) -> "Codes":
        """`shuffled`: inputs belong to groups in any order, as with GPTQ's desc_act."""
        chance = torch.Generator().manual_seed(seed)
        count = 1 if group == -1 else -(-k // group)
        groups = torch.arange(k) // (k if group == -1 else group)
        if shuffled:
            groups = groups[torch.randperm(k, generator=chance)]
        return Codes(
            torch.randint(0, 16, (n, k), generator=chance),
            torch.randint(lowest_zero, 16 - lowest_zero, (n, count), generator=chance),
            (torch.rand(n, count, generator=chance) * 0.02 + 0.01).half(),
            groups,
        )

    def dense(self) -> Tensor:
        """[n, k] float32, exact."""
        return ((self.codes - self.zeros[:, self.groups]).double() * self.scales.double()[:, self.groups]).float()


def words(values: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[m, n] -> [m, n / 8] int32: eight values of a row a word, value `order[i]` in bits 4i to 4i + 3."""
    packed = [
        [sum(row[first + place] << 4 * i for i, place in enumerate(order)) for first in range(0, len(row), 8)]
        for row in values.tolist()
    ]
    return signed(packed)


def signed(packed: list[list[int]]) -> Tensor:
    return torch.tensor(
        [[word % WORD - WORD * (word % WORD >= WORD // 2) for word in row] for row in packed], dtype=torch.int32
    )


def awq(made: Codes) -> dict[str, Tensor]:
    return {
        "qweight": words(made.codes.t(), AWQ_ORDER),
        "qzeros": words(made.zeros.t(), AWQ_ORDER),
        "scales": made.scales.t().contiguous(),
    }


def gptq(made: Codes, *, version: int = 1) -> dict[str, Tensor]:
    """Version 1 takes one from each zero point, of the whole word: what is below zero borrows from its neighbour."""
    zeros = words(made.zeros.t()).tolist()
    return {
        "qweight": words(made.codes).t().contiguous(),
        "qzeros": signed([[word - 0x11111111 if version == 1 else word for word in row] for row in zeros]),
        "scales": made.scales.t().contiguous(),
        "g_idx": made.groups.int(),
    }


def compressed(made: Codes) -> dict[str, Tensor]:
    """Zero points are left out where they are all 8; groups are told where inputs are not in their order."""
    outputs, inputs = made.codes.shape
    tensors = {
        "weight_packed": words(made.codes),
        "weight_scale": made.scales.bfloat16(),
        "weight_shape": torch.tensor([outputs, inputs]),
    }
    if not (made.zeros == 8).all():
        padded = torch.nn.functional.pad(made.zeros, (0, 0, 0, -outputs % 8))
        tensors["weight_zero_point"] = words(padded.t()).t().contiguous()
    if not torch.equal(made.groups, made.groups.sort().values):
        tensors["weight_g_idx"] = made.groups.int()
    return tensors
