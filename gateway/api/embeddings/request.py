"""`POST /v1/embeddings`: the request."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, structs

from gateway.api.text.sampling import unsupported
from gateway.api.texts import NOT_EMPTY, TruncateName, check_text, renamed, same, truncation
from gateway.errors import bad_request
from gateway.uploads.images import ImageUrl
from pipelines.messages.embedding import MAX_INPUTS, EmbeddingInput, EmbeddingRequest, ImageBytes, Size, TextKind
from pipelines.messages.sampling import TokenId
from pipelines.messages.text import StringPrompt, TokenPrompt

# For the schema: no text and no list is empty, here and inside.
SAYS_SOMETHING = Meta(extra_json_schema={"minLength": 1, "minItems": 1, "items": {"minLength": 1, "minItems": 1}})

EncodingFormat = Literal["float", "base64"]


class InputItem(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the two. `image` is a data: URI, or an address on one of the hosts that are allowed."""

    text: str | None = None
    image: str | None = None


class EmbeddingsRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. `null` is the same as absence."""

    model: Annotated[str, NOT_EMPTY]
    input: Annotated[str | list[str | TokenId | list[TokenId] | InputItem], SAYS_SOMETHING]
    encoding_format: EncodingFormat | None = None
    dimensions: Size | None = None
    user: Raw = Raw()  # accepted, without effect here

    # Beyond OpenAI's. Which end of an over-long text is cut off:
    truncate: TruncateName | None = None
    truncation: bool | None = None  # Voyage's: true is `truncate: end`, false is `none`
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # vLLM's; -1: what the model takes

    # What the texts are for, where the model makes a difference.
    input_type: TextKind | None = None
    task: TextKind | None = None  # Jina's name for it

    # Voyage's names.
    output_dimension: Size | None = None
    output_dtype: str | None = None  # float

    @property
    def images(self) -> list[ImageUrl]:
        if isinstance(self.input, str):  # which may be millions of characters
            return []
        return [
            ImageUrl(each.image, f"input[{index}].image", f"input[{index}]")
            for index, each in enumerate(self.input)
            if isinstance(each, InputItem) and each.image is not None
        ]


def to_embedding_request(body: EmbeddingsRequest) -> EmbeddingRequest:
    """The body as an embedding pipeline takes it, its images without their bytes. Raises ApiError (400)."""
    if body.output_dtype not in (None, "float"):
        raise unsupported("output_dtype", "it may be 'float'")
    kind = ("input_type", body.input_type), ("task", body.task)
    dimensions = ("dimensions", body.dimensions), ("output_dimension", body.output_dimension)
    tokens = body.truncate_prompt_tokens
    if tokens == 0:
        raise bad_request("truncate_prompt_tokens", "'truncate_prompt_tokens' must be positive, or -1.")
    cut = truncation(body.truncate, body.truncation)
    return EmbeddingRequest(
        inputs=_inputs(body.input),
        truncate=cut or ("none" if tokens is None else "end"),
        dimensions=same(*dimensions),
        kind=same(*kind),
        max_tokens=None if tokens == -1 else tokens,
        names=renamed(dimensions, kind, (("truncate", body.truncate), ("truncation", body.truncation))),
    )


def with_images(request: EmbeddingRequest, images: Sequence[bytes]) -> EmbeddingRequest:
    """The request with the bytes of its images, in their order."""
    left = iter(images)
    inputs = [ImageBytes(next(left)) if isinstance(each, ImageBytes) else each for each in request.inputs]
    return structs.replace(request, inputs=inputs)


def _inputs(given: str | list[str | int | list[int] | InputItem]) -> list[EmbeddingInput]:
    if isinstance(given, str):
        return [StringPrompt(check_text(given, "input"))]
    if not given:
        raise bad_request("input", "'input' is empty; there is nothing to embed.")
    if isinstance(given[0], int):
        return [TokenPrompt(_token_ids(given))]
    if len(given) > MAX_INPUTS:
        raise bad_request("input", f"'input' may have up to {MAX_INPUTS} elements, not {len(given)}.")
    return [_input(each, f"input[{index}]") for index, each in enumerate(given)]


def _token_ids(given: list[str | int | list[int] | InputItem]) -> list[int]:
    """A list of numbers is one input, by its token ids."""
    ids = [each for each in given if isinstance(each, int)]
    if len(ids) < len(given):
        index = next(i for i, each in enumerate(given) if not isinstance(each, int))
        raise bad_request(f"input[{index}]", f"'input[{index}]' must be a token id, as the elements before it are.")
    return ids


def _input(given: str | int | list[int] | InputItem, at: str) -> EmbeddingInput:
    match given:
        case str():
            return StringPrompt(check_text(given, at))
        case list():
            if not given:
                raise bad_request(at, f"{at!r} is empty; there is nothing to embed.")
            return TokenPrompt(given)
        case InputItem(text=str(text), image=None):
            return StringPrompt(check_text(text, f"{at}.text"))
        case InputItem(text=None, image=str()):
            return ImageBytes(b"")
        case InputItem():
            raise bad_request(at, f"{at!r} must have either 'text' or 'image'.")
        case _:
            raise bad_request(at, f"{at!r} is a token id; a list of token ids has nothing else in it.")
