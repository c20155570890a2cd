"""Vectors of texts and pictures, and documents by relevance."""

import msgspec
from litestar import Controller
from litestar.di import NamedDependency

from gateway.api.answer import new_head
from gateway.api.embeddings.answer import EmbeddingList, EmbeddingsAnswer
from gateway.api.embeddings.request import EmbeddingsRequest, to_embedding_request, with_images
from gateway.api.embeddings.rerank import RerankBody, TextsBody, parse_rerank, to_rerank_request
from gateway.api.embeddings.rerank_answer import Ranking, RerankAnswer, ScoredText, ScoredTexts
from gateway.api.image_urls import read_images, size_beside
from gateway.api.request import HttpRequest, json_body, kind, terms, timeline
from gateway.api.texts import decode_texts, units
from gateway.endpoint import JSON, Endpoint, JsonBody
from gateway.http.endpoints import serves
from gateway.requests.dispatch import Dispatcher, Output, Reply
from gateway.requests.exchange import Job

_embeddings = msgspec.json.Decoder(EmbeddingsRequest)


class EmbeddingsController(Controller):
    """Needs the dependency `dispatcher`, and no second one: Litestar resolves two in tasks of their own."""

    tags = ("embeddings",)

    @serves(
        Endpoint(
            method="POST",
            path="/v1/embeddings",
            kind="embedding",
            line="vectors of texts and pictures",
            summary="Vectors of texts and, where the model has them, of images",
            body=JsonBody(EmbeddingsRequest),
            answers={JSON: [EmbeddingList]},
        )
    )
    async def embed(self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher]) -> Reply:
        raw = await json_body(request)
        body = decode_texts(raw, _embeddings)
        route = dispatcher.route(body.model, kind(request))
        wanted = terms(request, route.settings)
        work = to_embedding_request(body)
        read: list[bytes] = []
        if images := body.images:
            read = await read_images(request, images, route)
            work = with_images(work, read)
        answer = EmbeddingsAnswer(route.name, len(work.inputs), body.encoding_format or "float")
        id = new_head("embd", route.name, route.fingerprint).id
        size = size_beside(raw, images)
        job = Job(id, route, work, units(len(work.inputs)), wanted, size, images=[*map(len, read)])
        return dispatcher.reply(job, answer, timeline(request))

    @serves(
        Endpoint(
            method="POST",
            path="/v1/rerank",
            aliases=("/v2/rerank", "/rerank"),  # Cohere's clients go by the version, others by none
            kind="embedding",
            line="documents by relevance to a query",
            summary="Documents in the order of their relevance to a query",
            body=JsonBody(RerankBody, TextsBody),
            answers={JSON: [Ranking, list[ScoredText]]},
        )
    )
    async def rerank(self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher]) -> Reply:
        raw = await json_body(request)
        body = parse_rerank(raw)
        route = dispatcher.route_or_first(body.model, kind(request))
        wanted = terms(request, route.settings)
        work = to_rerank_request(body)
        id = new_head("rank", route.name, route.fingerprint).id
        answer: Output
        answer = ScoredTexts(work, body) if isinstance(body, TextsBody) else RerankAnswer(id, route.name, work, body)
        job = Job(id, route, work, units(len(work.documents)), wanted, len(raw))
        return dispatcher.reply(job, answer, timeline(request))
