"""Stable Diffusion 1.x, 2.x, Turbo and LCM, and Stable Diffusion XL: a UNet over latents, guided by CLIP."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from models.diffusion.checkpoint import Checkpoint, Defaults
from models.diffusion.family import Family, Size
from models.diffusion.text import Conditioning, PromptTokenizer, Tokens, stack
from models.errors import ModelLoadError

GUIDANCE = 7.5
STEPS = 30
LCM_STEPS, LCM_GUIDANCE = 4, 8.5
TURBO_STEPS = 1  # distilled without guidance


class UNetFamily(Family):
    """What a UNet needs whichever text encoders it has."""

    edits = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        if self.schedulers.flow:
            raise ModelLoadError(f"{checkpoint.folder}: a UNet with a flow-matching scheduler is not supported")
        self.unet = checkpoint.module("unet", "UNet2DConditionModel")
        config = self.unet.config
        channels = self.autoencoder.channels
        if config.in_channels != channels or config.out_channels != channels:
            raise ModelLoadError(
                f"{checkpoint.folder}: the UNet reads {config.in_channels} channels, but the autoencoder has "
                f"{channels}; models made for inpainting or for upscaling alone are not supported"
            )
        self._guidance_width: int | None = config.time_cond_proj_dim  # LCM: guidance is an input
        self.defaults = checkpoint.defaults(self._family_defaults())

    def _family_defaults(self) -> Defaults:
        sample = self.unet.config.sample_size or 64
        height, width = (sample, sample) if isinstance(sample, int) else sample
        ratio = self.autoencoder.pixels_per_latent
        steps, guidance = STEPS, GUIDANCE
        if self._guidance_width is not None:
            steps, guidance = LCM_STEPS, LCM_GUIDANCE
        elif "turbo" in str(self.checkpoint.folder).lower():  # nothing inside the folder tells a Turbo from its teacher
            steps, guidance = TURBO_STEPS, 0.0
        return Defaults(steps, guidance, width * ratio, height * ratio)

    @property
    def takes_negative(self) -> bool:
        return self._guidance_width is None

    @property
    def takes_guidance(self) -> bool:
        return True

    @property
    def grid(self) -> int:
        return math.lcm(8, self.autoencoder.pixels_per_latent)

    @property
    def least(self) -> int:
        """The deepest level of the UNet has one latent at least."""
        deepest: int = 2 ** (len(self.unet.config.block_out_channels) - 1)
        return max(self.grid, self.autoencoder.pixels_per_latent * deepest)

    def predict(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        texts: Sequence[Conditioning],
        guidance: Sequence[float],
        size: Size,
    ) -> torch.Tensor:
        dtype = self.checkpoint.dtype
        output: torch.Tensor = self.unet(
            latents.to(dtype),
            timesteps.to(latents.device),
            encoder_hidden_states=torch.stack([text.states for text in texts]),
            timestep_cond=self._guidance_embedding(guidance, latents.device),
            added_cond_kwargs=self._added(texts, size),
            return_dict=False,
        )[0]
        return output.float()

    def _added(self, texts: Sequence[Conditioning], size: Size) -> dict[str, torch.Tensor] | None:
        return None

    def _guidance_embedding(self, guidance: Sequence[float], device: torch.device) -> torch.Tensor | None:
        """[rows, width]: sines and cosines of guidance - 1, as the LCM authors' `get_guidance_scale_embedding`."""
        width = self._guidance_width
        if width is None:
            return None
        half = width // 2
        frequencies = torch.exp(torch.arange(half) * -(math.log(10000.0) / (half - 1)))
        angles = (torch.tensor(guidance) - 1)[:, None] * 1000.0 * frequencies[None]
        embedded = torch.cat([angles.sin(), angles.cos(), torch.zeros(len(guidance), width % 2)], dim=1)
        return embedded.to(device, self.checkpoint.dtype)


class StableDiffusion(UNetFamily):
    """https://arxiv.org/abs/2112.10752; `addition_embed_type="text"` joins the text to the time embedding."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        addition = self.unet.config.addition_embed_type
        if addition not in (None, "text"):
            raise ModelLoadError(f"{checkpoint.folder}: addition_embed_type {addition!r} is not supported")
        self._tokenizer = PromptTokenizer(checkpoint, "tokenizer")
        self._encoder: Any = checkpoint.module("text_encoder", "CLIPTextModel", "CLIPTextModelWithProjection")
        self._masked = bool(getattr(self._encoder.config, "use_attention_mask", False))

    @property
    def max_tokens(self) -> int:
        return self._tokenizer.length

    def tokenise(self, text: str) -> Tokens:
        return Tokens((self._tokenizer(text),))

    def encode(self, texts: Sequence[Tokens]) -> list[Conditioning]:
        ids, mask = stack([text.texts[0] for text in texts], self.checkpoint.device)
        output = self._encoder(ids, attention_mask=mask if self._masked else None)
        return [Conditioning(states) for states in output.last_hidden_state]


class StableDiffusionXL(UNetFamily):
    """https://arxiv.org/abs/2307.01952: two text encoders, whose states are joined, and the size as an input."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        addition = self.unet.config.addition_embed_type
        if addition != "text_time":
            raise ModelLoadError(f"{checkpoint.folder}: addition_embed_type {addition!r} is not supported")
        self._tokenizers = [PromptTokenizer(checkpoint, part) for part in ("tokenizer", "tokenizer_2")]
        self._encoders: list[Any] = [
            checkpoint.module("text_encoder", "CLIPTextModel"),
            checkpoint.module("text_encoder_2", "CLIPTextModelWithProjection"),
        ]
        self.empty_is_zero = bool(checkpoint.index.get("force_zeros_for_empty_prompt", True))

    @property
    def max_tokens(self) -> int:
        return min(tokenizer.length for tokenizer in self._tokenizers)

    def tokenise(self, text: str) -> Tokens:
        return Tokens(tuple(tokenizer(text) for tokenizer in self._tokenizers))

    def encode(self, texts: Sequence[Tokens]) -> list[Conditioning]:
        """The states before the last layer of both encoders, and the pooled ones of the second."""
        states, pooled = [], None
        for number, encoder in enumerate(self._encoders):
            ids, _ = stack([text.texts[number] for text in texts], self.checkpoint.device)
            output = encoder(ids, output_hidden_states=True)
            states.append(output.hidden_states[-2])
            pooled = output[0]
        assert pooled is not None
        return [Conditioning(*row) for row in zip(torch.cat(states, dim=-1), pooled, strict=True)]

    def _added(self, texts: Sequence[Conditioning], size: Size) -> dict[str, torch.Tensor]:
        """The size of the original, where it was cropped, the size that is wanted; and the pooled text."""
        ids = torch.tensor([size.height, size.width, 0, 0, size.height, size.width], dtype=self.checkpoint.dtype)
        pooled = torch.stack([text.pooled for text in texts if text.pooled is not None])
        return {"text_embeds": pooled, "time_ids": ids.to(pooled.device).repeat(len(texts), 1)}
