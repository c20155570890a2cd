"""`POST /v1/rerank`, `/v2/rerank` and `/rerank`: the requests.

There are two bodies: one of `documents`, as Cohere, Jina, Voyage and vLLM have it, and one of `texts`, that of
text-embeddings-inference. Each is answered in its own form: see `rerank_answer`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.api.text.sampling import unsupported
from gateway.api.texts import NOT_EMPTY, TruncateName, check_text, decode_texts, renamed, same, truncation
from gateway.errors import bad_request
from pipelines.messages.embedding import MAX_DOCUMENTS, RerankRequest, Size, Truncate


class DocumentItem(Struct, frozen=True):
    """Further keys are ignored: documents carry what their owners need."""

    text: str


class RerankBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. `null` is the same as absence."""

    model: Annotated[str, NOT_EMPTY]
    query: Annotated[str, NOT_EMPTY]
    documents: Annotated[list[str | DocumentItem], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Size | None = None  # None: all
    return_documents: bool | Literal["string"] | None = None  # true: as objects with a `text`
    max_tokens_per_doc: Size | None = None
    # Ours, of documents; as at Cohere, they are cut at the end unless it says otherwise.
    truncate: TruncateName | None = None

    # Voyage's names: `top_n`, and `truncate` as a yes or no.
    top_k: Size | None = None
    truncation: bool | None = None

    texts: None = None  # the other body's

    @property
    def most(self) -> int | None:
        """How many results. Raises ApiError (400)."""
        return same(("top_n", self.top_n), ("top_k", self.top_k))

    @property
    def voyage(self) -> bool:
        """Whether it is in the words of Voyage's clients, who look for the results under another name."""
        return self.top_k is not None or self.truncation is not None


class TextsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of text-embeddings-inference. It names no model: None is the first that embeds or ranks."""

    query: Annotated[str, NOT_EMPTY]
    texts: Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    model: Annotated[str | None, NOT_EMPTY] = None
    return_text: bool | None = None
    truncate: bool | None = None  # false: an over-long text is refused
    truncation_direction: Literal["right", "left", "Right", "Left"] | None = None  # what is cut off; None: right
    raw_scores: bool | None = None  # false: cross-encoders score in 0…1
    top_n: Size | None = None  # LiteLLM's
    documents: None = None  # the other body's


class _Form(Struct, frozen=True):
    texts: Raw = Raw()


_form = msgspec.json.Decoder(_Form)
_documents = msgspec.json.Decoder(RerankBody)
_texts = msgspec.json.Decoder(TextsBody)


def parse_rerank(raw: bytes) -> RerankBody | TextsBody:
    """Raises ApiError (400)."""
    try:
        of_texts = bytes(_form.decode(raw).texts) not in (b"", b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        of_texts = False  # the decoder below says what is wrong
    return decode_texts(raw, _texts) if of_texts else decode_texts(raw, _documents)


def to_rerank_request(body: RerankBody | TextsBody) -> RerankRequest:
    """The body as an embedding pipeline takes it. Raises ApiError (400)."""
    if isinstance(body, TextsBody):
        if body.raw_scores:
            raise unsupported("raw_scores", "scores of cross-encoders are in 0…1: it may be false")
        return RerankRequest(
            query=check_text(body.query, "query"),
            documents=[check_text(each, f"texts[{index}]") for index, each in enumerate(body.texts)],
            truncate=_side(body),
            names={"documents": "texts"},
        )
    return RerankRequest(
        query=check_text(body.query, "query"),
        documents=[_document(each, f"documents[{index}]") for index, each in enumerate(body.documents)],
        truncate=truncation(body.truncate, body.truncation) or "end",
        max_tokens_per_document=body.max_tokens_per_doc,
        names=renamed((("truncate", body.truncate), ("truncation", body.truncation))),
    )


def _side(body: TextsBody) -> Truncate:
    if body.truncate is False:
        if body.truncation_direction is not None and body.truncation_direction.lower() == "left":
            message = "'truncation_direction' would have no effect, since 'truncate' is false."
            raise bad_request("truncation_direction", message)
        return "none"
    return "start" if (body.truncation_direction or "right").lower() == "left" else "end"


def _document(given: str | DocumentItem, at: str) -> str:
    return check_text(given, at) if isinstance(given, str) else check_text(given.text, f"{at}.text")
