"""Linears of torch's decoder that run through the native library."""

from functools import partial

import torch
from torch import Tensor

from models.decoder.native.library import Engine
from models.decoder.native.packing import Floats, PackedLinear, pack_int4, pack_int8
from models.decoder.weights.linear import DenseLinear, QuantisedLinear
from models.decoder.weights.quantised import GROUP, Int4Weight, Int8Weight


def fits(engine: Engine, weight: Int4Weight | Int8Weight) -> bool:
    """Whether a row is whole groups of the size that the library was built for."""
    return engine.limits.group == GROUP and weight.codes.shape[1] % GROUP == 0


class NativeLinear(QuantisedLinear):
    """int4 in groups of 32, or int8 with a scale a row; activations are quantised to int8 in groups of 32, those of
    prompts rounded to bfloat16 where there is a matrix unit for that.

    Its kernels give a row the same result among any number of rows, on any number of threads.
    """

    def __init__(
        self, engine: Engine, weight: Int4Weight | Int8Weight, bias: Tensor | None, dense_copy: DenseLinear | None
    ) -> None:
        self._engine = engine
        self.packed = _packed(engine, weight, None if bias is None else floats(bias))
        decode, prefill = partial(self._product, prompt=False), partial(self._product, prompt=True)
        super().__init__(f"int{self.packed.bits} (native)", decode, self.packed.nbytes, dense_copy)
        if dense_copy is None:
            self.prefill = prefill

    def _product(self, x: Tensor, *, prompt: bool) -> Tensor:
        rows = x.float().contiguous()
        y = torch.empty(rows.shape[0], self.packed.struct.outputs)
        self._engine.matmul(self.packed.struct, rows.data_ptr(), rows.shape[0], y.data_ptr(), prompt=prompt)
        return y.to(x.dtype)


def _packed(engine: Engine, weight: Int4Weight | Int8Weight, bias: Floats | None) -> PackedLinear:
    codes, scale = weight.codes.numpy(), floats(weight.scale)
    if isinstance(weight, Int8Weight):
        return pack_int8(engine.limits, codes, scale, bias)
    return pack_int4(engine.limits, codes, scale, floats(weight.zero.float() - 8 * weight.scale.float()), bias)


def floats(values: Tensor) -> Floats:
    """In float32, as the library takes them."""
    found: Floats = values.float().numpy()
    return found
