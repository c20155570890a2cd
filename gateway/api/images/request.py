"""`POST /v1/images/generations` and `/v1/images/edits`: the requests."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, ValidationError

from gateway.api.forms import single
from gateway.api.text.sampling import unsupported
from gateway.api.texts import NOT_EMPTY
from gateway.errors import bad_request, validation_error
from pipelines.messages.image import (
    Compression,
    Guidance,
    ImageCount,
    ImageOptions,
    ImagePrompt,
    ImageRequest,
    ImageSeed,
    OutputFormat,
    Previews,
    SchedulerName,
    Steps,
    Strength,
)

SIZE = Meta(extra_json_schema={"pattern": "^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"})

# Names and sizes of OpenAI's models. Who asks for one of those names can't know which other sizes there are.
OPENAI_MODELS = ("dall-e-", "gpt-image-")  # what they begin with
OPENAI_SIZES = ("256x256", "512x512", "1024x1024", "1536x1024", "1024x1536", "1792x1024", "1024x1792")

# Values of OpenAI's fields that ask for nothing but what is done anyway, their defaults among them.
AS_USUAL = {
    "quality": ("auto", "standard"),
    "background": ("auto", "opaque"),
    "moderation": ("auto", "low"),  # nothing is moderated here
    "style": ("vivid",),
    "input_fidelity": ("low",),
}
INSTEAD = {
    "quality": "'num_inference_steps' says how much work an image is",
    "background": "images are opaque",
    "style": "describe the style in the prompt",
    "input_fidelity": "'strength' says how far the result may be from the image",
}

_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


class ImageFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of both endpoints. `null` is the same as absence."""

    prompt: Annotated[ImagePrompt, NOT_EMPTY]
    model: Annotated[str | None, NOT_EMPTY] = None  # None: the first image model
    n: ImageCount | None = None
    size: Annotated[str | None, SIZE] = None  # WIDTHxHEIGHT, or auto: the model's own
    response_format: Literal["b64_json", "url"] | None = None
    output_format: OutputFormat | None = None
    output_compression: Compression | None = None
    stream: bool | None = None
    partial_images: Previews | None = None

    # Beyond OpenAI's.
    negative_prompt: ImagePrompt | None = None
    seed: ImageSeed | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Guidance | None = None
    scheduler: SchedulerName | None = None
    progress: bool | None = None  # with `stream`: an event after each step

    # See AS_USUAL.
    quality: str | None = None
    background: str | None = None
    moderation: str | None = None

    # Accepted, without effect here.
    user: str | None = None
    safety_identifier: str | None = None

    @property
    def format(self) -> OutputFormat:
        return self.output_format or "png"


class GenerationBody(ImageFields, frozen=True, kw_only=True):
    """The body of `/v1/images/generations`."""

    style: str | None = None


class EditForm(ImageFields, frozen=True, kw_only=True):
    """The fields of `/v1/images/edits` that are no files."""

    strength: Strength | None = None
    input_fidelity: str | None = None


def parse_form(fields: Mapping[str, Sequence[str]]) -> EditForm:
    """Raises ApiError (400) naming the field."""
    values = {name: value for name, given in fields.items() if (value := single(name, given)) is not None}
    try:
        return msgspec.convert(values, EditForm, strict=False)
    except ValidationError as error:
        raise validation_error(error, EditForm) from None


def to_image_request(
    body: GenerationBody | EditForm, options: ImageOptions, image: str | None = None, mask: str | None = None
) -> ImageRequest:
    """The body as an image pipeline takes it; `image` and `mask` are files in the spool. Raises ApiError (400).

    What depends on the model itself is checked by the worker: sizes, for one, which it names the nearest legal one of.
    A size of OpenAI's, asked for by a name of OpenAI's, is drawn at the nearest instead, and the answer says which.
    """
    _check(body, options)
    width, height = _size(body.size)
    asked = body.model or ""
    return ImageRequest(
        prompt=body.prompt,
        negative_prompt=body.negative_prompt or "",
        n=body.n or 1,
        width=width,
        height=height,
        nearest=asked.startswith(OPENAI_MODELS) and body.size in OPENAI_SIZES,
        seed=body.seed,
        steps=body.num_inference_steps,
        guidance_scale=body.guidance_scale,
        scheduler=body.scheduler,
        partial_images=body.partial_images or 0,
        progress=True,  # asked for or not: it is how a long image differs from one that hangs
        output_format=body.format,
        output_compression=body.output_compression,
        image=image,
        mask=mask,
        strength=body.strength if isinstance(body, EditForm) else None,
    )


def _check(body: GenerationBody | EditForm, options: ImageOptions) -> None:
    """What no single field can tell."""
    if not body.prompt.strip():
        raise bad_request("prompt", "'prompt' is empty; say what the image shall show.")
    for name, text in (("prompt", body.prompt), ("negative_prompt", body.negative_prompt or "")):
        if "\0" in text:
            raise bad_request(name, f"{name!r} contains a NUL character.")
    for name, legal in AS_USUAL.items():
        value = getattr(body, name, None)
        if value is not None and value not in legal:
            hint = f"; {INSTEAD[name]}" if name in INSTEAD else ""
            raise unsupported(name, f"legal: {', '.join(legal)}{hint}")
    if body.output_compression not in (None, 100) and body.format == "png":
        raise bad_request("output_compression", "'output_compression' is for 'jpeg' and 'webp'; png loses nothing.")
    if body.n is not None and body.n > options.max_images:
        raise bad_request("n", f"'n' must be between 1 and {options.max_images} with this model.")
    if body.num_inference_steps is not None and body.num_inference_steps > options.max_steps:
        legal_steps = f"between 1 and {options.max_steps} with this model"
        raise bad_request("num_inference_steps", f"'num_inference_steps' must be {legal_steps}.")
    _check_stream(body)


def _check_stream(body: ImageFields) -> None:
    if body.stream:
        if body.n is not None and body.n > 1:
            raise bad_request("n", "'n' must be 1 when 'stream' is true.")
        if body.response_format == "url":
            raise bad_request("response_format", "'response_format' must be 'b64_json' when 'stream' is true.")
        return
    for name, value in (("partial_images", body.partial_images), ("progress", body.progress)):
        if value:
            raise bad_request(name, f"{name!r} is only allowed when 'stream' is true.")


def _size(size: str | None) -> tuple[int | None, int | None]:
    """(width, height) in pixels; (None, None): the model's own."""
    if size is None or size == "auto":
        return None, None
    match = _SIZE.fullmatch(size)
    if match is None:
        raise bad_request("size", "'size' must be 'auto' or WIDTHxHEIGHT in pixels, such as '512x512'.")
    return int(match[1]), int(match[2])
