"""`POST /v1/rerank`, in Cohere's shape: the request and the answer."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.schemas.texts import check_text
from metrics.timeline import Phases
from pipelines.messages import Done, RerankRequest, Said, Scores, Truncate

MAX_DOCUMENTS = 2048

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class DocumentItem(Struct, frozen=True):
    """Further keys are ignored: documents carry what their owners need."""

    text: str


class RerankBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. `null` is the same as absence."""

    model: str
    query: str
    documents: Annotated[list[str | DocumentItem], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Count | None = None  # None: all
    return_documents: bool | None = None
    max_tokens_per_doc: Count | None = None
    truncate: Truncate | None = (
        None  # ours, of documents; as at Cohere, they are cut at the end unless it says otherwise
    )


def to_rerank_request(body: RerankBody) -> RerankRequest:
    """The body as an embedding pipeline takes it. Raises ApiError (400)."""
    return RerankRequest(
        query=check_text(body.query, "query"),
        documents=[_document(each, f"documents[{index}]") for index, each in enumerate(body.documents)],
        truncate=body.truncate or "end",
        max_tokens_per_document=body.max_tokens_per_doc,
    )


def _document(given: str | DocumentItem, at: str) -> str:
    return check_text(given, at) if isinstance(given, str) else check_text(given.text, f"{at}.text")


class Document(Struct, frozen=True):
    text: str


class Result(Struct, frozen=True):
    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class Ranking(Struct, frozen=True):
    """`method`: a cross-encoder reads query and document together and scores in 0…1; without one it is the cosine of
    their vectors."""

    id: str
    model: str
    method: Literal["cross_encoder", "cosine"]
    results: list[Result]
    usage: RerankUsage


class RerankAnswer:
    """One body."""

    streamed = False

    def __init__(self, id: str, model: str, request: RerankRequest, top_n: int | None, *, documents: bool) -> None:
        self._id = id
        self._model = model
        self._texts = request.documents if documents else None
        self._top_n = top_n
        self._scores: Scores | None = None

    def render(self, event: Said) -> bytes:
        if isinstance(event, Scores):
            self._scores = event
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        assert self._scores is not None
        scores, texts = self._scores.scores, self._texts
        best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: self._top_n]
        results = [Result(i, scores[i], UNSET if texts is None else Document(texts[i])) for i in best]
        tokens = done.usage.prompt_tokens
        usage = RerankUsage(tokens, tokens)
        return _encoder.encode(Ranking(self._id, self._model, self._scores.method, results, usage))


_encoder = msgspec.json.Encoder()
