"""How much there is to prepare in a request."""

import os
from contextlib import suppress

from pipelines.messages.audio import TranscriptionRequest
from pipelines.messages.embedding import EmbeddingRequest, ImageBytes, RerankRequest
from pipelines.messages.frames import Request
from pipelines.messages.image import ImageRequest
from pipelines.messages.text import ChatPrompt, Message, StringPrompt, TextPart, TextRequest, TokenPrompt

# Bytes of a media file that are decoded in the time in which one of a text is tokenised: 4 of Opus, 140 of WAV.
MEDIA_BYTES = 8
ITEM = 100  # bytes that a choice, a part of a message or a tool call is worth, however short its text


def effort(request: Request) -> int:
    """About the bytes of text that are tokenised in the time that a request takes to prepare."""
    match request:
        case TextRequest(prompts=prompts, n=n, sampling=sampling):
            ids = len(sampling.logit_bias or ()) + len(sampling.stop_token_ids or ())
            return sum(map(_of_prompt, prompts)) + ids + ITEM * n * len(prompts)
        case EmbeddingRequest(inputs=inputs):
            return sum(map(_of_prompt, inputs))
        case RerankRequest(query=query, documents=documents):
            return len(query) + sum(map(len, documents))
        case TranscriptionRequest(path=path):
            return _of_file(path)
        case ImageRequest():
            files = sum(_of_file(path) for path in (request.image, request.mask) if path is not None)
            return len(request.prompt) + len(request.negative_prompt) + files
    return 0


def _of_prompt(prompt: ChatPrompt | StringPrompt | TokenPrompt | ImageBytes) -> int:
    match prompt:
        case ChatPrompt(messages=messages):
            return sum(map(_of_message, messages))
        case StringPrompt(text=text):
            return len(text)
        case TokenPrompt(ids=ids):
            return len(ids)
        case ImageBytes(data=data):
            return len(data) // MEDIA_BYTES


def _of_message(message: Message) -> int:
    """A template may write all that a message has."""
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    texts += [message.name or "", message.tool_call_id or ""]
    for call in message.tool_calls:
        texts += [call.id, call.type, call.function.name, call.function.arguments]
    return sum(map(len, texts)) + ITEM * max(1, len(message.content) + len(message.tool_calls))


def _of_file(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_size // MEDIA_BYTES
    return 0
