"""Whether a request fits the model and the operator's limits, and what stands where it says nothing."""

import math
import random
from dataclasses import dataclass

from models.diffusion.family import MAX_EDGE, Family, Size
from pipelines.base import InvalidRequest
from pipelines.messages.image import ImageOptions, ImageRequest

MAX_IMAGES = 10
MAX_PREVIEWS = 3
MAX_PROMPT = 32_000  # characters: what is longer is not worth counting its tokens
MAX_GUIDANCE = 100.0
MAX_SEED = 2**63 - 1  # of the last image
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
    _check_prompts(request)
    _between("n", request.n, 1, min(MAX_IMAGES, options.max_images))
    _between("partial_images", request.partial_images, 0, MAX_PREVIEWS)
    _check_compression(request)
    _check_edit(request, family)
    steps = request.steps or options.default_steps or family.defaults.steps
    if request.steps is not None:
        _between("num_inference_steps", request.steps, 1, options.max_steps)
    steps = min(steps, options.max_steps)
    strength = STRENGTH if request.strength is None else request.strength
    skip = 0
    if request.image is not None:
        skip = steps - min(int(steps * strength), steps)
        if skip == steps:
            raise InvalidRequest(
                f"with 'strength' {strength} not one of the {steps} steps is left to do; raise it, or the steps",
                "strength",
            )
    guidance = _guidance(request, family, options)
    guided = family.takes_negative and guidance > 1
    if request.negative_prompt.strip() and not guided:
        why = "'guidance_scale' is not above 1" if family.takes_negative else "this model has no use for one"
        raise InvalidRequest(f"'negative_prompt' would have no effect, since {why}", "negative_prompt")
    return Settings(_size(request, family, options), steps, skip, guidance, guided, _seed(request), strength)


def _check_prompts(request: ImageRequest) -> None:
    if not request.prompt.strip():
        raise InvalidRequest("'prompt' is empty; say what to draw", "prompt")
    for name, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
        if len(text) > MAX_PROMPT:
            raise InvalidRequest(f"{name!r} has {len(text)} characters, more than {MAX_PROMPT}", name)


def _check_compression(request: ImageRequest) -> None:
    compression = request.output_compression
    if compression is None:
        return
    _between("output_compression", compression, 0, 100)
    if request.output_format == "png" and compression != 100:
        raise InvalidRequest(
            "'output_compression' is the quality of jpeg and webp; png loses nothing", "output_compression"
        )


def _check_edit(request: ImageRequest, family: Family) -> None:
    if request.image is None:
        for name, value in (("mask", request.mask), ("strength", request.strength)):
            if value is not None:
                raise InvalidRequest(f"{name!r} needs an 'image' to start from", name)
        return
    if not family.edits:
        raise InvalidRequest("this model can't start from an image; it draws from a prompt alone", "image")
    strength = request.strength
    if strength is not None and not (math.isfinite(strength) and 0 < strength <= 1):
        raise InvalidRequest(f"'strength' is above 0 and at most 1, not {strength}", "strength")


def _guidance(request: ImageRequest, family: Family, options: ImageOptions) -> float:
    asked = request.guidance_scale
    if asked is None:
        return family.defaults.guidance if options.default_guidance is None else options.default_guidance
    if not (math.isfinite(asked) and 0 <= asked <= MAX_GUIDANCE):
        raise InvalidRequest(f"'guidance_scale' is between 0 and {MAX_GUIDANCE:g}, not {asked}", "guidance_scale")
    if asked > 1 and not family.takes_guidance:
        raise InvalidRequest("'guidance_scale' would have no effect on this model; leave it out", "guidance_scale")
    return asked


def _size(request: ImageRequest, family: Family, options: ImageOptions) -> Size:
    defaults = family.defaults
    size = Size(request.width or defaults.width, request.height or defaults.height)
    if request.width == 0 or request.height == 0 or min(size.width, size.height) < 0:
        raise InvalidRequest(f"'size' has positive edges, not {request.width}x{request.height}", "size")
    most = min(options.max_pixels, defaults.max_pixels or options.max_pixels)
    nearest = family.nearest(size, most)
    if nearest != size and not request.nearest:
        raise InvalidRequest(
            f"'size' {size} is not possible: edges are multiples of {family.grid}, from {family.least} to {MAX_EDGE} "
            f"pixels, and an image has at most {most} pixels; the nearest is {nearest}",
            "size",
        )
    return nearest


def _seed(request: ImageRequest) -> int:
    if request.seed is None:
        return random.randrange(CHOSEN_SEEDS)
    _between("seed", request.seed, 0, MAX_SEED - request.n)
    return request.seed


def _between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{name!r} is between {least} and {most}, not {value}", name)
