"""`/v1/completions`"""

from litestar import Controller

from gateway.api.request import HttpRequest
from gateway.api.text.completion_answer import Completion, CompletionView
from gateway.api.text.completion_request import CompletionRequest, to_text_request
from gateway.api.text.handler import TextHandler
from gateway.endpoint import EVENTS, JSON, Endpoint, JsonBody
from gateway.http.endpoints import serves
from gateway.requests.dispatch import Reply

_handler = TextHandler(CompletionRequest, to_text_request, CompletionView, "cmpl")


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
        return await _handler.reply(request)
