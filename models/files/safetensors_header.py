"""The header of a safetensors file, held against the file's size.

The format: https://github.com/huggingface/safetensors#format. The library that reads the tensors checks the same, but
doesn't say which tensor is wrong.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from models.errors import ModelLoadError
from models.files.fields import Fields

_LENGTH = 8  # bytes in front of the header, which have its length
MOST_BYTES = 16 << 20  # of a header: that of a hundred thousand tensors
MOST_DIMENSIONS = 8
_SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    shape: tuple[int, ...]
    start: int  # behind the header
    end: int


def read_header(path: Path) -> Mapping[str, StoredTensor]:
    """By name. Raises ModelLoadError naming the tensor that is not as it should be."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH), "little")
            if length > min(size - _LENGTH, MOST_BYTES):
                raise ModelLoadError(f"{path} can't be read: a header of {length} bytes in a file of {size}")
            header = json.loads(file.read(length))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} can't be read: its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelLoadError(f"{path} can't be read: its header holds no table")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry) for name, entry in header.items()}
    in_order = sorted(tensors.values(), key=lambda each: (each.start, each.end))
    for one, following in pairwise(in_order):
        if one.end != following.start:
            raise ModelLoadError(f"{path}: between {one.name} and {following.name} bytes overlap, or are left out")
    ends = (in_order[0].start, in_order[-1].end) if in_order else (0, 0)
    if ends != (0, size - _LENGTH - length):
        last = in_order[-1].name if in_order else "no tensor"
        raise ModelLoadError(f"{path} has {size} bytes, where {last} ends at {_LENGTH + length + ends[1]}: incomplete?")
    return tensors


def _tensor(path: Path, name: str, entry: object) -> StoredTensor:
    if not isinstance(entry, Mapping):
        raise ModelLoadError(f"{path}: {name} is no table")
    fields = Fields(entry, f"{path}, tensor {name}")
    dtype = fields.text("dtype")
    shape, offsets = (fields.items(key, int, "integers") or () for key in ("shape", "data_offsets"))
    if dtype not in _SIZES:
        raise fields.refused("dtype", f"one of {', '.join(_SIZES)}")
    if len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise fields.refused("shape", "a tensor's")
    if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1]:
        raise fields.refused("data_offsets", "where it begins and ends")
    start, end = offsets
    nbytes = math.prod(shape) * _SIZES[dtype]
    if end - start != nbytes:
        raise ModelLoadError(f"{path}: {name} has {end - start} bytes, where {dtype} {tuple(shape)} has {nbytes}")
    return StoredTensor(name, tuple(shape), start, end)
