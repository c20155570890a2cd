"""What the gateway and an image worker say to each other."""

from typing import Annotated, Literal

from msgspec import Meta

from metrics.timeline import Timeline
from pipelines.messages.base import Count, Options, Request, Said

OutputFormat = Literal["png", "jpeg", "webp"]
SchedulerName = Literal["ddim", "euler", "euler_a", "dpmpp_2m", "dpmpp_2m_karras", "unipc", "lcm", "flow_match_euler"]

MAX_IMAGES = 10  # of one request
MAX_PROMPT = 32_000  # characters: what is longer is not worth counting its tokens

ImageCount = Annotated[int, Meta(ge=1, le=MAX_IMAGES)]
ImagePrompt = Annotated[str, Meta(max_length=MAX_PROMPT)]
EdgeLength = Annotated[int, Meta(ge=1, le=99_999)]  # pixels
ImageSeed = Annotated[int, Meta(ge=0, le=2**53 - MAX_IMAGES)]  # that of each image is exact in every reader of JSON
Steps = Annotated[int, Meta(ge=1)]
Guidance = Annotated[float, Meta(ge=0, le=100)]
Strength = Annotated[float, Meta(gt=0, le=1)]
Previews = Annotated[int, Meta(ge=0, le=3)]
Compression = Annotated[int, Meta(ge=0, le=100)]


class ImageOptions(Options, frozen=True, kw_only=True):
    """The `[models.image]` table of an image model. None: chosen at start from the model and the machine."""

    max_batch: Count | None = None  # rows of one denoiser call, unconditional ones included; None: found by measurement
    max_images: Count = 32  # images open at once
    max_steps: Count = 150  # of one image
    max_pixels: Count = 4_194_304  # of one image
    default_steps: Count | None = None  # None: as the model's card or family has it
    default_guidance: Guidance | None = None

    def conflict(self) -> tuple[str, str] | None:
        if self.default_steps is not None and self.default_steps > self.max_steps:
            return "default_steps", f"is more than max_steps, {self.max_steps}"
        return None


# --- requests ---------------------------------------------------------------------------------------------------------


class ImageRequest(Request, frozen=True, kw_only=True, omit_defaults=True, tag="image_generation"):
    """`n` images of one prompt; image k is what one image with `seed + k` would be. None: the model's default."""

    prompt: ImagePrompt
    negative_prompt: ImagePrompt = ""
    n: ImageCount = 1
    width: EdgeLength | None = None
    height: EdgeLength | None = None
    nearest: bool = False  # where the model can't draw that size, draw the nearest; else it is refused
    seed: ImageSeed | None = None  # None: chosen, and told with each picture
    steps: Steps | None = None
    guidance_scale: Guidance | None = None
    scheduler: SchedulerName | None = None
    partial_images: Previews = 0  # previews of each image, spread over its steps
    progress: bool = False  # whether each step is told
    output_format: OutputFormat = "png"
    output_compression: Compression | None = None  # quality of jpeg and webp; None: the format's usual
    image: str | None = None  # a file in the spool to start from
    mask: str | None = None  # a file in the spool: where it is transparent, `image` is drawn anew
    strength: Strength | None = None  # how far from `image`; None: 0.8


# --- events -----------------------------------------------------------------------------------------------------------


class Picture(Said, frozen=True, tag="picture"):
    """A finished image, encoded in the format that was asked for."""

    index: int
    seed: int
    width: int
    height: int
    data: bytes

    def stamp(self, timeline: Timeline, received: float) -> None:
        timeline.pictures += 1


class Preview(Said, frozen=True, tag="preview"):
    """What an image looks like so far, at its full size, in the format that was asked for."""

    index: int
    number: int  # 0 … partial_images - 1
    width: int
    height: int
    data: bytes

    def stamp(self, timeline: Timeline, received: float) -> None:
        timeline.first_preview = timeline.first_preview or received


class Denoised(Said, frozen=True, tag="denoised"):
    """Step `step` of `steps` of an image is done. Told where the request asked for it."""

    index: int
    step: int  # 1 … steps
    steps: int

    def stamp(self, timeline: Timeline, received: float) -> None:
        timeline.image_steps += 1


ImageEvent = Picture | Preview | Denoised
