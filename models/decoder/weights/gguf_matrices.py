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

from models.decoder.weights.quantised import Int4Weight, Int8Weight, Weight, concatenated
from models.files.gguf import BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q8_0, BlockType, GGUFFile
from models.files.gguf_blocks import GROUP, codes, scales

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
        if kind in (Q4_0, Q4_1, Q4_K):
            return _int4(self._file.blocks(name), kind)
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


def _int4(rows: NDArray[np.uint8], kind: BlockType) -> Int4Weight:
    scale, minimum = scales(rows, kind)
    assert minimum is not None
    held = torch.from_numpy(scale)
    return Int4Weight(torch.from_numpy(codes(rows, kind)), held, torch.from_numpy(minimum) + 8 * held)


def _int8(rows: NDArray[np.uint8]) -> Int8Weight:
    """Q8_0, requantised from a scale for 32 values to the row's largest."""
    scale = torch.from_numpy(scales(rows, Q8_0)[0])  # [n, k / 32]
    row_scale = scale.abs().amax(1).clamp_(min=1e-8)
    shrink = (scale / row_scale[:, None]).unsqueeze(-1)
    stored = torch.from_numpy(codes(rows, Q8_0)).view(*scale.shape, GROUP)
    rounded = torch.empty_like(stored)
    for start in range(0, stored.shape[0], _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        rounded[part] = (stored[part] * shrink[part]).round_()
    return Int8Weight(rounded.flatten(1), row_scale)
