"""Whether a request fits the model, and what stands where it says nothing."""

import random
from dataclasses import dataclass

from models.diffusion.family import MAX_EDGE, Family, Size
from pipelines.base import InvalidRequest
from pipelines.messages.image import ImageOptions, ImageRequest

CHOSEN_SEEDS = 2**31
STRENGTH = 0.8


@dataclass(frozen=True, slots=True)
class Settings:
    size: Size
    steps: int  # of the whole way from noise
    skip: int  # of them, where a picture to start from is that far already
    guidance: float
    guided: bool
    seed: int
    strength: float


def settle(request: ImageRequest, family: Family, options: ImageOptions) -> Settings:
    """Raises InvalidRequest."""
    if request.image is not None and not family.edits:
        raise InvalidRequest("this model can't start from an image; it draws from a prompt alone", "image")
    steps = request.steps or min(options.default_steps or family.defaults.steps, options.max_steps)
    strength = STRENGTH if request.strength is None else request.strength
    skip = 0
    if request.image is not None:
        skip = steps - min(int(steps * strength), steps)
        if skip == steps:
            raise InvalidRequest(
                f"with 'strength' {strength} not one of the {steps} steps is left to do; raise it, or the steps",
                "strength",
            )
    seed = random.randrange(CHOSEN_SEEDS) if request.seed is None else request.seed
    guidance = _guidance(request, family, options)
    guided = family.takes_negative and guidance > 1
    if request.negative_prompt.strip() and not guided:
        why = "'guidance_scale' is not above 1" if family.takes_negative else "this model has no use for one"
        raise InvalidRequest(f"'negative_prompt' would have no effect, since {why}", "negative_prompt")
    return Settings(_size(request, family, options), steps, skip, guidance, guided, seed, strength)


def _guidance(request: ImageRequest, family: Family, options: ImageOptions) -> float:
    asked = request.guidance_scale
    if asked is None:
        return family.defaults.guidance if options.default_guidance is None else options.default_guidance
    if asked > 1 and not family.takes_guidance:
        raise InvalidRequest("'guidance_scale' would have no effect on this model; leave it out", "guidance_scale")
    return asked


def _size(request: ImageRequest, family: Family, options: ImageOptions) -> Size:
    defaults = family.defaults
    size = Size(request.width or defaults.width, request.height or defaults.height)
    most = min(options.max_pixels, defaults.max_pixels or options.max_pixels)
    nearest = family.nearest(size, most)
    if nearest != size and not request.nearest:
        raise InvalidRequest(
            f"'size' {size} is not possible: edges are multiples of {family.grid}, from {family.least} to {MAX_EDGE} "
            f"pixels, and an image has at most {most} pixels; the nearest is {nearest}",
            "size",
        )
    return nearest
