"""Pixels to latents and back (AutoencoderKL), and a cheap look at latents."""

from typing import Any

import torch
import torch.nn.functional as F

from models.diffusion.checkpoint import Checkpoint

FIT_PICTURES = 12
FIT_EDGE = 16  # latents


class Autoencoder:
    """Latents here are as the denoiser has them: shifted and scaled. Pixels are [B, 3, H, W] in -1…1, float32."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises ModelLoadError."""
        # What overflows in half precision is left in float32: it is a small part of the work.
        upcast = bool(checkpoint.config("vae").get("force_upcast"))
        self._dtype = torch.float32 if upcast else checkpoint.dtype
        self._device = checkpoint.device
        self._vae = checkpoint.module("vae", "AutoencoderKL", dtype=self._dtype)
        config = self._vae.config
        self.channels = int(config.latent_channels)
        self.pixels_per_latent: int = 2 ** (len(config.block_out_channels) - 1)
        self._scaling = float(config.scaling_factor)
        self._shift = float(config.shift_factor or 0.0)
        self._mean = self._per_channel(config.get("latents_mean"))
        self._std = self._per_channel(config.get("latents_std"))
        self._preview = self._fit_preview()

    def _per_channel(self, values: Any) -> torch.Tensor | None:
        if values is None:
            return None
        return torch.tensor(values, dtype=torch.float32, device=self._device).view(1, -1, 1, 1)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        if self._mean is not None and self._std is not None:
            latents = latents * self._std / self._scaling + self._mean
        else:
            latents = latents / self._scaling + self._shift
        pixels: torch.Tensor = self._vae.decode(latents.to(self._dtype), return_dict=False)[0]
        return pixels.float()

    def encode(self, pixels: torch.Tensor) -> Any:
        """The distribution of a picture's latents, neither shifted nor scaled; `draw` takes some of it."""
        return self._vae.encode(pixels.to(self._device, self._dtype)).latent_dist

    def draw(self, distribution: Any, generator: torch.Generator) -> torch.Tensor:
        return self._normalised(distribution.sample(generator))

    def _normalised(self, latents: torch.Tensor) -> torch.Tensor:
        latents = latents.float()
        if self._mean is not None and self._std is not None:
            return (latents - self._mean) * self._scaling / self._std
        return (latents - self._shift) * self._scaling

    # --- previews -----------------------------------------------------------------------------------------------------

    def preview(self, latents: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Roughly what [B, C, h, w] would decode to, at full size: a linear map of each latent, then interpolation."""
        weights, bias = self._preview[:-1], self._preview[-1]
        small = torch.einsum("bchw,cd->bdhw", latents.float(), weights) + bias.view(1, 3, 1, 1)
        return F.interpolate(small, size=(height, width), mode="bilinear", align_corners=False)

    def _fit_preview(self) -> torch.Tensor:
        """[C + 1, 3]: the least-squares map from latents to the mean colour below each, the constant last.

        Fitted on pictures of coloured patches that the autoencoder itself encodes, so it needs no table of families.
        """
        generator = torch.Generator().manual_seed(0)
        edge = FIT_EDGE * self.pixels_per_latent
        patches = torch.rand(FIT_PICTURES, 3, 4, 4, generator=generator) * 2 - 1
        pictures = F.interpolate(patches, size=(edge, edge), mode="bilinear", align_corners=False)
        with torch.inference_mode():
            latents = torch.cat([self._normalised(self.encode(each[None]).mean) for each in pictures]).cpu()
        colours = F.interpolate(pictures, size=latents.shape[-2:], mode="area")
        inputs = latents.permute(0, 2, 3, 1).reshape(-1, self.channels)
        inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
        if not torch.isfinite(inputs).all():
            return torch.zeros(self.channels + 1, 3, device=self._device)
        # The driver that also takes rank-deficient inputs: a channel that never changes is no reason not to load.
        fitted: torch.Tensor = torch.linalg.lstsq(
            inputs, colours.permute(0, 2, 3, 1).reshape(-1, 3), driver="gelsd"
        ).solution
        return fitted.to(self._device)
