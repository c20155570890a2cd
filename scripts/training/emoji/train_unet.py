"""Train the text encoder to guess pictures, then the denoiser with it: captions to latents, by v-prediction."""

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.privacy import silence
from scripts.training.emoji.concepts import read_concepts
from scripts.training.emoji.layout import channels_last
from scripts.training.emoji.pictures import Variations, to_signal
from scripts.training.emoji.prepare import LENGTH, WIDTH, load_pictures

VARIATIONS = 40  # of each concept, encoded once
BATCH = 32
LEARNING_RATE = 1e-3
WARM_UP = 200  # steps
ALIGN_STEPS = 400
EMPTY = 0.1  # of the captions: what guidance is measured against
NOISY = 950  # the timestep at which all that can be known of the picture is its caption
SCHEDULE = {  # of diffusers' schedulers
    "num_train_timesteps": 1000,
    "beta_schedule": "squaredcos_cap_v2",
    "prediction_type": "v_prediction",
    "timestep_spacing": "trailing",
    "steps_offset": 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--variations", type=int, default=VARIATIONS)
    given = parser.parse_args()
    torch.manual_seed(3)
    examples = encode(given.work, given.variations)
    train(given.work, examples, given.steps)


def build() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DCrossAttn",
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(80, 128, 160),
        layers_per_block=1,
        norm_num_groups=16,
        cross_attention_dim=WIDTH,
        attention_head_dim=4,  # how many heads there are, whatever it is called
        resnet_time_scale_shift="scale_shift",
        addition_embed_type="text",  # the pooled text joins the time
        addition_embed_type_num_heads=4,
    )


@dataclass(frozen=True, slots=True)
class Examples:
    latents: torch.Tensor  # [n, 4, 16, 16]
    ids: torch.Tensor  # [n, 24]
    empty: torch.Tensor  # [24], of the empty caption

    def batches(self, choose: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Endless (latents, ids), every example once an epoch; some captions are empty."""
        while True:
            order = torch.randperm(len(self.latents), generator=choose)
            for at in range(0, len(order) - BATCH + 1, BATCH):
                rows = order[at : at + BATCH]
                dropped = torch.rand(BATCH, 1, generator=choose) < EMPTY
                yield self.latents[rows].float(), torch.where(dropped, self.empty, self.ids[rows])


@torch.no_grad()
def encode(work: Path, variations: int) -> Examples:
    """Variations of every concept as the autoencoder's latents."""
    from diffusers import AutoencoderKL
    from transformers import CLIPTokenizer

    choose = random.Random(3)
    autoencoder = AutoencoderKL.from_pretrained(work / "vae", low_cpu_mem_usage=False).eval()
    tokenizer = CLIPTokenizer.from_pretrained(work / "tokenizer")
    pictures = load_pictures(work)
    latents, captions = [], []
    for concept in read_concepts():
        drawn = [Variations(concept, pictures[concept.short_name]).draw(choose) for _ in range(variations)]
        pixels = torch.from_numpy(to_signal([sample.pixels for sample in drawn]))
        latents.append(autoencoder.encode(pixels).latent_dist.mean.half())
        captions += [sample.caption for sample in drawn]
    ids = tokenizer([*captions, ""], padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt")
    return Examples(torch.cat(latents), ids.input_ids[:-1], ids.input_ids[-1])


class Average:
    """Exponential moving averages of parameters, which warm up as they start."""

    def __init__(self, networks: dict[str, Any], decay: float) -> None:
        self._live = {(name, key): value for name, net in networks.items() for key, value in net.state_dict().items()}
        self._mean = {key: value.clone() for key, value in self._live.items()}
        self._networks = networks
        self._decay = decay
        self._steps = 0

    @torch.no_grad()
    def update(self) -> None:
        self._steps += 1
        share = 1 - min(self._decay, (1 + self._steps) / (10 + self._steps))
        floating = [key for key, value in self._mean.items() if value.is_floating_point()]
        torch._foreach_lerp_([self._mean[key] for key in floating], [self._live[key] for key in floating], share)

    def save(self, work: Path) -> None:
        for name, network in self._networks.items():
            state = {key: value.contiguous() for (of, key), value in self._mean.items() if of == name}
            network.save_pretrained(work / name, state_dict=state)


def train(work: Path, examples: Examples, steps: int) -> None:
    """Writes `unet` and `text_encoder_trained` (averages of the weights), and `unet.jsonl`, the losses."""
    from transformers import CLIPTextModel

    unet = channels_last(build())
    encoder = CLIPTextModel.from_pretrained(work / "text_encoder")
    encoder.get_input_embeddings().weight.requires_grad_(False)  # so that words it never saw stay near those it did
    align(encoder, examples)
    learned = [*unet.parameters(), *(each for each in encoder.parameters() if each.requires_grad)]
    optimiser = torch.optim.AdamW(learned, lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.99))
    average = Average({"unet": unet, "text_encoder_trained": encoder}, decay=0.999)
    choose = torch.Generator().manual_seed(3)
    alphas = _alphas()
    probe = _Probe(examples)
    batches = examples.batches(choose)
    total, started = 0.0, time.monotonic()
    with (work / "unet.jsonl").open("w", encoding="utf-8") as written:
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = LEARNING_RATE * _rate(step, steps)
            latents, ids = next(batches)
            # More of the noisy steps, where the caption decides: a weighting by signal would starve them.
            times = (1000 * torch.rand(BATCH, generator=choose) ** 0.5).long().clamp(max=999)
            noise = torch.randn(latents.shape, generator=choose)
            loss = _loss(unet, encoder, latents, ids, times, noise, alphas)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            optimiser.step()
            average.update()
            total += loss.item()
            if step % 200 == 199:
                right, shuffled = probe.measure(unet, encoder, alphas)
                line = {
                    "step": step + 1,
                    "loss": total / 200,
                    "right": right,
                    "shuffled": shuffled,
                    "s": time.monotonic() - started,
                }
                written.write(json.dumps({key: round(value, 4) for key, value in line.items()}) + "\n")
                written.flush()
                total = 0.0
            if step % 1000 == 999 or step == steps - 1:
                average.save(work)


def align(encoder: Any, examples: Examples) -> None:
    """Teach the text encoder, by a head that is thrown away, to guess the latents from the caption alone.

    A denoiser learns to listen to text from its noisiest steps, a few rows of each batch; an encoder that already tells
    pictures apart spares it that.
    """
    shape = examples.latents.shape[1:]
    head = torch.nn.Sequential(torch.nn.Linear(WIDTH, 768), torch.nn.SiLU(), torch.nn.Linear(768, shape.numel()))
    learned = [each for each in (*encoder.parameters(), *head.parameters()) if each.requires_grad]
    optimiser = torch.optim.AdamW(learned, lr=LEARNING_RATE)
    choose = torch.Generator().manual_seed(4)
    for step in range(ALIGN_STEPS):
        optimiser.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 100)
        rows = torch.randint(len(examples.latents), (2 * BATCH,), generator=choose)
        guess = head(encoder(examples.ids[rows]).last_hidden_state.mean(dim=1))
        loss = F.mse_loss(guess, examples.latents[rows].float().flatten(1))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimiser.step()
    print(f"aligned: {loss.item():.3f}", flush=True)


