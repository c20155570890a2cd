"""From encoded pictures to the images of a prompt, on a thread of the prepare pool."""

import logging
import threading
from collections.abc import Sequence
from time import monotonic

from models.errors import ModelLoadError
from models.vision.image import ImageProcessor, PreparedImage
from models.vision.vision import PlacedImage, Vision
from pipelines.base import InvalidRequest
from pipelines.media.messages import PictureJob
from pipelines.media.pictures import DecodePicture
from pipelines.messages.text import Detail, ImagePart
from pipelines.text.vision.prompt_images import PromptImages

log = logging.getLogger(__name__)

UNAVAILABLE = "The model's image processor can't be loaded; the server's log says why."


class ImagePreparer:
    """Shared by the threads of the pool."""

    def __init__(
        self, vision: Vision, spelled: str, decode: DecodePicture, *, max_images: int, max_pixels: int | None
    ) -> None:
        """`spelled`: the placeholder. `max_images`: of a prompt. `max_pixels`: of one image, as its header has them."""
        self.placeholder = vision.placeholder
        self._vision = vision
        self._spelled = spelled
        self._decode = decode
        self._max_images = max_images
        self._max_pixels = max_pixels
        self._processor: ImageProcessor | None = None
        self._lock = threading.Lock()

    def load(self) -> ImageProcessor:
        """The processor; loaded at the first call. Raises ModelLoadError."""
        with self._lock:
            if self._processor is None:
                self._processor = self._vision.load_processor()
            return self._processor

    def spaced(self, text: str) -> str:
        """A rendered prompt with what the model's processor writes around each placeholder."""
        before, behind = self._vision.around
        return text.replace(self._spelled, before + self._spelled + behind) if before or behind else text

    def require_few(self, parts: Sequence[ImagePart]) -> None:
        """Raises InvalidRequest where there are more than a prompt may show."""
        if len(parts) > self._max_images:
            message = f"a request may show {self._max_images} images, and this one shows {len(parts)}"
            raise InvalidRequest(message, parts[self._max_images].field or "messages")

    def show(
        self, ids: Sequence[int], parts: Sequence[ImagePart], salt: str, *, limit: int, param: str
    ) -> tuple[list[int], PromptImages]:
        """The prompt with each placeholder replaced by the tokens of its image, of which there are as many.

        `limit`: tokens that the context holds; `param`: what the caller calls the prompt. Raises InvalidRequest.
        """
        began = monotonic()
        images = self._prepare(parts, limit - len(ids), param)
        prompt: list[int] = []
        placed: list[PlacedImage] = []
        behind = 0  # the last placeholder
        for image in images:
            place = ids.index(self.placeholder, behind)
            prompt.extend(ids[behind:place])
            placed.append(PlacedImage(len(prompt), image))
            prompt.extend(image.tokens)
            behind = place + 1
        prompt.extend(ids[behind:])
        positions, delta = self._vision.positions(prompt, placed) if self._vision.positions else (None, 0)
        shown = PromptImages(
            placed,
            salt,
            bidirectional=self._vision.bidirectional,
            positions=positions,
            delta=delta,
            seconds=monotonic() - began,
        )
        return prompt, shown

    def _prepare(self, parts: Sequence[ImagePart], room: int, param: str) -> list[PreparedImage]:
        """`room`: tokens beside those of the text. Raises InvalidRequest."""
        made: dict[tuple[bytes, Detail], PreparedImage] = {}
        images: list[PreparedImage] = []
        for number, part in enumerate(parts, 1):
            key = part.data, part.detail
            if key not in made:
                made[key] = self._one(part)
            images.append(made[key])
            tokens = sum(len(image.tokens) for image in images)
            if tokens - number > room:  # each takes the place of its placeholder
                those = "its images take" if number == len(parts) else f"the first {number} of its images take"
                raise InvalidRequest(
                    f"the context has room for {room + len(parts)} tokens beside the prompt's text; {those} {tokens}",
                    param,
                    "context_length_exceeded",
                )
        return images

    def _one(self, part: ImagePart) -> PreparedImage:
        param = part.field or "messages"
        job = PictureJob(data=part.data, param=param, background="white", max_pixels=self._max_pixels)
        picture = self._decode(job)
        try:
            return self.load().prepare(picture.rgb, part.detail)
        except ModelLoadError as error:
            log.error("the image processor can't be loaded, so no image can be looked at: %s", error)
            raise InvalidRequest(UNAVAILABLE, None, "model_unavailable") from error
        except ValueError as error:
            raise InvalidRequest(f"{param!r} can't be looked at by this model: {error}", param) from error
