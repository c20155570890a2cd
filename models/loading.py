"""From files to a decoder, its tokenizer and its generation defaults."""

from dataclasses import dataclass
from pathlib import Path

from models.decoder import Decoder
from models.errors import ModelLoadError, SourceError
from models.tokenizer import Tokenizer

__all__ = ["GenerationDefaults", "LoadedModel", "ModelLoadError", "SourceError", "load_decoder"]


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's authors recommend; 1.0 / off where they say nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    decoder: Decoder
    tokenizer: Tokenizer
    generation: GenerationDefaults


def load_decoder(
    path: Path,
    *,
    device: str = "auto",
    dtype: str | None = None,
    quantization: str | None = None,
    dense_prefill: bool | None = None,
    threads: int | None = None,
) -> LoadedModel:
    """Load a folder of safetensors or a GGUF file. Raises ModelLoadError naming what is not supported, and the alternative."""
    raise NotImplementedError
