"""GGUF files: metadata and tensors by name, read from a memory map.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A file may be cut short, or hostile: whatever its
header says is held against the bytes that are there before anything is made of it. Arrays of the metadata stay in the
map until they are read.
"""

import math
import mmap
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelLoadError

T = TypeVar("T")

MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_BOOL = 7

ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT = 32
MOST_ALIGNMENT = 1 << 16
MOST_DIMENSIONS = 4
MOST_ENTRIES = 1 << 16  # pairs of metadata, and tensors: some forty times what the largest models have


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
    """Of a tensor that lies in the file as a whole."""

    name: str
    shape: tuple[int, ...]  # as torch has it: the last dimension is contiguous
    type_id: int
    kind: BlockType
    start: int  # in the file
    nbytes: int


class Strings(Sequence[str]):
    """An array of texts, decoded as they are asked for. What is no UTF-8 becomes U+FFFD."""

    def __init__(self, data: mmap.mmap, starts: "array[int]", end: int) -> None:
        """`starts`: of each text, behind its length; `end`: of the last one."""
        self._data = data
        self._starts = starts
        self._end = end

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        following = index + 1
        end = self._starts[following] - _U64.size if following < len(self) else self._end
        return self._data[self._starts[index] : end].decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        """A vocabulary has a hundred thousand: a tight loop."""
        data, starts = self._data, iter(self._starts)
        start = next(starts, None)
        if start is None:
            return
        for following in starts:
            yield data[start : following - 8].decode("utf-8", "replace")
            start = following
        yield data[start : self._end].decode("utf-8", "replace")


