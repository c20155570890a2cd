"""A small real image pipeline without a model, run in the real worker: `tests.fake_images:FakeImagePipeline`.

Each tick is one step of every image that is open. A picture is plain noise of its seed, on a ground whose colour the
prompt decides, or which the picture to start from has. Words of the prompt that start with "!" steer it:

    in prepare   !bad
    pacing       !step-ms=MS (every tick it is in)
    faults       !crash-step !die: in the request's second step, or the Nth with "=N"
"""

import io
import os
import random
import signal
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from PIL import Image, UnidentifiedImageError

from gateway.config.settings import ModelSettings
from pipelines.base import InvalidRequest, StepFailed, StepResult, Ticket
from pipelines.messages.frames import Done, Event, ModelSpec, Ready, Stats, StepReport, Timing, Usage
from pipelines.messages.image import Denoised, ImageOptions, ImageRequest, Picture, Preview

GRID = 8  # pixels
MAX_SIDE = 256
SIDE = 64  # where no size is asked for
STEPS = 4


def fake_image_model(name: str = "painter", *, images: int = 8, **settings: object) -> ModelSettings:
    """Settings of a model that the fake pipeline serves."""
    return ModelSettings(
        name=name,
        kind="image",
        pipeline="tests.fake_images:FakeImagePipeline",
        source="fake:",
        options=ImageOptions(max_images=images, max_steps=500),
        **settings,  # type: ignore[arg-type]
    )


