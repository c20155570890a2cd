"""`/v1/chat/completions`"""

import msgspec
from litestar import Controller

from gateway.api.answer import new_head
from gateway.api.intake import HttpRequest, dispatcher, json_body, terms, timeline
from gateway.api.text.chat_answer import ChatAnswer, ChatCompletion, ChatStream
from gateway.api.text.chat_request import ChatRequest, to_text_request
from gateway.api.texts import decode_texts
from gateway.endpoint import EVENTS, JSON, Endpoint, JsonBody
from gateway.http.endpoints import serves
from gateway.requests.dispatch import Output, Reply
from gateway.requests.exchange import Job

_decoder = msgspec.json.Decoder(ChatRequest)


class ChatController(Controller):
    tags = ("text",)

    @serves(
        Endpoint(
            method="POST",
            path="/v1/chat/completions",
            kind="text",
            line="chat, streamed or not",
            summary="Chat, streamed or not",
            body=JsonBody(ChatRequest),
            answers={JSON: [ChatCompletion], EVENTS: [str]},
            example={"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32},
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
        head = new_head("chatcmpl", route.name, route.fingerprint)
        output: Output
        if body.stream:
            output = ChatStream(head, work.n, include_usage=body.include_usage)
        else:
            output = ChatAnswer(head, work.n, logprobs=bool(body.logprobs))
        job = Job(head.id, route, work, work.n, wanted.timeout, len(raw), wanted.priority, tenant=wanted.tenant)
        return desk.reply(job, output, timeline(request))
