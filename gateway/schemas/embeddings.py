"""`POST /v1/embeddings`: the request."""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from gateway.data_uri import decode_data_uri
from gateway.errors import bad_request
from gateway.schemas.texts import check_text
from pipelines.messages import EmbeddingInput, EmbeddingRequest, ImageBytes, StringPrompt, TokenPrompt, Truncate

MAX_INPUTS = 2048

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
EncodingFormat = Literal["float", "base64"]


class InputItem(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the two. `image` is a data: URI."""

    text: str | None = None
    image: str | None = None


class EmbeddingsRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. `null` is the same as absence."""

    model: str
    input: str | list[str | TokenId | list[TokenId] | InputItem]
    encoding_format: EncodingFormat | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    truncate: Truncate | None = None  # ours: which end of an over-long text is cut off
    user: Raw = Raw()  # accepted, without effect here


def to_embedding_request(body: EmbeddingsRequest) -> EmbeddingRequest:
    """The body as an embedding pipeline takes it. Raises ApiError (400)."""
    return EmbeddingRequest(inputs=_inputs(body.input), truncate=body.truncate or "none", dimensions=body.dimensions)


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
        case InputItem(text=None, image=str(image)):
            return ImageBytes(decode_data_uri(image, "image", f"{at}.image"))
        case InputItem():
            raise bad_request(at, f"{at!r} must have either 'text' or 'image'.")
        case _:
            raise bad_request(at, f"{at!r} is a token id; a list of token ids has nothing else in it.")
