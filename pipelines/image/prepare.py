"""A request to jobs that can be started: validated, tokenised, decoded, each image with a scheduler of its own."""

from time import monotonic

import torch

from models.diffusion.family import Family, Size
from models.diffusion.noise import NoiseScheduler, UnknownScheduler
from models.diffusion.text import PromptTooLong, Tokens
from pipelines.base import InvalidRequest, Ticket
from pipelines.effort import of_file
from pipelines.image.job import BRIEF_STEPS, ImageJob, Order, Output, Source
from pipelines.image.uploads import load_mask, load_picture
from pipelines.image.validation import Settings, settle
from pipelines.media.decoder import MediaDecoder
from pipelines.messages.image import ImageOptions, ImageRequest


class Preparer:
    """Runs on any thread."""

    def __init__(self, family: Family, options: ImageOptions) -> None:
        self._family = family
        self._options = options
        self._media = MediaDecoder()

    def prepare(self, ticket: Ticket, request: ImageRequest) -> list[ImageJob]:
        """Raises InvalidRequest."""
        settings = settle(request, self._family, self._options)
        prompt = self._tokenise(request.prompt, "prompt")
        negative = self._negative(request, settings)
        written = negative.count if negative is not None and request.negative_prompt.strip() else 0
        order = Order(
            ticket=ticket,
            size=settings.size,
            guidance=settings.guidance,
            guided=settings.guided,
            prompt=prompt,
            negative=negative,
            prompt_tokens=prompt.count + written,
            output=Output(request.output_format, request.output_compression, request.partial_images, request.progress),
            source=self._source(request, settings),
            left=request.n,
        )
        for index in range(request.n):
            seed = settings.seed + index
            generator = torch.Generator("cpu").manual_seed(seed)
            noise = self._noise(request, settings)
            brief = noise.steps <= BRIEF_STEPS and ticket.priority == "interactive"
            order.jobs.append(ImageJob(order, index, seed, noise, generator, brief))
        order.prepared = monotonic()
        return order.jobs

    def _tokenise(self, text: str, param: str) -> Tokens:
        try:
            return self._family.tokenise(text)
        except PromptTooLong as error:
            raise InvalidRequest(f"{param!r} is too long: {error}", param, code="context_length_exceeded") from None

    def _negative(self, request: ImageRequest, settings: Settings) -> Tokens | None:
        if not settings.guided or (not request.negative_prompt.strip() and self._family.empty_is_zero):
            return None
        return self._tokenise(request.negative_prompt, "negative_prompt")

    def _source(self, request: ImageRequest, settings: Settings) -> Source | None:
        if request.image is None:
            return None
        size: Size = settings.size
        _, height, width = self._family.latent_shape(size)
        picture = load_picture(self._media.picture, request.image, size, (height, width))
        mask = picture.mask  # where none is given, a picture's own transparency is one
        if request.mask is not None:
            mask = load_mask(self._media.picture, request.mask, picture.upload, size, (height, width))
        return Source(picture.pixels, mask, settings.strength)

    def _noise(self, request: ImageRequest, settings: Settings) -> NoiseScheduler:
        try:
            return self._family.schedulers.new(
                request.scheduler, settings.steps, skip=settings.skip, tokens=self._family.tokens(settings.size)
            )
        except UnknownScheduler as error:
            raise InvalidRequest(f"'scheduler': {error}", "scheduler") from None
        except (ValueError, ArithmeticError, IndexError) as error:  # each has its own limits, and says so
            message = f"'num_inference_steps': this scheduler can't do {settings.steps} steps: {error}"
            raise InvalidRequest(message, "num_inference_steps") from None


def effort(request: ImageRequest) -> int:
    """How much there is to prepare, in the unit of `pipelines.effort`."""
    files = sum(of_file(path) for path in (request.image, request.mask) if path is not None)
    return len(request.prompt) + len(request.negative_prompt) + files
