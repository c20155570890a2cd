"""GGUF files: metadata and tensors by name, read from a memory map. Free of torch.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelLoadError

MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True, slots=True)
class BlockType:
    """A ggml tensor type that is read here: `block` values in `size` bytes."""

    name: str
    block: int
    size: int


# Types beyond these are dequantised by the gguf package, which also knows their sizes.
F32 = BlockType("F32", 1, 4)
F16 = BlockType("F16", 1, 2)
BF16 = BlockType("BF16", 1, 2)
Q4_0 = BlockType("Q4_0", 32, 18)
Q4_1 = BlockType("Q4_1", 32, 20)
Q8_0 = BlockType("Q8_0", 32, 34)
Q4_K = BlockType("Q4_K", 256, 144)
_TYPES = {0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 8: Q8_0, 12: Q4_K, 30: BF16}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # as torch has it: the last dimension is contiguous
    type_id: int
    offset: int  # from the start of the tensor data


class _Cursor:
    """Reads typed values in file order."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def unpack(self, form: struct.Struct) -> Any:
        value = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def string(self) -> str:
        length = self.unpack(_U64)
        start, self.at = self.at, self.at + length
        return self.data[start : self.at].decode("utf-8", errors="replace")

    def strings(self, count: int) -> list[str]:
        """A vocabulary has a hundred thousand: a tight loop."""
        data, at, unpack = self.data, self.at, _U64.unpack_from
        found: list[bytes] = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0]
            found.append(data[start:at])
        self.at = at
        return [each.decode("utf-8", "replace") for each in found]

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.unpack(_SCALARS[kind])
        kind, length = self.unpack(_U32), self.unpack(_U64)
        if kind == _STRING:
            return self.strings(length)
        if kind == _ARRAY:
            return [self.value(kind) for _ in range(length)]
        values = struct.unpack_from(f"<{length}{_SCALARS[kind].format[1:]}", self.data, self.at)
        self.at += length * _SCALARS[kind].size
        return list(values)


class GGUFFile:
    """One open GGUF file. Tensor bytes are views of the map, valid while the file object lives."""

    def __init__(self, path: Path) -> None:
        """Raises ModelLoadError where the file is not a readable GGUF file."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.metadata: Mapping[str, Any] = {}
            self.tensors: Mapping[str, TensorInfo] = {}
            self._read_header()
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise ModelLoadError(f"{path} is not a readable GGUF file: {error}") from error

    def _read_header(self) -> None:
        cursor = _Cursor(self._map)
        num_tensors, metadata = _open_header(cursor)
        self.metadata = dict(metadata)
        infos = [_read_info(cursor) for _ in range(num_tensors)]
        self.tensors = {info.name: info for info in infos}
        alignment = self.metadata.get("general.alignment", 32)
        self._data_start = -(-cursor.at // alignment) * alignment

    def block_type(self, name: str) -> BlockType:
        type_id = self.tensors[name].type_id
        if type_id in _TYPES:
            return _TYPES[type_id]
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            kind = GGMLQuantizationType(type_id)
        except ValueError as error:
            raise ModelLoadError(f"tensor {name} has the unknown GGUF type {type_id}") from error
        return BlockType(kind.name, *GGML_QUANT_SIZES[kind])

    def require_readable(self) -> None:
        """Raises ModelLoadError where a tensor has a type that the gguf package can't dequantise either."""
        for type_id, name in {info.type_id: name for name, info in self.tensors.items()}.items():
            if type_id not in _TYPES:
                _dequantised(np.zeros((1, self.block_type(name).size), np.uint8), type_id, name)

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """[rows, bytes of a row]: the stored blocks of a tensor, without a copy."""
        info, kind = self.tensors[name], self.block_type(name)
        *leading, columns = info.shape
        width = columns // kind.block * kind.size
        rows = int(np.prod(leading, dtype=np.int64))
        start = self._data_start + info.offset
        if start + rows * width > len(self._map):
            raise ModelLoadError(f"{self.path} ends inside tensor {name}: an incomplete download?")
        return np.frombuffer(self._map, np.uint8, rows * width, start).reshape(rows, width)

    def dequantised(self, name: str, rows: slice = slice(None)) -> NDArray[np.float32]:
        """The tensor in float32, by the gguf package's own rules; of a matrix those of its `rows`."""
        info = self.tensors[name]
        return _dequantised(self.blocks(name)[rows], info.type_id, name).reshape(-1, *info.shape[1:])


def _dequantised(blocks: NDArray[np.uint8], type_id: int, name: str) -> NDArray[np.float32]:
    """`name`: of the tensor, for people."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(type_id)
    try:
        return np.asarray(dequantize(blocks, kind), np.float32)
    except NotImplementedError as error:
        raise ModelLoadError(f"tensor {name} has the GGUF type {kind.name}, which can't be read here") from error


def _open_header(cursor: _Cursor) -> tuple[int, Iterator[tuple[str, Any]]]:
    """(number of tensors, metadata in file order)."""
    magic, version = cursor.data[:4], 0
    cursor.at = 4
    if magic == MAGIC:
        version = cursor.unpack(_U32)
    if version not in (2, 3):
        raise ValueError(f"magic {magic!r}, version {version}")
    num_tensors, num_pairs = cursor.unpack(_U64), cursor.unpack(_U64)

    def pairs() -> Iterator[tuple[str, Any]]:
        for _ in range(num_pairs):
            key = cursor.string()
            yield key, cursor.value(cursor.unpack(_U32))

    return num_tensors, pairs()


def _read_info(cursor: _Cursor) -> TensorInfo:
    name = cursor.string()
    shape = tuple(cursor.unpack(_U64) for _ in range(cursor.unpack(_U32)))
    return TensorInfo(name, shape[::-1], cursor.unpack(_U32), cursor.unpack(_U64))


def read_architecture(path: Path) -> str:
    """`general.architecture`, reading no more of the file than it takes."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _, metadata = _open_header(_Cursor(data))
            return next(str(value) for key, value in metadata if key == "general.architecture")
    except (OSError, ValueError, KeyError, struct.error, StopIteration) as error:
        raise ModelLoadError(f"{path} is not a readable GGUF file: {error!r}") from error
