"""`/v1/completions`"""

import msgspec
from litestar import Controller

from gateway.api.answer import new_head
from gateway.api.intake import HttpRequest, dispatcher, json_body, terms, timeline
from gateway.api.text.completion_answer import Completion, CompletionAnswer, CompletionStream
from gateway.api.text.completion_request import CompletionRequest, to_text_request
from gateway.api.texts import decode_texts
from gateway.endpoint import EVENTS, JSON, Endpoint, JsonBody
from gateway.http.endpoints import serves
from gateway.requests.dispatch import Output, Reply
from gateway.requests.exchange import Job

_decoder = msgspec.json.Decoder(CompletionRequest)


class CompletionsController(Controller):
    tags = ("text",)

    @serves(
        Endpoint(
            method="POST",
            path="/v1/completions",
            kind="text",
            line="text completion",
            summary="Text completion, streamed or not",
            body=JsonBody(CompletionRequest),
            answers={JSON: [Completion], EVENTS: [str]},
            direct=True,
        )
    )
    async def create(self, request: HttpRequest) -> Reply:
        raw = await json_body(request)
        body = decode_texts(raw, _decoder)
        desk = dispatcher(request)
        route = desk.route(body.model, "text")
        wanted = terms(request, route.settings)
        work = to_text_request(body, wanted.tenant)
        head = new_head("cmpl", route.name, route.fingerprint)
        choices = len(work.prompts) * work.n
        output: Output
        if body.stream:
            output = CompletionStream(head, choices, include_usage=body.include_usage)
        else:
            output = CompletionAnswer(head, choices, logprobs=body.logprobs is not None)
        job = Job(head.id, route, work, choices, wanted.timeout, len(raw), wanted.priority, tenant=wanted.tenant)
        return desk.reply(job, output, timeline(request))