class _Cursor:
    """Reads typed values in file order. Raises ValueError where the file is too short for what it says."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def unpack(self, form: struct.Struct) -> Any:
        self.require(form.size, 1, "the header")
        value = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def require(self, count: int, size: int, what: str) -> None:
        """That `count` times `size` bytes follow."""
        left = len(self.data) - self.at
        if count * size > left:
            raise ValueError(f"{what} takes {count * size} bytes, {left} are left: an incomplete download?")

    def string(self, what: str) -> str:
        length = self.unpack(_U64)
        self.require(length, 1, what)
        start, self.at = self.at, self.at + length
        return self.data[start : self.at].decode("utf-8", errors="replace")

    def strings(self, count: int, what: str) -> Strings:
        data, at, unpack = self.data, self.at, _U64.unpack_from
        starts, end = array("Q"), len(data)
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(data, at)[0]
                starts.append(start)
        except (struct.error, OverflowError):  # a length beyond all files
            at = end + 1
        if at > end:
            raise ValueError(f"{what} ends beyond the file: an incomplete download?")
        self.at = at
        return Strings(data, starts, at)

    def value(self, key: str) -> Any:
        kind = self.unpack(_U32)
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self._array(key)
        return self.unpack(_scalar(kind, key))

    def _array(self, key: str) -> "Strings | array[Any]":
        kind, count = self.unpack(_U32), self.unpack(_U64)
        if kind == _STRING:
            self.require(count, _U64.size, key)
            return self.strings(count, key)
        if kind == _ARRAY:
            raise ValueError(f"{key} is an array of arrays, which is not read")
        form = _scalar(kind, key)
        self.require(count, form.size, key)
        start, self.at = self.at, self.at + count * form.size
        values = array("B" if kind == _BOOL else form.format[-1])
        values.frombytes(self.data[start : self.at])
        return values


def _scalar(kind: int, key: str) -> struct.Struct:
    form = _SCALARS.get(kind)
    if form is None:
        raise ValueError(f"{key} has the unknown type {kind}")
    return form


class GGUFFile:
    """One open GGUF file. Tensor bytes are views of the map, valid while the file object lives."""

    def __init__(self, path: Path) -> None:
        """Raises ModelLoadError where the file is not a readable GGUF file, or a tensor does not lie in it as a whole,
        beside the others."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.metadata: Mapping[str, Any] = {}
            self.tensors: Mapping[str, TensorInfo] = {}
            self._read_header()
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path} is not a readable GGUF file: {error}") from error

    def _read_header(self) -> None:
        cursor = _Cursor(self._map)
        num_tensors, metadata = _open_header(cursor)
        self.metadata = _unique(metadata, "the key")
        stored = _unique(((info.name, info) for info in _tensor_infos(cursor, num_tensors)), "the tensor")
        alignment = self.metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        known = isinstance(alignment, int) and 1 <= alignment <= MOST_ALIGNMENT and alignment & (alignment - 1) == 0
        if not known:
            raise ValueError(f"{ALIGNMENT} is {alignment!r}, not a power of two up to {MOST_ALIGNMENT}")
        base, end = -(-cursor.at // alignment) * alignment, len(self._map)
        tensors = {name: _placed(info, base, alignment, end) for name, info in stored.items()}
        in_order = sorted(tensors.values(), key=lambda each: each.start)
        for one, following in pairwise(in_order):
            if one.start + one.nbytes > following.start:
                raise ValueError(f"the tensors {one.name} and {following.name} overlap")
        self.tensors = tensors

    def block_type(self, name: str) -> BlockType:
        return self.tensors[name].kind

    def require_readable(self) -> None:
        """Raises ModelLoadError where a tensor has a type that the gguf package can't dequantise either."""
        for type_id, name in {info.type_id: name for name, info in self.tensors.items()}.items():
            if type_id not in _TYPES:
                _dequantised(np.zeros((1, self.block_type(name).size), np.uint8), type_id, name)

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """[rows, bytes of a row]: the stored blocks of a tensor, without a copy."""
        info = self.tensors[name]
        width = info.shape[-1] // info.kind.block * info.kind.size
        return np.frombuffer(self._map, np.uint8, info.nbytes, info.start).reshape(-1, width)

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
    for what, count in ("tensors", num_tensors), ("pairs of metadata", num_pairs):
        if count > MOST_ENTRIES:
            raise ValueError(f"it says that it has {count} {what}")

    def pairs() -> Iterator[tuple[str, Any]]:
        for _ in range(num_pairs):
            key = cursor.string("a key")
            yield key, cursor.value(key)

    return num_tensors, pairs()


def _unique(pairs: Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{what} {name!r} is there twice")
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor as the header has it."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # from the start of the tensor data


def _tensor_infos(cursor: _Cursor, count: int) -> Iterator[_Stored]:
    for _ in range(count):
        name = cursor.string("a tensor's name")
        dimensions = cursor.unpack(_U32)
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(cursor.unpack(_U64) for _ in range(dimensions))
        yield _Stored(name, shape[::-1], cursor.unpack(_U32), cursor.unpack(_U64))


def _placed(stored: _Stored, base: int, alignment: int, end: int) -> TensorInfo:
    """`base`: where tensor data begin. Raises ValueError where the tensor is not wholly in front of `end`."""
    name, columns = stored.name, stored.shape[-1]
    kind = _block_type(stored.type_id, name)
    if min(stored.shape) < 1 or columns % kind.block:
        raise ValueError(f"tensor {name} is {stored.shape} in blocks of {kind.block} ({kind.name})")
    if stored.offset % alignment:
        raise ValueError(f"tensor {name} begins at {stored.offset}, which is no multiple of {alignment}")
    start, nbytes = base + stored.offset, math.prod(stored.shape) // kind.block * kind.size
    if start + nbytes > end:
        raise ValueError(f"it ends at {end} bytes, inside tensor {name}: an incomplete download?")
    return TensorInfo(name, stored.shape, stored.type_id, kind, start, nbytes)


def _block_type(type_id: int, name: str) -> BlockType:
    if type_id in _TYPES:
        return _TYPES[type_id]
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        raise ValueError(f"tensor {name} has the unknown GGUF type {type_id}") from None
    return BlockType(kind.name, *GGML_QUANT_SIZES[kind])


def read_architecture(path: Path) -> str:
    """`general.architecture`, reading no more of the file than it takes."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _, metadata = _open_header(_Cursor(data))
        return next(str(value) for key, value in metadata if key == "general.architecture")
    except StopIteration:
        raise ModelLoadError(f"{path} is not a readable GGUF file: it lacks general.architecture") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} is not a readable GGUF file: {error}") from error