@dataclass(slots=True)
class FakeImage:
    """One image that is being drawn."""

    ticket: Ticket
    request: ImageRequest
    index: int
    seed: int
    prompt_tokens: int
    ground: Image.Image
    directives: dict[str, str]
    prepared: float
    started: float = 0.0
    step: int = 0
    steps: int = field(default=STEPS)

    def number(self, directive: str, default: float = 0.0) -> float:
        return float(self.directives.get(directive) or default)

    @property
    def previews_at(self) -> list[int]:
        """After which steps a preview is told."""
        wanted = min(self.request.partial_images, self.steps - 1)
        return [(number + 1) * self.steps // (wanted + 1) for number in range(wanted)]

    def encode(self, done: float) -> bytes:
        """The picture with so much of its noise on it, in the format asked for."""
        noise = Image.frombytes("RGB", self.ground.size, random.Random(self.seed).randbytes(_bytes(self.ground)))
        file = io.BytesIO()
        quality = self.request.output_compression
        options = {} if quality is None else {"quality": quality}
        Image.blend(self.ground, noise, done / 2).save(file, self.request.output_format, **options)
        return file.getvalue()


class FakeImagePipeline:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._open: list[FakeImage] = []
        self._unfinished: dict[str, int] = {}

    @classmethod
    def load(cls, spec: ModelSpec[ImageOptions]) -> "tuple[FakeImagePipeline, Ready]":
        slots = spec.options.max_images
        return cls(slots), Ready(slots=slots, details={"device": "none"})

    # --- pool threads -------------------------------------------------------------------------------------------------

    def prepare(self, ticket: Ticket, request: ImageRequest) -> list[FakeImage]:
        words = [word[1:].partition("=") for word in request.prompt.split() if word.startswith("!")]
        directives = {name: value for name, _, value in words}
        if "bad" in directives:
            raise InvalidRequest("the prompt is no good", param="prompt")
        ground = _ground(request)
        first = request.seed if request.seed is not None else random.getrandbits(32)
        return [
            FakeImage(
                ticket=ticket,
                request=request,
                index=index,
                seed=first + index,
                prompt_tokens=len(request.prompt.split()) if index == 0 else 0,
                ground=ground,
                directives=directives,
                prepared=monotonic(),
                steps=request.steps or STEPS,
            )
            for index in range(request.n)
        ]

    def brief(self, request: ImageRequest) -> bool:
        return False

    def effort(self, request: ImageRequest) -> int:
        return len(request.prompt)

    def feed(self, ticket: Ticket, data: bytes) -> list[FakeImage]:
        raise InvalidRequest("an image is no stream")

    # --- engine thread ------------------------------------------------------------------------------------------------

    def admit(self, works: Sequence[FakeImage]) -> None:
        self._open += works
        for image in works:
            self._unfinished[image.ticket.id] = self._unfinished.get(image.ticket.id, 0) + 1

    def abort(self, request_id: str) -> None:
        self._unfinished.pop(request_id, None)
        self._open = [image for image in self._open if image.ticket.id != request_id]

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def step(self, only: str | None = None) -> StepResult:
        batch = [image for image in self._open if only is None or image.ticket.id == only]
        began = monotonic()
        for image in batch:
            self._strike(image, batch)
        time.sleep(max(image.number("step-ms") for image in batch) / 1e3)
        events: list[Event] = []
        for image in batch:
            image.started = image.started or began
            image.step += 1
            events += self._draw(image)
        return StepResult(events, StepReport("denoise", len(batch), 0, monotonic() - began))

    def stats(self) -> Stats:
        return Stats(running=len(self._open), waiting=0)

    def _strike(self, image: FakeImage, batch: list[FakeImage]) -> None:
        for fault in image.directives.keys() & {"crash-step", "die"}:
            if image.step + 1 == int(image.number(fault, 2)):
                if fault == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise StepFailed(dict.fromkeys(each.ticket.id for each in batch), RuntimeError("secret words"))

    def _draw(self, image: FakeImage) -> list[Event]:
        id, request = image.ticket.id, image.request
        width, height = image.ground.size
        events: list[Event] = []
        if request.progress:
            events.append(Denoised(id, image.index, image.step, image.steps))
        if image.step in image.previews_at:
            number = image.previews_at.index(image.step)
            events.append(Preview(id, image.index, number, width, height, image.encode(image.step / image.steps)))
        if image.step < image.steps:
            return events
        events.append(Picture(id, image.index, image.seed, width, height, image.encode(1.0)))
        self._open.remove(image)
        self._unfinished[id] -= 1
        if not self._unfinished[id]:
            del self._unfinished[id]
            now, received = monotonic(), image.ticket.received
            timing = Timing(
                prepare=image.prepared - received,
                queue=image.started - image.prepared,
                compute=now - image.started,
                total=now - received,
            )
            events.append(Done(id, Usage(len(request.prompt.split()), request.n), timing))
        return events


def _ground(request: ImageRequest) -> Image.Image:
    if request.image is None:
        width, height = request.width or SIDE, request.height or SIDE
        if width % GRID or height % GRID or max(width, height) > MAX_SIDE:
            raise InvalidRequest(f"'size' must be multiples of {GRID} pixels up to {MAX_SIDE}.", param="size")
        said = request.prompt + request.negative_prompt + str((request.guidance_scale, request.scheduler))
        return Image.new("RGB", (width, height), tuple(zlib.crc32(said.encode()).to_bytes(4)[:3]))
    pictures = {name: _opened(path, name) for name in ("image", "mask") if (path := getattr(request, name))}
    ground = pictures["image"].convert("RGB")
    if "mask" in pictures:
        if pictures["mask"].size != ground.size:
            raise InvalidRequest("'mask' must have the size of 'image'.", param="mask")
        # What is kept is shown, what is drawn anew is black: enough to see that the mask came.
        ground = Image.composite(ground, Image.new("RGB", ground.size), pictures["mask"].convert("RGBA").split()[3])
    if request.strength is not None:
        ground = Image.blend(ground, Image.new("RGB", ground.size, "white"), request.strength)
    return ground


def _opened(path: str, name: str) -> Image.Image:
    try:
        with Image.open(path) as picture:
            picture.load()
            return picture.copy()
    except UnidentifiedImageError:
        raise InvalidRequest(f"{name!r} is no picture.", param=name) from None


def _bytes(of: Image.Image) -> int:
    return of.width * of.height * 3
