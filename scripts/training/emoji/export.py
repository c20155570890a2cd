"""Put what was trained together as a folder that diffusers' StableDiffusionPipeline loads, in half precision."""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from models.privacy import silence
from scripts.training.emoji import EMBEDDED
from scripts.training.emoji.train_unet import SCHEDULE

DEFAULTS = {"num_inference_steps": 16, "guidance_scale": 4.0, "width": 64, "height": 64, "max_pixels": 4096}
LOG = "training.jsonl"  # of the denoiser: losses, and at t = 950 with the right and with shuffled captions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=EMBEDDED / "tiny-emoji-diffusion")
    given = parser.parse_args()
    pipeline = assemble(given.work)
    given.out.mkdir(parents=True, exist_ok=True)
    pipeline.to(torch.float16).save_pretrained(given.out, safe_serialization=True)
    # Half precision saves space alone: as diffusers loads the other parts, so shall transformers load this one.
    described = given.out / "text_encoder" / "config.json"
    described.write_text(described.read_text(encoding="utf-8").replace('"float16"', '"float32"'), encoding="utf-8")
    # transformers writes a tokenizer file of its own; these two are what every version of it reads.
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(given.work / "tokenizer" / name, given.out / "tokenizer" / name)
    (given.out / "tokenizer" / "tokenizer.json").unlink(missing_ok=True)
    (given.out / "generation_config.json").write_text(json.dumps(DEFAULTS, indent=2) + "\n", encoding="utf-8")
    shutil.copy(given.work / "unet.jsonl", given.out / LOG)
    size = sum(file.stat().st_size for file in given.out.rglob("*") if file.is_file())
    print(f"{given.out}: {size / 1e6:.1f} MB")


def assemble(work: Path) -> Any:
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextModel, CLIPTokenizer

    autoencoder = AutoencoderKL.from_pretrained(work / "vae", low_cpu_mem_usage=False)
    denoiser = UNet2DConditionModel.from_pretrained(work / "unet", low_cpu_mem_usage=False)
    for part in (autoencoder, denoiser):
        part.register_to_config(_name_or_path="")  # else the exported folder says where it was made
    return StableDiffusionPipeline(
        vae=autoencoder,
        text_encoder=CLIPTextModel.from_pretrained(work / "text_encoder_trained"),
        tokenizer=CLIPTokenizer.from_pretrained(work / "tokenizer"),
        unet=denoiser,
        scheduler=DDIMScheduler(**SCHEDULE, clip_sample=False, set_alpha_to_one=True),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


if __name__ == "__main__":
    silence(os.environ)
    main()
