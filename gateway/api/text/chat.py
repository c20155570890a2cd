"""`/v1/chat/completions`"""

from litestar import Controller

from gateway.api.request import HttpRequest
from gateway.api.text.chat_answer import ChatCompletion, ChatView
from gateway.api.text.chat_request import ChatRequest, to_text_request
from gateway.api.text.handler import TextHandler
from gateway.endpoint import EVENTS, JSON, Endpoint, JsonBody
from gateway.http.endpoints import serves
from gateway.requests.dispatch import Reply

_handler = TextHandler(ChatRequest, to_text_request, ChatView, "chatcmpl")


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
        return await _handler.reply(request)
