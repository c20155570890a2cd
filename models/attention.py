"""The paged KV cache, and attention over it."""

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK_SIZE = 16  # positions a block


class KVCache:
    """Keys and values of all layers: one pool, [layers, blocks · block_size, 2, kv_heads, head_dim]."""

    def __init__(
        self, num_layers: int, num_blocks: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = BLOCK_SIZE
        self.num_blocks = num_blocks
        shape = (num_layers, num_blocks * BLOCK_SIZE, 2, kv_heads, head_dim)
        self.pool = torch.zeros(shape, dtype=dtype, device=device)
        self.bytes_per_block = self.pool.nbytes // num_blocks
