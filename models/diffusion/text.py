"""Prompts to token ids of a fixed length: padding that depends on nothing keeps batches from changing a picture."""

import threading
from dataclasses import dataclass
from typing import Any

import torch

from models.diffusion.checkpoint import Checkpoint
from models.errors import ModelLoadError

TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer", "T5TokenizerFast")


class PromptTooLong(ValueError):
    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"it has {count} tokens, but the model reads {limit}")


@dataclass(frozen=True, slots=True)
class TextIds:
    ids: torch.Tensor  # [length], padded
    mask: torch.Tensor  # [length], 0 for padding
    count: int  # of real tokens, special ones included


class PromptTokenizer:
    """One tokenizer of a checkpoint for any number of threads: each has its own, since one raises when it is shared."""

    def __init__(self, checkpoint: Checkpoint, part: str, *, length: int | None = None) -> None:
        """`length`: where it is not the tokenizer's own. Raises ModelLoadError."""
        checkpoint.require(part, *TOKENIZERS)
        self._checkpoint = checkpoint
        self._part = part
        self._local = threading.local()
        self.length = length or int(self._backend.model_max_length)
        if self.length > 100_000:  # what transformers says where a tokenizer has no limit
            raise ModelLoadError(f"{checkpoint.folder / part} states no model_max_length")

    @property
    def _backend(self) -> Any:
        found = getattr(self._local, "backend", None)
        if found is None:
            import transformers

            folder = self._checkpoint.folder / self._part
            try:
                found = getattr(transformers, self._checkpoint.class_name(self._part)).from_pretrained(folder)
            except (OSError, ValueError, TypeError) as error:
                raise ModelLoadError(f"{folder} can't be loaded: {error}") from error
            self._local.backend = found
        return found

    def __call__(self, text: str, *, cut: bool = False) -> TextIds:
        """Raises PromptTooLong, unless what is too much may be cut off."""
        backend = self._backend
        found = backend(text, padding="max_length", max_length=self.length, truncation=False, verbose=False)
        count = len(found.input_ids)
        if count > self.length:
            if not cut:
                raise PromptTooLong(count, self.length)
            found = backend(text, max_length=self.length, truncation=True)
        mask = found.attention_mask
        return TextIds(torch.tensor(found.input_ids), torch.tensor(mask), sum(mask))


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text, for each of a model's text encoders."""

    texts: tuple[TextIds, ...]

    @property
    def count(self) -> int:
        return max(each.count for each in self.texts)


@dataclass(frozen=True, slots=True)
class Conditioning:
    """What a denoiser reads of one text."""

    states: torch.Tensor  # [length, width]
    pooled: torch.Tensor | None = None  # [width]

    def zeros(self) -> "Conditioning":
        """Of the same shapes."""
        pooled = None if self.pooled is None else torch.zeros_like(self.pooled)
        return Conditioning(torch.zeros_like(self.states), pooled)


def stack(texts: list[TextIds], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [rows, length]."""
    return torch.stack([each.ids for each in texts]).to(device), torch.stack([each.mask for each in texts]).to(device)
