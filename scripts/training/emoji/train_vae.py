"""Train the autoencoder: 64 × 64 pixels to 4 × 16 × 16 latents and back."""

import argparse
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image

from models.privacy import silence
from scripts.training.emoji.concepts import COLOURS, read_concepts
from scripts.training.emoji.layout import channels_last
from scripts.training.emoji.pictures import to_signal, vary
from scripts.training.emoji.prepare import load_pictures

LATENTS = 4
KL = 2e-4
BATCH = 16
LEARNING_RATE = 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5000)
    given = parser.parse_args()
    torch.manual_seed(1)
    pictures = load_pictures(given.work)
    wanted = {concept.short_name for concept in read_concepts()}
    autoencoder = train(pictures, wanted, given.steps, given.work / "vae.jsonl")
    normalise(autoencoder, [pictures[name] for name in sorted(wanted)])
    autoencoder.save_pretrained(given.work / "vae")


def build() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(32, 64, 96),
        layers_per_block=1,
        latent_channels=LATENTS,
        norm_num_groups=16,
        sample_size=64,
        scaling_factor=1.0,
        mid_block_add_attention=False,
    )


def train(pictures: dict[str, Image.Image], wanted: set[str], steps: int, log: Path) -> Any:
    """Half of what it sees are the pictures that the denoiser will learn, half all others there are."""
    choose = random.Random(1)
    first = [pictures[name] for name in sorted(wanted)]
    others = [pictures[name] for name in sorted(pictures.keys() - wanted)] or first
    autoencoder = channels_last(build())
    optimiser = torch.optim.AdamW(autoencoder.parameters(), lr=LEARNING_RATE, weight_decay=1e-4, betas=(0.9, 0.99))
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as written:
        for step in range(steps):
            warm = min(1.0, (step + 1) / 100)
            optimiser.param_groups[0]["lr"] = LEARNING_RATE * warm * (0.5 + 0.5 * math.cos(math.pi * step / steps))
            drawn = [_draw(choose.choice(first if choose.random() < 0.5 else others), choose) for _ in range(BATCH)]
            pixels = torch.from_numpy(to_signal(drawn)).to(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                latents = autoencoder.encode(pixels).latent_dist
                seen = autoencoder.decode(latents.sample()).sample
            loss = _difference(seen.float(), pixels) + KL * latents.kl().mean() / latents.mean[0].numel()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(autoencoder.parameters(), 1.0)
            optimiser.step()
            if step % 100 == 99:
                decibels = -10 * math.log10(F.mse_loss(seen.float(), pixels).item() / 4)
                line = {"step": step + 1, "loss": loss.item(), "psnr_db": decibels, "s": time.monotonic() - started}
                written.write(json.dumps({key: round(value, 4) for key, value in line.items()}) + "\n")
                written.flush()
    return autoencoder


def _draw(picture: Image.Image, choose: random.Random) -> Any:
    return vary(picture, choose, background=choose.choice(tuple(COLOURS)) if choose.random() < 0.1 else "")


def _difference(seen: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Absolute, squared, and of the gradients: edges are what small pictures live by."""
    error = seen - wanted
    across, down = error[..., :, 1:] - error[..., :, :-1], error[..., 1:, :] - error[..., :-1, :]
    return error.abs().mean() + error.square().mean() + across.abs().mean() + down.abs().mean()


@torch.no_grad()
def normalise(autoencoder: Any, pictures: list[Image.Image]) -> None:
    """Give each latent channel mean 0 and deviation 1 by folding both into the convolutions around the latents."""
    choose = random.Random(2)
    means = []
    for picture in pictures:
        pixels = torch.from_numpy(to_signal([_draw(picture, choose) for _ in range(2)]))
        means.append(autoencoder.encode(pixels).latent_dist.mean)
    values = torch.cat(means).transpose(0, 1).reshape(LATENTS, -1)
    mean, deviation = values.mean(dim=1), values.std(dim=1)
    into, out = autoencoder.quant_conv, autoencoder.post_quant_conv
    into.weight[:LATENTS] /= deviation.view(-1, 1, 1, 1)
    into.bias[:LATENTS] = (into.bias[:LATENTS] - mean) / deviation
    into.bias[LATENTS:] -= 2 * deviation.log()  # log variances
    out.bias += (out.weight * mean.view(1, -1, 1, 1)).sum(dim=(1, 2, 3))
    out.weight *= deviation.view(1, -1, 1, 1)
    assert deviation.isfinite().all()


if __name__ == "__main__":
    silence(os.environ)
    main()
