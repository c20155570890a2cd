"""Linears over dense, int8 and int4 weights."""

from typing import Protocol

import torch
from torch import Tensor


class Linear(Protocol):
    """y = x · Wᵀ + b. `decode` and `prefill` may run different kernels; which one runs never depends on the load."""

    weight_bytes: int

    def decode(self, x: Tensor) -> Tensor:
        """[rows, k] -> [rows, n]"""
        ...

    def prefill(self, x: Tensor) -> Tensor:
        """[rows, k] -> [rows, n]"""
        ...


class DenseLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.weight_bytes = weight.nbytes

    def decode(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)

    prefill = decode
