"""The step itself: one denoiser call over rows at different timesteps, then each image's own scheduler."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from models.diffusion.family import Family
from models.diffusion.text import Conditioning
from pipelines.image.job import ImageJob

log = logging.getLogger(__name__)


def begin(family: Family, job: ImageJob, distribution: Any | None) -> None:
    """The latents that an image starts from: noise of its generator alone, or of its source with as much as its first
    step is to take away. `distribution` is the source's (diffusers' prepare_latents, whose draws are in this order)."""
    device = family.checkpoint.device
    shape = (1, *family.latent_shape(job.order.size))
    source = job.order.source
    clean = None
    if distribution is not None:
        clean = family.autoencoder.draw(distribution, job.generator)
    drawn = torch.randn(shape, generator=job.generator).to(device)
    masked = source is not None and source.mask is not None
    # Where all of a masked picture is drawn anew nothing is left of it; without a mask some always is.
    if clean is None or source is None or (masked and source.strength == 1.0):
        job.latents = drawn * job.noise.initial_scale
    else:
        job.latents = job.noise.add_noise(clean, drawn, 0)
    if masked:
        job.clean, job.drawn = clean, drawn


def predict(family: Family, jobs: Sequence[ImageJob]) -> list[torch.Tensor]:
    """The guided output for each image [1, C, h, w]. Changes none of them.

    Rows are every image's conditional one, then the unconditional ones of those that are guided.
    """
    guided = [place for place, job in enumerate(jobs) if job.order.guided]
    rows = [*range(len(jobs)), *guided]
    inputs = [job.noise.scale(_latents(job), job.at) for job in jobs]
    texts = [_text(job.order.conditional) for job in jobs]
    texts += [_text(jobs[place].order.unconditional) for place in guided]
    output = family.predict(
        torch.cat([inputs[row] for row in rows]),
        torch.stack([jobs[row].noise.timesteps[jobs[row].at].float() for row in rows]),
        texts,
        [jobs[row].order.guidance for row in rows],
        jobs[0].order.size,
    )
    outputs = list(output[: len(jobs), None])
    for unconditional, place in zip(output[len(jobs) :, None], guided, strict=True):
        # Classifier-free guidance, https://arxiv.org/abs/2207.12598
        outputs[place] = unconditional + jobs[place].order.guidance * (outputs[place] - unconditional)
    return outputs


def advance(job: ImageJob, output: torch.Tensor) -> None:
    """One step of the image's own scheduler."""
    after, job.aim = job.noise.step(output, job.at, _latents(job), job.generator)
    job.at += 1
    source = job.order.source
    if source is not None and source.mask is not None and job.clean is not None and job.drawn is not None:
        mask = source.mask.to(after.device)
        kept = job.clean if job.finished else job.noise.add_noise(job.clean, job.drawn, job.at)
        after = (1 - mask) * kept + mask * after
    job.latents = after


def broken(jobs: Sequence[ImageJob]) -> list[ImageJob]:
    """Those with latents that are no numbers."""
    sound = torch.isfinite(torch.cat([_latents(job) for job in jobs])).flatten(1).all(1).tolist()
    return [job for job, fine in zip(jobs, sound, strict=True) if not fine]


def _latents(job: ImageJob) -> torch.Tensor:
    assert job.latents is not None
    return job.latents


def _text(conditioning: Conditioning | None) -> Conditioning:
    assert conditioning is not None
    return conditioning
