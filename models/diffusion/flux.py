"""Flux (https://github.com/black-forest-labs/flux): a transformer over 2 × 2 patches of latents, by flow matching."""

from collections.abc import Sequence
from typing import Any

import torch

from models.diffusion.checkpoint import Checkpoint, Defaults
from models.diffusion.family import Family, Size
from models.diffusion.text import Conditioning, PromptTokenizer, Tokens, stack
from models.errors import ModelLoadError

DEV_STEPS, DEV_GUIDANCE, DEV_TOKENS = 28, 3.5, 512
SCHNELL_STEPS, SCHNELL_TOKENS = 4, 256  # distilled: guidance is not among its inputs
EDGE = 1024  # pixels
PATCH = 2  # latents


class Flux(Family):
    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        if not self.schedulers.flow:
            raise ModelLoadError(f"{checkpoint.folder}: {self.schedulers.class_name} does no flow matching")
        self.transformer: Any = checkpoint.module("transformer", "FluxTransformer2DModel")
        self._guided = bool(self.transformer.config.guidance_embeds)
        reads, has = self.transformer.config.in_channels, self.autoencoder.channels * PATCH * PATCH
        if reads != has:
            raise ModelLoadError(
                f"{checkpoint.folder}: the transformer reads {reads} channels, but patches have {has}; models made for "
                "control or filling are not supported"
            )
        self._clip_tokenizer = PromptTokenizer(checkpoint, "tokenizer")
        self._t5_tokenizer = PromptTokenizer(
            checkpoint, "tokenizer_2", length=DEV_TOKENS if self._guided else SCHNELL_TOKENS
        )
        self._clip: Any = checkpoint.module("text_encoder", "CLIPTextModel")
        self._t5: Any = checkpoint.module("text_encoder_2", "T5EncoderModel")
        self.defaults = checkpoint.defaults(
            Defaults(DEV_STEPS, DEV_GUIDANCE, EDGE, EDGE) if self._guided else Defaults(SCHNELL_STEPS, 0.0, EDGE, EDGE)
        )

    @property
    def max_tokens(self) -> int:
        return self._t5_tokenizer.length

    @property
    def takes_negative(self) -> bool:
        return False

    @property
    def takes_guidance(self) -> bool:
        return self._guided

    @property
    def grid(self) -> int:
        return self.autoencoder.pixels_per_latent * PATCH

    @property
    def least(self) -> int:
        return self.grid

    def tokens(self, size: Size) -> int:
        return (size.height // self.grid) * (size.width // self.grid)

    def tokenise(self, text: str) -> Tokens:
        """CLIP reads the beginning, for the one vector that it gives; the T5 encoder all."""
        return Tokens((self._clip_tokenizer(text, cut=True), self._t5_tokenizer(text)))

    def encode(self, texts: Sequence[Tokens]) -> list[Conditioning]:
        clip_ids, _ = stack([text.texts[0] for text in texts], self.checkpoint.device)
        t5_ids, _ = stack([text.texts[1] for text in texts], self.checkpoint.device)
        pooled = self._clip(clip_ids).pooler_output
        return [Conditioning(*row) for row in zip(self._t5(t5_ids)[0], pooled, strict=True)]

    def predict(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        texts: Sequence[Conditioning],
        guidance: Sequence[float],
        size: Size,
    ) -> torch.Tensor:
        device, dtype = latents.device, self.checkpoint.dtype
        height, width = latents.shape[-2:]
        states = torch.stack([text.states for text in texts])
        output: torch.Tensor = self.transformer(
            hidden_states=pack(latents).to(dtype),
            timestep=timesteps.to(device, dtype) / 1000,
            guidance=torch.tensor(guidance, dtype=torch.float32, device=device) if self._guided else None,
            pooled_projections=torch.stack([text.pooled for text in texts if text.pooled is not None]),
            encoder_hidden_states=states,
            txt_ids=torch.zeros(states.shape[1], 3, device=device, dtype=dtype),
            img_ids=_positions(height // PATCH, width // PATCH).to(device, dtype),
            return_dict=False,
        )[0]
        return unpack(output.float(), height, width)


def pack(latents: torch.Tensor) -> torch.Tensor:
    """[rows, C, h, w] -> [rows, h/2 · w/2, 4C]: a token is a patch."""
    rows, channels, height, width = latents.shape
    patches = latents.view(rows, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(rows, -1, channels * PATCH * PATCH)


def unpack(tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
    rows, _, size = tokens.shape
    channels = size // (PATCH * PATCH)
    patches = tokens.view(rows, height // PATCH, width // PATCH, channels, PATCH, PATCH)
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(rows, channels, height, width)


def _positions(height: int, width: int) -> torch.Tensor:
    """[height · width, 3]: (0, row, column) of each patch."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3).float()
