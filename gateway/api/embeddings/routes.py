"""`/v1/embeddings`, and `/v1/rerank` with its other addresses"""

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency

from gateway.api.answer import new_head
from gateway.api.embeddings.answer import EmbeddingsAnswer
from gateway.api.embeddings.request import EmbeddingsRequest, to_embedding_request
from gateway.api.embeddings.rerank import RERANK_PATHS, TextsBody, parse_rerank, to_rerank_request
from gateway.api.embeddings.rerank_answer import RerankAnswer, ScoredTexts
from gateway.api.request import HttpRequest, json_body, terms, timeline
from gateway.api.texts import decode_texts, units
from gateway.requests.dispatch import Dispatcher, Output, Reply
from gateway.requests.exchange import Job

_embeddings = msgspec.json.Decoder(EmbeddingsRequest)


class EmbeddingsController(Controller):
    """Needs the dependency `dispatcher`, and no second one: Litestar resolves two in tasks of their own."""

    tags = ("embeddings",)

    @post("/v1/embeddings", status_code=200, summary="Vectors of texts and, where the model has them, of images")
    async def embed(self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher]) -> Reply:
        raw = await json_body(request)
        body = decode_texts(raw, _embeddings)
        route = dispatcher.route(body.model, "embedding")
        wanted = terms(request, route.settings)
        work = to_embedding_request(body)
        answer = EmbeddingsAnswer(route.name, len(work.inputs), body.encoding_format or "float")
        id = new_head("embd", route.name, route.fingerprint).id
        job = Job(id, route, work, units(len(work.inputs)), wanted.timeout, raw, wanted.priority, tenant=wanted.tenant)
        return dispatcher.reply(job, answer, timeline(request))

    @post([*RERANK_PATHS], status_code=200, summary="Documents in the order of their relevance to a query")
    async def rerank(self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher]) -> Reply:
        raw = await json_body(request)
        body = parse_rerank(raw)
        route = dispatcher.route_or_first(body.model, "embedding")
        wanted = terms(request, route.settings)
        work = to_rerank_request(body)
        id = new_head("rank", route.name, route.fingerprint).id
        answer: Output
        answer = ScoredTexts(work, body) if isinstance(body, TextsBody) else RerankAnswer(id, route.name, work, body)
        job = Job(
            id, route, work, units(len(work.documents)), wanted.timeout, raw, wanted.priority, tenant=wanted.tenant
        )
        return dispatcher.reply(job, answer, timeline(request))
