"""How much there is to prepare in a request."""

import os
from contextlib import suppress

from pipelines.audio.messages import TranscriptionRequest
from pipelines.messages import (
    ChatPrompt,
    EmbeddingRequest,
    ImageBytes,
    Request,
    RerankRequest,
    StringPrompt,
    TextPart,
    TextRequest,
    TokenPrompt,
)


def effort(request: Request) -> int:
    """About the bytes that are to be read: of texts, and of what is decoded."""
    match request:
        case TextRequest(prompts=prompts, n=n):
            return n * sum(_of_prompt(prompt) for prompt in prompts)
        case EmbeddingRequest(inputs=inputs):
            return sum(_of_prompt(each) for each in inputs)
        case RerankRequest(query=query, documents=documents):
            return len(query) + sum(map(len, documents))
        case TranscriptionRequest(path=path):
            with suppress(OSError):
                return os.stat(path).st_size
    return 0


def _of_prompt(prompt: ChatPrompt | StringPrompt | TokenPrompt | ImageBytes) -> int:
    match prompt:
        case ChatPrompt(messages=messages):
            return sum(len(part.text) for each in messages for part in each.content if isinstance(part, TextPart))
        case StringPrompt(text=text):
            return len(text)
        case TokenPrompt(ids=ids):
            return len(ids)
        case ImageBytes(data=data):
            return len(data)
