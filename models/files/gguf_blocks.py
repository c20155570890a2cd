"""The blocks of GGUF's types whose codes are used as they are stored: codes with a scale, and of some a minimum, for 32
values.

The types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Scales are read apart from codes, as what they say
of a matrix takes a tenth of the time.
"""

import numpy as np
from numpy.typing import NDArray

from models.files.gguf import Q4_1, Q4_K, Q8_0, BlockType

GROUP = 32  # values of a row that share a scale and a minimum in all of them

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def scales(rows: Bytes, kind: BlockType) -> tuple[Floats, Floats | None]:
    """[n, bytes of a row] -> scales s and minima m, [n, k / 32] each; a value is code · s + m, or code · s without m.

    Q8_0 begins with s, Q4_1 with s and m, all in float16; Q4_0's codes count from -8.
    """
    raw = rows.reshape(len(rows), -1, kind.size)
    with np.errstate(invalid="ignore"):  # of what is no number, which is for the caller to refuse
        if kind is Q4_K:
            return _scales_of_superblocks(raw)
        scale = _halves(raw, 0)
        if kind is Q8_0:
            return scale, None
        return scale, _halves(raw, 2) if kind is Q4_1 else -8 * scale


def codes(rows: Bytes, kind: BlockType) -> Bytes | NDArray[np.int8]:
    """[n, bytes of a row] -> [n, k]: int8 of Q8_0, 0 … 15 of the others."""
    raw = rows.reshape(len(rows), -1, kind.size)
    if kind is Q8_0:
        return raw[..., 2:].view(np.int8).reshape(len(rows), -1)
    pairs = raw[..., -kind.block // 2 :]
    return _nibbles(pairs.reshape(*pairs.shape[:-1], -1, min(GROUP, kind.block // 2))).reshape(len(rows), -1)


def expanded(rows: Bytes, kind: BlockType) -> Floats:
    """[n, bytes of a row] -> [n, k], the values."""
    scale, minimum = scales(rows, kind)
    groups = codes(rows, kind).reshape(*scale.shape, GROUP)
    with np.errstate(invalid="ignore"):
        values: Floats = groups * scale[..., None]
        if minimum is not None:
            values += minimum[..., None]
    return values.reshape(len(rows), -1)


def _scales_of_superblocks(raw: Bytes) -> tuple[Floats, Floats]:
    """Q4_K: d, e (float16), 8 scales s and 8 minima m of 6 bits, 128 bytes of codes; w = q·d·s - e·m in groups of 32.

    Of the 12 bytes of scales and minima the first eight have their lower 6 bits for the first four of each, then the
    last four have the lower 4 bits of the others, whose upper 2 are the first eight's.
    """
    six = raw[..., 4:16].reshape(*raw.shape[:2], 3, 4)
    scale, minimum, others = six[..., 0, :], six[..., 1, :], six[..., 2, :]
    scale = np.concatenate((scale & 63, (others & 15) | (scale >> 2 & 48)), -1)
    minimum = np.concatenate((minimum & 63, (others >> 4) | (minimum >> 2 & 48)), -1)
    all_scales, all_minima = _halves(raw, 0)[..., None] * scale, -(_halves(raw, 2)[..., None] * minimum)
    return all_scales.reshape(len(raw), -1), all_minima.reshape(len(raw), -1)


def _halves(raw: Bytes, at: int) -> Floats:
    """[…, bytes of a block] -> […], the float16 at byte `at` of each."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(pairs: Bytes) -> Bytes:
    """[…, b] bytes -> […, 2, b] codes, the low halves first"""
    found = np.empty((*pairs.shape[:-1], 2, pairs.shape[-1]), np.uint8)
    np.bitwise_and(pairs, 15, out=found[..., 0, :])
    np.right_shift(pairs, 4, out=found[..., 1, :])
    return found
