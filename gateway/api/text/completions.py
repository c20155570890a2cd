"""`/v1/completions`"""

from litestar import Controller, post

from gateway.api.request import HttpRequest
from gateway.api.text.completion_answer import CompletionView
from gateway.api.text.completion_request import CompletionRequest, to_text_request
from gateway.api.text.endpoint import TextEndpoint
from gateway.requests.dispatch import Reply

_endpoint = TextEndpoint(CompletionRequest, to_text_request, CompletionView, "cmpl")


class CompletionsController(Controller):
    tags = ("text",)

    @post("/v1/completions", status_code=200, summary="Text completion, streamed or not", direct=True)
    async def create(self, request: HttpRequest) -> Reply:
        return await _endpoint.reply(request)
