"""A decoder that runs through the native library alone."""

import mmap as memory_map
from collections.abc import Callable
from contextlib import suppress
from math import prod
from mmap import mmap

import numpy as np
from numpy.typing import NDArray

from models.decoder.batch import BLOCK_SIZE, ForwardBatch
from models.decoder.config import DecoderConfig
from models.decoder.native.forward import NativeForward
from models.decoder.native.library import TILE
from models.decoder.native.packing import Floats

NO_LARGE_PAGES: int | None = getattr(memory_map, "MADV_NOHUGEPAGE", None)  # Linux has it

Embedding = Callable[[NDArray[np.int64]], Floats]  # [rows] ids -> [rows, hidden], a new array


class NativeCache:
    """Keys and values of all layers: [layers, blocks · block_size, 2, kv_heads, head_dim] in bfloat16's bits."""

    block_size = BLOCK_SIZE

    def __init__(self, config: DecoderConfig, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        slots = num_blocks * BLOCK_SIZE
        shape = config.num_layers, slots, 2, config.num_kv_heads, config.head_dim
        self.pool = _small_pages(prod(shape)).reshape(shape)
        self.bytes_per_block = self.pool.nbytes // num_blocks


def _small_pages(count: int) -> NDArray[np.uint16]:
    """Zeros on pages of 4 KiB. On large ones, which NumPy asks for, the block that is the first to reach new ones takes
    a page of every layer at once: a long step where the machine has to clear them."""
    memory = mmap(-1, count * np.dtype(np.uint16).itemsize)
    if NO_LARGE_PAGES is not None:
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(NO_LARGE_PAGES)
    return np.frombuffer(memory, np.uint16)


class NativeDecoder:
    """Implements `models.decoder.batch.CausalDecoder`; prefill and decode run the same code."""

    tile = TILE
    gpu = None
    captures = False

    def __init__(
        self, config: DecoderConfig, forward: NativeForward, embedding: Embedding, details: dict[str, str]
    ) -> None:
        """`forward`: with a head."""
        self.config = config
        self._forward = forward
        self._embedding = embedding
        self._details = details

    def new_cache(self, num_blocks: int) -> NativeCache:
        return NativeCache(self.config, num_blocks)

    def forward(self, batch: ForwardBatch, cache: NativeCache) -> Floats:
        embedded = self._embedding(batch.ids)
        for first, embeds in batch.embeds:
            embedded[first : first + len(embeds)] = embeds
        return self._forward(batch, embedded, cache.pool.ctypes.data, cache.pool.shape[1])

    def details(self) -> dict[str, str]:
        return self._details
