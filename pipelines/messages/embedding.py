"""What a text encoder or reranker is asked, and what it says."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pipelines.messages.base import Count, Options, Said
from pipelines.messages.names import Named
from pipelines.messages.text import StringPrompt, TokenPrompt


class EmbeddingOptions(Options, frozen=True, kw_only=True):
    """The `[models.embedding]` table of an embedding model."""

    max_batch_tokens: Count | None = None  # in one step, padding included; None: 1024, on a GPU 16384
    max_wait_ms: Annotated[float, Meta(ge=0, le=1000)] = 0.0  # what a step that is not full may wait for more inputs
    dynamic_int8: bool = False  # with quantization = "int8": activations too, by one scale for the whole batch


class ImageBytes(Struct, frozen=True, tag="image"):
    """An encoded picture (PNG, JPEG, …), as the caller sent it."""

    data: bytes


MAX_INPUTS = 2048
MAX_DOCUMENTS = 2048
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]  # in tokens, components, documents: more than any model has
TextKind = Annotated[str, Meta(min_length=1, max_length=64)]

EmbeddingInput = StringPrompt | TokenPrompt | ImageBytes
Truncate = Literal["none", "start", "end"]  # which side of an over-long text is cut off; none: it is refused


class EmbeddingRequest(Named, frozen=True, kw_only=True, omit_defaults=True, tag="embedding"):
    """A vector for each input. Answered by `Vectors`, in any order of the inputs."""

    inputs: Annotated[list[EmbeddingInput], Meta(min_length=1, max_length=MAX_INPUTS)]
    truncate: Truncate = "none"
    dimensions: Size | None = None  # the first so many components, brought to unit length again
    kind: TextKind | None = None  # query, document, …: which of the model's prompts comes before each text
    max_tokens: Size | None = None  # of an input, special ones included; None: what the model takes


class RerankRequest(Named, frozen=True, kw_only=True, omit_defaults=True, tag="rerank"):
    """How well each document answers the query. Answered by one `Scores`."""

    query: str
    documents: Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    truncate: Truncate = "end"  # of documents; the query is never cut
    max_tokens_per_document: Size | None = None


class Vectors(Said, frozen=True, tag="vectors"):
    """The vectors of some inputs of a request, as one step made them: `len(indices)` rows of little-endian float32."""

    indices: list[int]
    data: bytes


class Scores(Said, frozen=True, tag="scores"):
    """Of all documents, in their order. Cross-encoders score in 0…1, cosines are in -1…1."""

    method: Literal["cross_encoder", "cosine"]
    scores: list[float]
