"""A decoder that runs through the native library alone. Free of torch."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.batch import BLOCK_SIZE, ForwardBatch
from models.config import DecoderConfig
from models.native.forward import NativeForward
from models.native.packing import Floats

Embedding = Callable[[NDArray[np.int64]], Floats]  # [rows] ids -> [rows, hidden], a new array


class NativeCache:
    """Keys and values of all layers: [layers, blocks · block_size, 2, kv_heads, head_dim] in bfloat16's bits."""

    block_size = BLOCK_SIZE

    def __init__(self, config: DecoderConfig, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        slots = num_blocks * BLOCK_SIZE
        self.pool = np.zeros((config.num_layers, slots, 2, config.num_kv_heads, config.head_dim), np.uint16)
        self.bytes_per_block = self.pool.nbytes // num_blocks


class NativeDecoder:
    """Implements `models.batch.CausalDecoder`; prefill and decode run the same code."""

    tile = BLOCK_SIZE
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
