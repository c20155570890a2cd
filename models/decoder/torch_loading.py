"""From files to torch's decoder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from models.decoder.assembly import LinearFactory, build_weights
from models.decoder.config import DecoderConfig, from_hf
from models.decoder.native.library import Engine
from models.decoder.transformer import Decoder
from models.decoder.weights.checkpoint import Checkpoint, GGUFCheckpoint, SafetensorsCheckpoint
from models.decoder.weights.packed import packing_of
from models.device import choose_device, choose_dtype
from models.files.gguf import GGUFFile


class TorchLoader:
    """Knows device, type and kernels; is given a file of weights and the model's config."""

    def __init__(
        self,
        device: str,
        dtype: str | None,
        quantization: str | None,
        *,
        dense_prefill: bool | None,
        threads: int,
        engine: Engine | None,
    ) -> None:
        """Raises ModelLoadError where these don't go together, or are not there."""
        torch.set_num_threads(threads)
        self._factory = LinearFactory(
            choose_dtype(dtype),
            choose_device(device),
            quantization=quantization,
            dense_prefill=dense_prefill,
            engine=engine,
        )

    def gguf(self, file: GGUFFile, config: DecoderConfig) -> Decoder:
        """Raises ModelLoadError."""
        with torch.inference_mode():
            return self._decoder(config, GGUFCheckpoint(file, self._factory.forms))

    def folder(self, path: Path, raw: Mapping[str, Any]) -> Decoder:
        """`raw`: its `config.json`. Raises ModelLoadError."""
        from_hf(raw)  # what is not supported is said before any other file is looked at
        checkpoint = SafetensorsCheckpoint(path, packing_of(raw))
        with torch.inference_mode():
            return self._decoder(from_hf(raw, checkpoint), checkpoint)

    def _decoder(self, config: DecoderConfig, checkpoint: Checkpoint) -> Decoder:
        factory = self._factory
        weights = build_weights(config, checkpoint, factory)
        return Decoder(config, weights, dtype=factory.dtype, device=factory.device, engine=factory.engine)
