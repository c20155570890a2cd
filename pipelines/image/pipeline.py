"""The image pipeline: a step encodes texts, runs the denoiser once over a batch of images, or decodes latents.

Between two denoiser calls there is at most one step of each other kind, so nobody's encoding and nobody's decoding
stalls the images that are on their way.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

import torch

from metrics.definitions.common import DEVICE_MEMORY
from metrics.definitions.image import IMAGE_BATCH_ROWS
from metrics.metric import GaugeSeries
from models.device import available_cpus
from models.diffusion.family import Family
from models.diffusion.loading import load_family
from models.errors import ModelLoadError
from models.files.source import resolve
from pipelines.base import InvalidRequest, ModelError, StepFailed, StepResult, Ticket, non_finite
from pipelines.image import denoise
from pipelines.image.batching import DenoiseQueue
from pipelines.image.files import File, FileWriter, to_bytes
from pipelines.image.job import ImageJob, Order
from pipelines.image.prepare import Preparer, effort
from pipelines.image.rows import RowCap, measure
from pipelines.messages.frames import Event, Failed, ModelSpec, Ready, Stats, StepReport
from pipelines.messages.image import Denoised, ImageOptions, ImageRequest, Picture, Preview

log = logging.getLogger(__name__)

TEXTS = 16  # encoded at once
DECODED_PIXELS = 512 * 512  # decoded at once, or one image: what others wait for
POLL_S = 0.01  # how long a step with nothing but files to wait for lasts

Stage = Callable[[str | None], StepResult | None]


class ImagePipeline:
    def __init__(self, family: Family, options: ImageOptions, cap: RowCap) -> None:
        self._family = family
        self._cap = cap
        self._preparer = Preparer(family, options)
        self._orders: dict[str, Order] = {}  # all that are open
        self._waiting: list[Order] = []  # for their texts to be encoded
        self._queue = DenoiseQueue()
        self._latent: deque[ImageJob] = deque()  # denoised, not decoded
        self._files = FileWriter()
        self._stages: tuple[Stage, ...] = (self._encode, self._denoise, self._decode)
        self._next = 0  # the stage that is tried first

    @classmethod
    def load(cls, spec: ModelSpec[ImageOptions]) -> "tuple[ImagePipeline, Ready]":
        if spec.quantization not in (None, "none"):
            raise ModelError(f"quantization {spec.quantization!r} is not supported for image models")
        torch.set_num_threads(spec.threads or available_cpus())
        try:
            family = load_family(resolve(spec.source), device=spec.device, dtype=spec.dtype)
        except ModelLoadError as error:
            raise ModelError(str(error)) from error
        cap = measure(family, spec.options.max_batch)
        pipeline = cls(family, spec.options, cap)
        return pipeline, Ready(
            slots=spec.options.max_images, context_length=family.max_tokens, details=_details(family, spec.options, cap)
        )

    # --- pool threads -------------------------------------------------------------------------------------------------

    def prepare(self, ticket: Ticket, request: ImageRequest) -> list[ImageJob]:
        return self._preparer.prepare(ticket, request)

    def brief(self, request: ImageRequest) -> bool:
        """Tokenising and schedules take milliseconds, pictures more."""
        return False

    def effort(self, request: ImageRequest) -> int:
        return effort(request)

    def feed(self, ticket: Ticket, data: bytes) -> list[ImageJob]:
        raise InvalidRequest("an image request takes no further input")

    # --- engine thread ------------------------------------------------------------------------------------------------

    def admit(self, works: Sequence[ImageJob]) -> None:
        order = works[0].order
        self._orders[order.id] = order
        self._waiting.append(order)
        self._waiting.sort(key=lambda each: each.ticket.priority == "batch")  # stable: else in order of arrival

    def abort(self, request_id: str) -> None:
        self._forget(request_id)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or len(self._queue) or self._latent or len(self._files))

    @torch.inference_mode()
    def step(self, only: str | None = None) -> StepResult:
        result = StepResult()
        for offset in range(len(self._stages)):
            stage = (self._next + offset) % len(self._stages)
            done = self._stages[stage](only)
            if done is not None:
                self._next = (stage + 1) % len(self._stages)
                result = done
                break
        else:
            self._files.wait(POLL_S)
        return StepResult([*result.events, *self._delivered()], result.report)

    def stats(self) -> Stats:
        running = len(self._queue) + len(self._latent)
        gauges: dict[GaugeSeries, float] = {IMAGE_BATCH_ROWS.series(): self._cap.rows}
        if self._family.checkpoint.device.type == "cuda":
            gauges[DEVICE_MEMORY.series()] = torch.cuda.memory_reserved(self._family.checkpoint.device)
        return Stats(running, waiting=sum(len(order.jobs) for order in self._waiting), gauges=gauges)

    # --- the stages: None where there is nothing to do ----------------------------------------------------------------

    def _encode(self, only: str | None) -> StepResult | None:
        """The texts of those that wait, and one picture at most."""
        orders = self._take_waiting(only)
        if not orders:
            return None
        began = monotonic()
        texts = [text for order in orders for text in order.texts]
        try:
            encoded = iter(self._family.encode(texts))
            sources = [
                None if order.source is None else self._family.autoencoder.encode(order.source.pixels)
                for order in orders
            ]
        except Exception as error:
            raise StepFailed([order.id for order in orders], error) from error
        for order, source in zip(orders, sources, strict=True):
            self._waiting.remove(order)
            order.started = began
            order.conditional = next(encoded)
            if order.guided:
                order.unconditional = order.conditional.zeros() if order.negative is None else next(encoded)
            for job in order.jobs:
                denoise.begin(self._family, job, source)
                self._queue.add(job)
        tokens = sum(order.prompt_tokens for order in orders)
        return StepResult(report=StepReport("encode", len(texts), tokens, monotonic() - began))

    def _take_waiting(self, only: str | None) -> list[Order]:
        taken: list[Order] = []
        texts = pictures = 0
        for order in self._waiting:
            if only is not None and order.id != only:
                continue
            texts += len(order.texts)
            pictures += order.source is not None
            if taken and (texts > TEXTS or pictures > 1):
                break
            taken.append(order)
        return taken

    def _denoise(self, only: str | None) -> StepResult | None:
        began = monotonic()
        if self._queue.brief:
            self._cap.brief(began)
        batch = self._queue.take(partial(self._max_rows, began), only)
        if not batch:
            return None
        try:
            outputs = denoise.predict(self._family, batch)
        except Exception as error:
            raise StepFailed(dict.fromkeys(job.order.id for job in batch), error) from error
        self._queue.served(batch)
        events: list[Event] = []
        stepped: list[ImageJob] = []
        for job, output in zip(batch, outputs, strict=True):
            try:
                denoise.advance(job, output)
            except Exception:
                log.exception("the noise scheduler of request %s failed", job.order.id)
                what = "the noise scheduler could not do this step"
                events += self._end(job.order, Failed(job.order.id, "internal_error", what))
            else:
                stepped.append(job)
        for job in denoise.broken(stepped) if stepped else ():
            events += self._end(job.order, non_finite(job.order.id, f" for image {job.index} after step {job.at}"))
        seconds = monotonic() - began
        self._cap.observe(sum(job.work for job in batch), seconds)
        for job in stepped:
            if not job.order.gone:
                events += self._after_step(job)
        return StepResult(events, StepReport("denoise", sum(job.rows for job in batch), 0, seconds))

    def _max_rows(self, now: float, lead: ImageJob) -> int:
        return self._cap.of(lead.work // lead.rows, now, brief=lead.brief)

    def _after_step(self, job: ImageJob) -> list[Event]:
        order = job.order
        due = job.previews_due()
        if due and job.aim is not None:
            looked = self._family.autoencoder.preview(job.aim, order.size.height, order.size.width)
            for number in due:
                self._files.put(job, to_bytes(looked)[0], number)
        if job.finished:
            self._queue.remove(job)
            self._latent.append(job)
        return [Denoised(order.id, job.index, job.at, job.noise.steps)] if order.output.progress else []

    def _decode(self, only: str | None) -> StepResult | None:
        batch = self._take_latent(only)
        if not batch:
            return None
        began = monotonic()
        try:
            latents = torch.cat([job.latents for job in batch if job.latents is not None])
            pixels = self._family.autoencoder.decode(latents)
            sound = torch.isfinite(pixels).flatten(1).all(1).tolist()
            pictures = to_bytes(torch.nan_to_num(pixels))
        except Exception as error:
            raise StepFailed(dict.fromkeys(job.order.id for job in batch), error) from error
        events: list[Event] = []
        for job, picture, fine in zip(batch, pictures, sound, strict=True):
            self._latent.remove(job)
            if not fine:
                events += self._end(job.order, non_finite(job.order.id, f" for image {job.index}"))
            elif not job.order.gone:
                self._files.put(job, picture)
        return StepResult(events, StepReport("decode", len(batch), 0, monotonic() - began))

    def _take_latent(self, only: str | None) -> list[ImageJob]:
        """The oldest, and others of its size while they are no more pixels than others may wait for."""
        batch: list[ImageJob] = []
        pixels = 0
        for job in self._latent:
            size = job.order.size
            if (only is not None and job.order.id != only) or (batch and size != batch[0].order.size):
                continue
            pixels += size.width * size.height
            if batch and pixels > DECODED_PIXELS:
                break
            batch.append(job)
        return batch

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _delivered(self) -> list[Event]:
        """What the files that are written say; the last picture of a request ends it."""
        events: list[Event] = []
        for file in self._files.finished():
            order = file.job.order
            if order.gone:
                continue
            if file.error is not None:
                log.error("a picture of request %s could not be written", order.id, exc_info=file.error)
                what = f"the picture could not be written: {file.error}"
                events += self._end(order, Failed(order.id, "internal_error", what))
                continue
            events.append(_told(file))
            if file.number is None:
                order.left -= 1
                if order.left == 0:
                    events.append(order.done(monotonic()))
                    self._forget(order.id)
        return events

    def _end(self, order: Order, failure: Failed) -> list[Event]:
        """Once for a request, whatever becomes of its other images."""
        return [] if self._forget(order.id) is None else [failure]

    def _forget(self, request_id: str) -> Order | None:
        order = self._orders.pop(request_id, None)
        if order is None:
            return None
        order.gone = True
        order.jobs = []  # they hold it, too: what an image had in memory goes now, not when cycles are collected
        if order in self._waiting:
            self._waiting.remove(order)
        self._queue.drop(request_id)
        self._latent = deque(job for job in self._latent if job.order is not order)
        return order


def _told(file: File) -> Picture | Preview:
    job = file.job
    size = job.order.size
    if file.number is None:
        return Picture(job.order.id, job.index, job.seed, size.width, size.height, file.data)
    return Preview(job.order.id, job.index, file.number, size.width, size.height, file.data)


def _details(family: Family, options: ImageOptions, cap: RowCap) -> dict[str, str]:
    defaults = family.defaults
    return {
        "device": str(family.checkpoint.device),
        "dtype": str(family.checkpoint.dtype).removeprefix("torch."),
        "family": type(family).__name__,
        "scheduler": family.schedulers.class_name,
        "schedulers": ", ".join(family.schedulers.names),
        "size": f"{defaults.width}x{defaults.height}",
        "steps": str(options.default_steps or defaults.steps),
        "guidance": f"{defaults.guidance if options.default_guidance is None else options.default_guidance:g}",
        "edits": "yes" if family.edits else "no",
        "max_batch": str(cap.rows),
    }
