"""`POST /v1/rerank`, `/v2/rerank` and `/rerank`: the answers."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.api.embeddings.rerank import RerankBody, TextsBody
from metrics.timeline import Phases
from pipelines.messages.base import Said
from pipelines.messages.embedding import RerankRequest, Scores
from pipelines.messages.frames import Done


class Document(Struct, frozen=True):
    text: str


class Result(Struct, frozen=True):
    index: int
    relevance_score: float
    document: Document | str | UnsetType = UNSET


class RerankUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class Ranking(Struct, frozen=True, omit_defaults=True):
    """`method`: a cross-encoder reads query and document together and scores in 0…1; without one it is the cosine of
    their vectors."""

    id: str
    model: str
    method: Literal["cross_encoder", "cosine"]
    results: list[Result]
    usage: RerankUsage
    object: Literal["list"] | UnsetType = UNSET
    data: list[Result] | UnsetType = UNSET  # the same as `results`, for Voyage's clients: its documents are strings


class ScoredText(Struct, frozen=True):
    """An element of the answer to text-embeddings-inference's body."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class _Ranked:
    """One body. Best first; what scores the same is in the order of the documents."""

    streamed = False

    def __init__(self) -> None:
        self._scores: Scores | None = None

    def render(self, event: Said) -> bytes:
        if isinstance(event, Scores):
            self._scores = event
        return b""

    def _best(self, most: int | None) -> tuple[Scores, list[int]]:
        """All scores, and the indices of the best."""
        assert self._scores is not None
        scores = self._scores.scores
        return self._scores, sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:most]


class RerankAnswer(_Ranked):
    """Cohere's form."""

    def __init__(self, id: str, model: str, request: RerankRequest, body: RerankBody) -> None:
        super().__init__()
        self._id = id
        self._model = model
        self._texts = request.documents if body.return_documents else None
        self._strings = body.return_documents == "string"
        self._most = body.most
        self._voyage = body.voyage

    def finish(self, done: Done, spent: Phases) -> bytes:
        told, best = self._best(self._most)
        results = self._results(told, best, strings=self._strings)
        usage = RerankUsage(done.usage.prompt_tokens, done.usage.prompt_tokens)
        ranking = Ranking(self._id, self._model, told.method, results, usage)
        if self._voyage:
            data = self._results(told, best, strings=True)
            ranking = msgspec.structs.replace(ranking, object="list", data=data)
        return _encoder.encode(ranking)

    def _results(self, told: Scores, best: list[int], *, strings: bool) -> list[Result]:
        scores, texts = told.scores, self._texts
        if texts is None:
            return [Result(i, scores[i]) for i in best]
        return [Result(i, scores[i], texts[i] if strings else Document(texts[i])) for i in best]


class ScoredTexts(_Ranked):
    """The form of text-embeddings-inference: a list and nothing around it."""

    def __init__(self, request: RerankRequest, body: TextsBody) -> None:
        super().__init__()
        self._texts = request.documents if body.return_text else None
        self._most = body.top_n

    def finish(self, done: Done, spent: Phases) -> bytes:
        told, best = self._best(self._most)
        scores, texts = told.scores, self._texts
        return _encoder.encode([ScoredText(i, scores[i], UNSET if texts is None else texts[i]) for i in best])


_encoder = msgspec.json.Encoder()
