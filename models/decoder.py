"""One decoder-only transformer, switched by a frozen config."""

import torch
from torch import Tensor

from models.attention import KVCache
from models.batch import ForwardBatch
from models.config import DecoderConfig

__all__ = ["Decoder", "DecoderConfig"]


class Decoder:
    config: DecoderConfig
    tile: int  # query rows of one prefill attention call: chunk borders and prefix reuse fall on its multiples
    device: torch.device
    dtype: torch.dtype  # of activations and the KV cache
    weight_bytes: int

    def new_cache(self, num_blocks: int) -> KVCache: ...
    def forward(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """[k, vocab] float32: the logits of `batch.logit_rows` (of all rows where None)."""
    def details(self) -> dict[str, str]: ...
