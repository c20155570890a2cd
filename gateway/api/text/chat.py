"""`/v1/chat/completions`"""

from litestar import Controller, post

from gateway.api.request import HttpRequest
from gateway.api.text.chat_answer import ChatView
from gateway.api.text.chat_request import ChatRequest, to_text_request
from gateway.api.text.endpoint import TextEndpoint
from gateway.requests.dispatch import Reply

_endpoint = TextEndpoint(ChatRequest, to_text_request, ChatView, "chatcmpl")


class ChatController(Controller):
    tags = ("text",)

    @post("/v1/chat/completions", status_code=200, summary="Chat, streamed or not", direct=True)
    async def create(self, request: HttpRequest) -> Reply:
        return await _endpoint.reply(request)
