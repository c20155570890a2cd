"""The compiled library, its structures, and the threads it runs on."""

import ctypes
import functools
import platform
import weakref
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p, sizeof
from pathlib import Path
from typing import ClassVar

from models.device import CPU_LEVEL, cpu_level

# Rows of a prompt's least chunk. A row's result doesn't depend on how many run with it: smaller chunks would read the
# weights more often, larger ones let others wait behind a long context.
TILE = 8

LIBRARY = Path(__file__).with_name("_library.so")  # plain C, of no version of Python


_NAMES = ("native_supported", "native_limits", "native_matrix", "repack_q4", "repack_q8")


class LimitsStruct(Structure):
    """`struct limits` in engine.h: what this build of the library takes, and how it lays out packed weights."""

    _fields_: ClassVar = [
        ("rows", c_int32),
        ("head_dim", c_int32),
        ("queries", c_int32),
        ("block", c_int32),
        ("group", c_int32),
        ("lanes", c_int32),
        ("int4_bytes", c_int32),
        ("int8_bytes", c_int32),
        ("layer_bytes", c_int32),
        ("batch_bytes", c_int32),
    ]
    rows: int
    head_dim: int
    queries: int
    block: int
    group: int
    lanes: int
    int4_bytes: int
    int8_bytes: int
    layer_bytes: int
    batch_bytes: int


class LinearStruct(Structure):
    """`struct linear` in linear.h. Pointers of all structures are borrowed: their owner is on the Python side."""

    _fields_: ClassVar = [
        ("blocks", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("bits", c_int32),
    ]


class ShapeStruct(Structure):
    _fields_: ClassVar = [
        ("hidden", c_int32),
        ("intermediate", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("layers", c_int32),
        ("eps", c_float),
    ]


class LayerStruct(Structure):
    _fields_: ClassVar = [
        ("attention_norm", c_void_p),
        ("qkv", LinearStruct),
        ("qk_norm", c_void_p),
        ("rope", c_int32),
        ("window", c_int32),
        ("output", LinearStruct),
        ("mlp_norm", c_void_p),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
    ]


class DecoderStruct(Structure):
    _fields_: ClassVar = [
        ("shape", ShapeStruct),
        ("layers", POINTER(LayerStruct)),
        ("norm", c_void_p),
        ("head", LinearStruct),
    ]


class BatchStruct(Structure):
    _fields_: ClassVar = [
        ("rows", c_int32),
        ("prompt", c_int32),
        ("hidden", c_void_p),
        ("rope", c_void_p),
        ("rope_stride", c_int64),
        ("lengths", c_void_p),
        ("starts", c_void_p),
        ("tables", c_void_p),
        ("cache", c_void_p),
        ("slots", c_int64),
        ("wanted", c_void_p),
        ("wanted_rows", c_int32),
        ("logits", c_void_p),
        ("added", c_void_p),
        ("added_stride", c_int64),
        ("added_to", c_void_p),
        ("added_rows", c_int32),
        ("added_layers", c_int32),
    ]


def library() -> ctypes.CDLL | None:
    """None where it was not built, or the processor lacks an instruction that it uses."""
    return _load()[0]


def missing() -> str | None:
    """Why there is no library, for people; None where there is one."""
    return _load()[1]


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    if cpu_level() != "native":
        return None, f"{CPU_LEVEL} is {cpu_level()}"
    if not LIBRARY.exists():
        return None, f"not built: no C compiler when this was installed, or not for {platform.machine()}"
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, str(error)
    if not all(hasattr(loaded, name) for name in _NAMES) or not _alike(loaded):
        return None, f"{LIBRARY} was built from other sources: build it again"
    if not loaded.native_supported():
        return None, "the processor has no AVX-512 VNNI"
    loaded.engine_new.restype = c_void_p
    loaded.engine_new.argtypes = [c_int, c_int]
    loaded.engine_free.restype = None
    loaded.engine_free.argtypes = [c_void_p]
    loaded.engine_forward.argtypes = [c_void_p, POINTER(DecoderStruct), POINTER(BatchStruct)]
    loaded.engine_matmul.argtypes = [c_void_p, POINTER(LinearStruct), c_void_p, c_int, c_int, c_void_p]
    loaded.pack_int4.restype = None
    loaded.pack_int4.argtypes = [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]
    loaded.pack_int8.restype = None
    loaded.pack_int8.argtypes = [c_void_p, c_int, c_int, c_void_p]
    loaded.repack_q4.argtypes = [c_void_p, c_int, c_int, c_int, c_void_p]
    loaded.repack_q8.argtypes = [c_void_p, c_int, c_int, c_void_p, c_void_p]
    return loaded, None


def _alike(loaded: ctypes.CDLL) -> bool:
    """Whether its structures are those above, by their sizes."""
    limits = LimitsStruct.in_dll(loaded, "native_limits")
    return (limits.layer_bytes, limits.batch_bytes) == (sizeof(LayerStruct), sizeof(BatchStruct))


def has_matrix_unit() -> bool:
    """Whether prompts are multiplied on a matrix unit of the processor."""
    found = library()
    return found is not None and bool(found.native_matrix())


class Engine:
    """Threads that share the work of one call. One caller at a time."""

    def __init__(self, found: ctypes.CDLL, threads: int, *, matrix: bool = True) -> None:
        """`matrix`: use the processor's matrix unit where there is one; but for prompts, results are the same bits.

        Raises MemoryError.
        """
        handle = found.engine_new(threads, matrix)
        if not handle:
            raise MemoryError("no memory for the native engine")
        self.limits = LimitsStruct.from_buffer_copy(LimitsStruct.in_dll(found, "native_limits"))
        self._library = found
        self._handle = handle
        weakref.finalize(self, found.engine_free, handle)

    @classmethod
    def start(cls, threads: int, *, matrix: bool = True) -> "Engine | None":
        """None where there is no library."""
        found = library()
        return cls(found, threads, matrix=matrix) if found else None

    def forward(self, decoder: DecoderStruct, batch: BatchStruct) -> None:
        """At most `limits.rows` rows. Raises MemoryError."""
        if not self._library.engine_forward(self._handle, decoder, batch):
            raise MemoryError("no memory for a forward")

    def matmul(self, linear: LinearStruct, x: int, rows: int, y: int, *, prompt: bool) -> None:
        """`x`, `y`: addresses of float32 [rows, inputs] and [rows, outputs]. `prompt`: a prompt's rows, which may be
        multiplied in bfloat16. Raises MemoryError."""
        if not self._library.engine_matmul(self._handle, linear, x, rows, prompt, y):
            raise MemoryError("no memory for a matrix product")
