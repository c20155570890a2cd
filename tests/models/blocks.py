"""Blocks of every GGUF type: values quantised by the gguf package, or valid random blocks where it can only read."""

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType

QUANTISED = (Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.TQ1_0, Q.TQ2_0, Q.MXFP4)
# Where a block has its scales in float16, of those types that the package can't write.
_SCALES = {
    Q.Q2_K: (80, 82),
    Q.Q3_K: (108,),
    Q.Q4_K: (0, 2),
    Q.Q5_K: (0, 2),
    Q.Q6_K: (208,),
    Q.IQ1_S: (0,),
    Q.IQ2_XXS: (0,),
    Q.IQ2_XS: (0,),
    Q.IQ2_S: (0,),
    Q.IQ3_XXS: (0,),
    Q.IQ3_S: (0,),
    Q.IQ4_NL: (0,),
    Q.IQ4_XS: (0,),
    Q.Q8_K: (),
}
RANDOM = (*_SCALES, Q.IQ1_M, Q.NVFP4)
STD = 0.05  # of the values, about


def stored(values: np.ndarray, kind: Q) -> np.ndarray:
    """[rows, bytes of a row] uint8: `values` [rows, columns], or as many others that follow from them."""
    if kind in QUANTISED:
        return gguf.quants.quantize(values, kind)
    chance = np.random.default_rng(values[0, :4].view(np.uint32))
    width, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = chance.integers(0, 256, (values.size // width, size), np.uint8)
    if kind == Q.IQ1_M:  # its scale's four digits are the upper ones of four words
        _put_scales(blocks, 48)
    elif kind == Q.NVFP4:
        blocks[:, :4] = chance.integers(16, 24, (len(blocks), 4))
    offsets = _SCALES.get(kind, ())
    spread = chance.normal(1, 0.15, (len(blocks), 1))
    for factor in (np.float64(1), None) if offsets else ():
        if factor is None:
            factor = STD / gguf.quants.dequantize(blocks, kind).std()
        for offset in offsets:
            blocks[:, offset : offset + 2] = (spread * factor).astype(np.float16).view(np.uint8)
    return blocks.reshape(len(values), -1)


def _put_scales(blocks: np.ndarray, offset: int) -> None:
    words = np.ascontiguousarray(blocks[:, offset : offset + 8]).view(np.uint16)
    scale = int(np.float16(STD / 10).view(np.uint16))
    for place in range(4):
        words[:, place] = words[:, place] & 0x0FFF | (scale >> 4 * place & 15) << 12
    blocks[:, offset : offset + 8] = words.view(np.uint8)
