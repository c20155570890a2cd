"""How much there is to prepare in a request for vectors or scores, in the unit of `pipelines.effort`."""

from pipelines.effort import of_media
from pipelines.messages.embedding import EmbeddingInput, EmbeddingRequest, ImageBytes, RerankRequest
from pipelines.messages.text import StringPrompt, TokenPrompt


def effort(request: EmbeddingRequest | RerankRequest) -> int:
    match request:
        case EmbeddingRequest(inputs=inputs):
            return sum(map(_of_input, inputs))
        case RerankRequest(query=query, documents=documents):
            return len(query) + sum(map(len, documents))


def _of_input(given: EmbeddingInput) -> int:
    match given:
        case StringPrompt(text=text):
            return len(text)
        case TokenPrompt(ids=ids):
            return len(ids)
        case ImageBytes(data=data):
            return of_media(len(data))