def _rate(step: int, steps: int) -> float:
    """Up, flat for the first half, then down to 0."""
    return min(1.0, (step + 1) / WARM_UP, 2 * (steps - step) / steps)


def _alphas() -> torch.Tensor:
    from diffusers import DDIMScheduler

    scheduler: Any = DDIMScheduler(**SCHEDULE)
    alphas: torch.Tensor = scheduler.alphas_cumprod
    return alphas


def _loss(
    unet: Any,
    encoder: Any,
    latents: torch.Tensor,
    ids: torch.Tensor,
    times: torch.Tensor,
    noise: torch.Tensor,
    alphas: torch.Tensor,
) -> torch.Tensor:
    signal, spread = alphas[times].sqrt().view(-1, 1, 1, 1), (1 - alphas[times]).sqrt().view(-1, 1, 1, 1)
    noisy = (signal * latents + spread * noise).contiguous(memory_format=torch.channels_last)
    # Backwards, the fused attention takes several times what its products do at these sizes.
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        states = encoder(ids).last_hidden_state
        output = unet(noisy, times, encoder_hidden_states=states).sample
    return F.mse_loss(output.float(), signal * noise - spread * latents)


class _Probe:
    """The loss where only the caption can help, with the right ones and with others': the gap is what text does."""

    def __init__(self, examples: Examples, rows: int = 128) -> None:
        choose = torch.Generator().manual_seed(5)
        at = torch.randperm(len(examples.latents), generator=choose)[:rows]
        self._latents, self._ids = examples.latents[at].float(), examples.ids[at]
        self._noise = torch.randn(self._latents.shape, generator=choose)
        self._times = torch.full((rows,), NOISY)

    @torch.no_grad()
    def measure(self, unet: Any, encoder: Any, alphas: torch.Tensor) -> tuple[float, float]:
        def loss(ids: torch.Tensor) -> float:
            return _loss(unet, encoder, self._latents, ids, self._times, self._noise, alphas).item()

        return loss(self._ids), loss(self._ids.roll(1, dims=0))


if __name__ == "__main__":
    silence(os.environ)
    main()
