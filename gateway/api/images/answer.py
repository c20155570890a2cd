"""`POST /v1/images/generations` and `/v1/images/edits`: the answers."""

import time
from base64 import b64encode
from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.api.answer import Timing, timing
from gateway.http import sse
from gateway.uploads.gallery import Gallery
from metrics.timeline import Phases
from pipelines.messages import frames
from pipelines.messages.base import Said
from pipelines.messages.frames import Done
from pipelines.messages.image import Denoised, OutputFormat, Picture, Preview

T = TypeVar("T")
EventPrefix = Literal["image_generation", "image_edit"]


class TokensDetails(Struct, frozen=True):
    text_tokens: int
    image_tokens: int


class ImageUsage(Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: TokensDetails
    output_tokens_details: TokensDetails


class ImageItem(Struct, frozen=True):
    seed: int  # ours: with it, the image can be drawn again alone
    b64_json: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    revised_prompt: None = None  # prompts are taken as they are


class ImageList(Struct, frozen=True):
    """What is written of an ImagesBody."""

    created: int
    data: list[ImageItem]
    size: str
    output_format: OutputFormat
    usage: ImageUsage


class ImagesBody(Struct, frozen=True):
    created: int  # seconds since 1970
    data: list[Raw]  # each an ImageItem
    size: str
    output_format: OutputFormat
    usage: ImageUsage


class PartialImage(Struct, frozen=True):
    type: str
    b64_json: str
    partial_image_index: int
    created_at: int
    size: str
    output_format: OutputFormat
    quality: str = "auto"
    background: str = "opaque"


class CompletedImage(Struct, frozen=True):
    type: str
    b64_json: str
    created_at: int
    size: str
    output_format: OutputFormat
    seed: int
    usage: ImageUsage
    timing: Timing
    quality: str = "auto"
    background: str = "opaque"


class Progress(Struct, frozen=True):
    """Ours: step `step` of `steps` is done."""

    type: str
    step: int
    steps: int


class ImagesAnswer:
    """One body with the pictures in it. Each is encoded as it comes: the last is not followed by the work of all."""

    streamed = False

    def __init__(self, images: int, format: OutputFormat) -> None:
        self._items: list[Raw | None] = [None] * images
        self._format: OutputFormat = format
        self._size = ""

    def render(self, event: Said) -> bytes:
        if isinstance(event, Picture):
            self._items[event.index] = Raw(_encode(ImageItem(event.seed, b64_json=_base64(event.data))))
            self._size = _size(event)
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        return _body(_whole(self._items), self._size, self._format, done)


class AddressesAnswer:
    """One body with addresses of the pictures, which `settle` puts into the gallery."""

    streamed = False

    def __init__(self, images: int, format: OutputFormat, gallery: Gallery, address: str) -> None:
        self._pictures: list[Picture | None] = [None] * images
        self._names: list[str] = []
        self._format: OutputFormat = format
        self._gallery = gallery
        self._address = address  # to which a picture's name is added

    def render(self, event: Said) -> bytes:
        if isinstance(event, Picture):
            self._pictures[event.index] = event
        return b""

    async def settle(self) -> None:
        """See `gateway.requests.dispatch.Settling`."""
        self._names = await self._gallery.keep([each.data for each in _whole(self._pictures)], self._format)

    def finish(self, done: Done, spent: Phases) -> bytes:
        pictures = _whole(self._pictures)
        items = [
            Raw(_encode(ImageItem(picture.seed, url=self._address + name)))
            for picture, name in zip(pictures, self._names, strict=True)
        ]
        return _body(items, _size(pictures[0]), self._format, done)


class ImageStream:
    """Server-sent events of one image: previews, steps where they are asked for, the picture; no `[DONE]`."""

    streamed = True

    def __init__(self, prefix: EventPrefix, format: OutputFormat, *, progress: bool) -> None:
        self._prefix = prefix
        self._format: OutputFormat = format
        self._progress = progress
        self._picture: Picture | None = None

    def render(self, event: Said) -> bytes:
        match event:
            case Preview(number=number, data=data):
                name = f"{self._prefix}.partial_image"
                partial = PartialImage(name, _base64(data), number, int(time.time()), _size(event), self._format)
                return sse.named_frame(name, partial)
            case Denoised(step=step, steps=steps) if self._progress:
                name = f"{self._prefix}.progress"
                return sse.named_frame(name, Progress(name, step, steps))
            case Picture():
                self._picture = event
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        (picture,) = _whole([self._picture])
        name = f"{self._prefix}.completed"
        completed = CompletedImage(
            name,
            _base64(picture.data),
            int(time.time()),
            _size(picture),
            self._format,
            picture.seed,
            _usage(done.usage),
            timing(spent),
        )
        return sse.named_frame(name, completed)


_encode = msgspec.json.Encoder().encode


def _whole(found: Sequence[T | None]) -> list[T]:
    """All of them. Raises RuntimeError where the model ended before it had made one."""
    made = [each for each in found if each is not None]
    if len(made) < len(found):
        raise RuntimeError(f"the model ended with {len(made)} of {len(found)} pictures")
    return made


def _body(items: list[Raw], size: str, format: OutputFormat, done: Done) -> bytes:
    return _encode(ImagesBody(int(time.time()), items, size, format, _usage(done.usage)))


def _usage(of: frames.Usage) -> ImageUsage:
    read, made = of.prompt_tokens, of.completion_tokens
    return ImageUsage(read, made, read + made, TokensDetails(read, 0), TokensDetails(0, made))


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _size(of: Picture | Preview) -> str:
    return f"{of.width}x{of.height}"
