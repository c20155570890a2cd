"""How much there is to prepare in a text request, in the unit of `pipelines.effort`."""

from pipelines.effort import of_media
from pipelines.messages.text import (
    ChatPrompt,
    ImagePart,
    Message,
    Prompt,
    StringPrompt,
    TextPart,
    TextRequest,
    TokenPrompt,
)

ITEM = 100  # bytes that a choice, a part of a message or a tool call is worth, however short its text

IMAGE = 20_000  # and an image, however small its file: it is decoded, resized and normalised


def effort(request: TextRequest) -> int:
    ids = len(request.sampling.logit_bias or ()) + len(request.sampling.stop_token_ids or ())
    grammar = len(request.sampling.grammar.text) if request.sampling.grammar else 0
    return sum(map(_of_prompt, request.prompts)) + ids + grammar + ITEM * request.n * len(request.prompts)


def _of_prompt(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt(messages=messages):
            return sum(map(_of_message, messages))
        case StringPrompt(text=text):
            return len(text)
        case TokenPrompt(ids=ids):
            return len(ids)


def _of_message(message: Message) -> int:
    """A template may write all that a message has."""
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    texts += [message.name or "", message.tool_call_id or ""]
    for call in message.tool_calls:
        texts += [call.id, call.type, call.function.name, call.function.arguments]
    pictures = sum(IMAGE + of_media(len(part.data)) for part in message.content if isinstance(part, ImagePart))
    return sum(map(len, texts)) + pictures + ITEM * max(1, len(message.content) + len(message.tool_calls))
