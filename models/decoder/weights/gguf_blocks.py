"""A GGUF file's matrices in the forms that kernels take.

Q4_0, Q4_1 and Q4_K are int4 in groups of 32 as they are stored. No kernel takes the codes of the other types: they are
dequantised, some rows at a time, and quantised again. The norm of that error, over the matrix's, is below 0.01 in int8
and 0.03 to 0.08 in int4. The latter is as much as a type of 4 bits has lost already, so int4 is for types of less: it
is little beside what those have lost, and int8 would take three times their size.
"""

import logging
from collections import Counter
from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.decoder.weights.quantised import GROUP, Int4Weight, Int8Weight, Weight, concatenated
from models.files.gguf import BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q8_0, BlockType, GGUFFile

log = logging.getLogger(__name__)

Form = type[Int8Weight] | type[Int4Weight]

_ROWS_AT_ONCE = 1024  # of a large matrix: what it takes meanwhile stays in the processor's cache
_AS_STORED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q4_K", "Q8_0")
_TO_INT4 = ("Q2_K", "Q3_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


def requantised_form(kind: BlockType) -> Form | None:
    """What a matrix of a type becomes; None: it is read as it is stored."""
    if kind.name in _AS_STORED:
        return None
    return Int4Weight if kind.name in _TO_INT4 else Int8Weight


class GGUFMatrices:
    """A file's tensors by name: dense, or in those of `forms` that their types have, or come to."""

    def __init__(self, file: GGUFFile, forms: Collection[Form]) -> None:
        """`forms`: that have kernels. Says once what is requantised.

        Raises ModelLoadError where a tensor has a type that can't be read.
        """
        self._file = file
        self._forms = forms
        file.require_readable()
        matrices = [file.block_type(name) for name, info in file.tensors.items() if len(info.shape) == 2]
        requantised = Counter(kind for kind in matrices if requantised_form(kind) in forms)
        if requantised:
            counts = sorted(requantised.items(), key=lambda each: each[0].name)
            log.warning(
                "%s: requantised, as there are no kernels for their types: %s",
                file.path.name,
                ", ".join(f"{count} tensor{'s' * (count > 1)} of {_change(kind)}" for kind, count in counts),
            )

    def read(self, name: str) -> Weight:
        kind = self._file.block_type(name)
        shape = self._file.tensors[name].shape
        if kind in (F32, F16, BF16):
            dtype = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}[kind]
            return _tensor(self._file.blocks(name)).view(dtype).reshape(shape)
        if len(shape) != 2:
            return torch.from_numpy(self._file.dequantised(name))
        if kind in (Q4_0, Q4_1):
            return _int4(self._file.blocks(name), with_minimum=kind is Q4_1)
        if kind is Q4_K:
            return _int4_of_superblocks(self._file.blocks(name))
        if kind is Q8_0 and Int8Weight in self._forms:
            return _int8(self._file.blocks(name))
        form = requantised_form(kind)
        if form is None or form not in self._forms:
            return torch.from_numpy(self._file.dequantised(name))
        pieces: list[Weight] = [
            form.quantise(torch.from_numpy(self._file.dequantised(name, slice(start, start + _ROWS_AT_ONCE))))
            for start in range(0, shape[0], _ROWS_AT_ONCE)
        ]
        return concatenated(pieces)


def _change(kind: BlockType) -> str:
    return f"{kind.name} to {'int4' if requantised_form(kind) is Int4Weight else 'int8'}"


def _tensor(blocks: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(blocks.copy())  # the map is read-only, which torch has no word for


def _float16(raw: Tensor) -> Tensor:
    """[…, 2] bytes -> […, 1] float32"""
    return raw.contiguous().view(torch.float16).float()


def _int4(blocks: NDArray[np.uint8], *, with_minimum: bool) -> Int4Weight:
    """Q4_1: d, m (float16), 16 bytes of codes, w = q·d + m. Q4_0: d, codes, w = (q - 8)·d. Low nibbles are first."""
    size = (Q4_1 if with_minimum else Q4_0).size
    raw = _tensor(blocks).view(blocks.shape[0], -1, size)  # [n, k / 32, size]
    codes = _nibbles(raw[..., size - GROUP // 2 :])
    scale = _float16(raw[..., :2]).squeeze(-1)
    if not with_minimum:
        return Int4Weight(codes.flatten(1), scale, torch.zeros_like(scale))
    minimum = _float16(raw[..., 2:4]).squeeze(-1)
    return Int4Weight(codes.flatten(1), scale, minimum + 8 * scale)


def _int4_of_superblocks(blocks: NDArray[np.uint8]) -> Int4Weight:
    """Q4_K: d, e (float16), 8 scales s and 8 minima m of 6 bits, 128 bytes of codes; w = q·d·s - e·m in groups of 32.

    Of the 12 bytes of scales and minima the first eight have their lower 6 bits for the first four of each, then the
    last four have the lower 4 bits of the others, whose upper 2 are the first eight's.
    """
    raw = _tensor(blocks).view(blocks.shape[0], -1, Q4_K.size)  # [n, k / 256, size]
    scales, minima, others = raw[..., 4:16].reshape(*raw.shape[:2], 3, 4).unbind(-2)
    scales = torch.cat((scales & 63, (others & 15) | (scales >> 2 & 48)), -1)
    minima = torch.cat((minima & 63, (others >> 4) | (minima >> 2 & 48)), -1)
    scale = (_float16(raw[..., :2]) * scales).flatten(1)  # [n, k / 32]
    minimum = (_float16(raw[..., 2:4]) * minima).flatten(1)
    codes = _nibbles(raw[..., 16:].reshape(*raw.shape[:2], 4, GROUP))
    return Int4Weight(codes.flatten(1), scale, 8 * scale - minimum)


def _nibbles(pairs: Tensor) -> Tensor:
    """[…, b] bytes -> […, 2, b] codes, the low halves first"""
    codes = torch.empty((*pairs.shape[:-1], 2, pairs.shape[-1]), dtype=torch.uint8)
    torch.bitwise_and(pairs, 15, out=codes[..., 0, :])
    torch.bitwise_right_shift(pairs, 4, out=codes[..., 1, :])
    return codes


def _int8(blocks: NDArray[np.uint8]) -> Int8Weight:
    """Q8_0: d (float16), 32 codes, w = q·d; requantised from a scale for 32 values to the row's largest."""
    raw = _tensor(blocks).view(blocks.shape[0], -1, Q8_0.size)  # [n, k / 32, size]
    scale = _float16(raw[..., :2]).squeeze(-1)  # [n, k / 32]
    row_scale = scale.abs().amax(1).clamp_(min=1e-8)
    shrink = (scale / row_scale[:, None]).unsqueeze(-1)
    codes = torch.empty((*raw.shape[:2], GROUP), dtype=torch.int8)
    for start in range(0, codes.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        codes[rows] = (raw[rows, :, 2:].view(torch.int8) * shrink[rows]).round_()
    return Int8Weight(codes.flatten(1), row_scale)
