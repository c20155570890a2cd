"""Weight-only linears as linear.h lays them out."""

import numpy as np
from numpy.typing import NDArray

from models.decoder.native.library import LimitsStruct, LinearStruct, library

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class PackedLinear:
    """y = x · Wᵀ + b, int4 in groups of 32 inputs or int8 with a scale an output. Owns what `struct` points to."""

    def __init__(
        self,
        limits: LimitsStruct,
        blocks: Bytes,
        outputs: int,
        inputs: int,
        *,
        scale: Floats | None = None,
        bias: Floats | None = None,
    ) -> None:
        """`blocks`: [blocks of outputs, groups, bytes]. `scale`: [outputs], of int8; None: int4. `bias`: [outputs]"""
        self.bits = 4 if scale is None else 8
        self.nbytes = blocks.nbytes
        whole = len(blocks) * limits.lanes
        self._kept = (blocks, *(None if each is None else _padded(each, whole) for each in (scale, bias)))
        self.struct = LinearStruct(*map(_address, self._kept), outputs, inputs, self.bits)


def pack_int4(
    limits: LimitsStruct, codes: Bytes, scale: Floats, minimum: Floats, bias: Floats | None = None
) -> PackedLinear:
    """w = code · scale + minimum. codes: [outputs, inputs], 0 … 15; scale, minimum: [outputs, inputs / 32]"""
    found = library()
    assert found is not None
    outputs, inputs = codes.shape
    blocks = _zeros(limits, outputs, inputs, limits.int4_bytes)
    arrays = [np.ascontiguousarray(each) for each in (codes, scale, minimum)]
    found.pack_int4(*map(_address, arrays), outputs, inputs, _address(blocks))
    return PackedLinear(limits, blocks, outputs, inputs, bias=bias)


def pack_int8(limits: LimitsStruct, codes: NDArray[np.int8], scale: Floats, bias: Floats | None = None) -> PackedLinear:
    """w = code · scale. codes: [outputs, inputs]; scale: [outputs]"""
    found = library()
    assert found is not None
    outputs, inputs = codes.shape
    blocks = _zeros(limits, outputs, inputs, limits.int8_bytes)
    codes = np.ascontiguousarray(codes)
    found.pack_int8(_address(codes), outputs, inputs, _address(blocks))
    return PackedLinear(limits, blocks, outputs, inputs, scale=scale, bias=bias)


def pack_q4(
    limits: LimitsStruct, rows: Bytes, inputs: int, bias: Floats | None, *, minima: bool
) -> PackedLinear | None:
    """GGUF's Q4_1 (`minima`) or Q4_0. rows: [outputs, bytes of a row]. None where a scale or minimum is not finite."""
    found = library()
    assert found is not None
    blocks = _zeros(limits, len(rows), inputs, limits.int4_bytes)
    rows = np.ascontiguousarray(rows)
    if not found.repack_q4(_address(rows), minima, len(rows), inputs, _address(blocks)):
        return None
    return PackedLinear(limits, blocks, len(rows), inputs, bias=bias)


def pack_q8(limits: LimitsStruct, rows: Bytes, inputs: int, bias: Floats | None) -> PackedLinear | None:
    """GGUF's Q8_0, with one scale a row. rows: [outputs, bytes of a row]. None where a scale is not finite."""
    found = library()
    assert found is not None
    blocks = _zeros(limits, len(rows), inputs, limits.int8_bytes)
    rows, scale = np.ascontiguousarray(rows), np.empty(len(rows), np.float32)
    if not found.repack_q8(_address(rows), len(rows), inputs, _address(scale), _address(blocks)):
        return None
    return PackedLinear(limits, blocks, len(rows), inputs, scale=scale, bias=bias)


def _zeros(limits: LimitsStruct, outputs: int, inputs: int, group_bytes: int) -> Bytes:
    return np.zeros((-(-outputs // limits.lanes), inputs // limits.group, group_bytes), np.uint8)


def _padded(values: Floats, length: int) -> Floats:
    return np.pad(values, (0, length - len(values)))


def _address(array: NDArray[np.generic] | None) -> int | None:
    return None if array is None else array.ctypes.data
