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

# Bytes of a media file that are decoded in the time in which one of a text is tokenised: 4 of Opus, 140 of WAV.
MEDIA_BYTES = 8


def effort(request: Request) -> int:
    """About the bytes of text that are tokenised in the time that a request takes to prepare."""
    match request:
        case TextRequest(prompts=prompts, n=n):
            return n * sum(_of_prompt(prompt) for prompt in prompts)
        case EmbeddingRequest(inputs=inputs):
            return sum(_of_prompt(each) for each in inputs)
        case RerankRequest(query=query, documents=documents):
            return len(query) + sum(map(len, documents))
        case TranscriptionRequest(path=path):
            with suppress(OSError):
                return os.stat(path).st_size // MEDIA_BYTES
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
            return len(data) // MEDIA_BYTES
