"""Weight-only linears packed for the native library."""

import torch
from torch import Tensor

from models.linear import DenseLinear, QuantisedLinear
from models.native.library import Engine, LimitsStruct, LinearStruct, library
from models.quantised import GROUP, Int4Weight, Int8Weight


def fits(engine: Engine, weight: Int4Weight | Int8Weight) -> bool:
    """Whether a row is whole groups of the size that the library was built for."""
    return engine.limits.group == GROUP and weight.codes.shape[1] % GROUP == 0


class NativeLinear(QuantisedLinear):
    """int4 in groups of 32, or int8 with a scale a row; activations are quantised to int8 in groups of 32.

    Its kernel gives a row the same result among any number of rows, on any number of threads.
    """

    def __init__(
        self, engine: Engine, weight: Int4Weight | Int8Weight, bias: Tensor | None, dense_copy: DenseLinear | None
    ) -> None:
        bits = 4 if isinstance(weight, Int4Weight) else 8
        outputs, inputs = weight.codes.shape
        self._engine = engine
        # What `struct` points to.
        lanes = engine.limits.lanes
        self._blocks = _packed(weight, engine.limits)
        self._scale = _padded(weight.scale, lanes) if isinstance(weight, Int8Weight) else None
        self._bias = None if bias is None else _padded(bias, lanes)
        self.struct = LinearStruct(
            self._blocks.data_ptr(),
            None if self._scale is None else self._scale.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            outputs,
            inputs,
            bits,
        )
        super().__init__(f"int{bits} (native)", self._product, self._blocks.nbytes, dense_copy)

    def _product(self, x: Tensor) -> Tensor:
        rows = x.float().contiguous()
        y = torch.empty(rows.shape[0], self.struct.outputs)
        self._engine.matmul(self.struct, rows.data_ptr(), rows.shape[0], y.data_ptr())
        return y.to(x.dtype)


def _packed(weight: Int4Weight | Int8Weight, limits: LimitsStruct) -> Tensor:
    """[blocks, groups, bytes] uint8, as linear.h describes it."""
    found = library()
    assert found is not None
    outputs, inputs = weight.codes.shape
    blocks, groups = -(-outputs // limits.lanes), inputs // limits.group
    codes = weight.codes.contiguous()
    if isinstance(weight, Int8Weight):
        packed = torch.zeros(blocks, groups, limits.int8_bytes, dtype=torch.uint8)
        found.pack_int8(codes.data_ptr(), outputs, inputs, packed.data_ptr())
        return packed
    packed = torch.zeros(blocks, groups, limits.int4_bytes, dtype=torch.uint8)
    scale = weight.scale.float().contiguous()
    minimum = (weight.zero.float() - 8 * scale).contiguous()
    found.pack_int4(codes.data_ptr(), scale.data_ptr(), minimum.data_ptr(), outputs, inputs, packed.data_ptr())
    return packed


def _padded(values: Tensor, lanes: int) -> Tensor:
    """[outputs] -> float32, to whole blocks."""
    return torch.nn.functional.pad(values.float(), (0, -values.shape[0] % lanes))
