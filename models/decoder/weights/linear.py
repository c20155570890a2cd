"""Linears over dense, int8 and int4 weights, with results that don't depend on how many rows run together.

A matrix product's blocking, and so its rounding, may depend on the number of rows. The weight-only CPU kernels sum each
row in one order whatever the number of rows. oneDNN's bf16 product does not, so decode calls it with `DENSE_ROWS` rows,
always, and prefill with the rows of one tile of one sequence. Float32 products and CUDA's are used as they are.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from models.decoder.weights.quantised import GROUP, Int4Weight, Int8Weight
from models.device import cpu_level, multiplies_bf16

DENSE_ROWS = 16  # the rows of one AMX tile: fewer cost the same


Kernel = Callable[[Tensor], Tensor]  # [rows, k] -> [rows, n]


class Linear(Protocol):
    """y = x · Wᵀ + b. Which kernel runs depends on the kind of forward, never on the load."""

    weight_bytes: int
    has_dense_copy: bool  # beside quantised weights, for prefill

    @property
    def decode(self) -> Kernel: ...

    @property
    def prefill(self) -> Kernel: ...


def packs_bf16() -> bool:
    """Whether oneDNN takes bf16 on this CPU, be it with instructions for it or without."""
    there = bool(torch._C._has_mkldnn) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return there and cpu_level() != "float32"


def copy_dtype() -> torch.dtype:
    """What a dense copy of quantised weights is of, for a CPU: what it multiplies faster."""
    return torch.bfloat16 if packs_bf16() and multiplies_bf16() else torch.float32


def dense_copy(weight: Tensor, bias: Tensor | None) -> "DenseLinear":
    """Of quantised weights, [n, k], for prompts on a CPU."""
    return DenseLinear(weight.to(copy_dtype()), bias, packed=bool(torch._C._has_mkldnn))


class DenseLinear:
    """Weights as they are: float32, or bf16 (packed for oneDNN on a CPU). Float32 ones take bf16 inputs, too."""

    has_dense_copy = False

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, packed: bool = False) -> None:
        """`packed`: for oneDNN, float32 too."""
        self._name = f"dense {str(weight.dtype).removeprefix('torch.')}"
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._dtype = weight.dtype
        self._outputs = weight.shape[0]
        self.weight_bytes = weight.nbytes
        packed = packed or (weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and packs_bf16())
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 64) if packed else weight
        self._packed = packed

    def __str__(self) -> str:
        return self._name

    def prefill(self, x: Tensor) -> Tensor:
        if self._packed:
            wide, weight = x.to(self._dtype), self._weight
            y: Tensor = torch.ops.mkldnn._linear_pointwise.default(wide, weight, self._bias, "none", [], "")
            return y.to(x.dtype)
        return linear(x.to(self._dtype), self._weight, self._bias).to(x.dtype)

    def decode(self, x: Tensor) -> Tensor:
        if not self._packed:
            return self.prefill(x)
        rows = x.shape[0]
        if rows == 0:  # of a chunk of a prompt whose logits nobody wants
            return x.new_empty((0, self._outputs))
        padded = pad(x, (0, 0, 0, -rows % DENSE_ROWS))
        pieces = [self.prefill(padded[start : start + DENSE_ROWS]) for start in range(0, rows, DENSE_ROWS)]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces))[:rows]


class QuantisedLinear:
    """A weight-only kernel, with a dense copy for prefill where there is memory for one."""

    def __init__(self, name: str, kernel: Kernel, num_bytes: int, dense_copy: DenseLinear | None) -> None:
        self._name = name
        self._dense_copy = dense_copy
        self.has_dense_copy = dense_copy is not None
        self.weight_bytes = num_bytes + (dense_copy.weight_bytes if dense_copy else 0)
        self.decode = kernel
        self.prefill = dense_copy.prefill if dense_copy else kernel

    def __str__(self) -> str:
        return f"{self._name}, {self._dense_copy} in prefill" if self._dense_copy else self._name


class Int8Linear(QuantisedLinear):
    """int8 with a scale a row."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None = None, dense_copy: DenseLinear | None = None) -> None:
        codes, scale = weight.codes, weight.scale.to(torch.bfloat16)
        product = torch._weight_int8pack_mm

        def kernel(x: Tensor) -> Tensor:
            return product(x, codes, scale)

        super().__init__("int8", _with_bias(kernel, bias), codes.nbytes + scale.nbytes, dense_copy)


class Int4Linear(QuantisedLinear):
    """int4 in groups of 32."""

    def __init__(self, weight: Int4Weight, bias: Tensor | None = None, dense_copy: DenseLinear | None = None) -> None:
        on_cpu = weight.codes.device.type == "cpu"
        codes = _pack_cpu(weight.codes) if on_cpu else _pack_cuda(weight.codes)
        scales = torch.stack((weight.scale, weight.zero), -1).to(torch.bfloat16)  # [n, k / 32, 2]
        scales = scales.transpose(0, 1).contiguous()  # [k / 32, n, 2]
        product = torch._weight_int4pack_mm_for_cpu if on_cpu else torch._weight_int4pack_mm

        def kernel(x: Tensor) -> Tensor:
            return product(x, codes, GROUP, scales)

        super().__init__("int4", _with_bias(kernel, bias), codes.nbytes + scales.nbytes, dense_copy)


class ReorderedLinear:
    """Takes its inputs in another order than they come in. Each input is the same number there: rows stay as exact."""

    def __init__(self, inner: Linear, order: Tensor) -> None:
        """`order`: [k] int64, of the inputs as `inner` takes them."""
        self._inner = inner
        self._order = order
        self.weight_bytes = inner.weight_bytes + order.nbytes
        self.has_dense_copy = inner.has_dense_copy

    def __str__(self) -> str:
        return f"{self._inner}, inputs reordered"

    def decode(self, x: Tensor) -> Tensor:
        return self._inner.decode(x.index_select(1, self._order))

    def prefill(self, x: Tensor) -> Tensor:
        return self._inner.prefill(x.index_select(1, self._order))


def _with_bias(kernel: Kernel, bias: Tensor | None) -> Kernel:
    return kernel if bias is None else lambda x: kernel(x).add_(bias)


def has_int4_kernel(rows: int, columns: int, device: torch.device) -> bool:
    """Whether an [n, k] = [rows, columns] int4 weight can run as it is."""
    if device.type == "cpu":
        return rows % 16 == 0 and columns % GROUP == 0
    return torch.cuda.get_device_capability(device) >= (8, 0) and rows % 8 == 0 and columns % GROUP == 0


def _pack_cpu(codes: Tensor) -> Tensor:
    return torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)


def _pack_cuda(codes: Tensor) -> Tensor:
    """Two codes a byte, the even column in the high half; then in the tensor cores' order."""
    depth = next(depth for depth in (8, 4, 2) if codes.shape[1] % (16 * depth) == 0)
    return torch._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], depth)
