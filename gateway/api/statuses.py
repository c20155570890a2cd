"""What each operation may answer: statuses, content types and bodies, for the schema."""

from collections.abc import Iterable, Mapping, Sequence

from gateway.api.audio.answer import Transcription, VerboseTranscription
from gateway.api.embeddings.answer import EmbeddingList
from gateway.api.embeddings.rerank import RERANK_PATHS
from gateway.api.embeddings.rerank_answer import Ranking, ScoredText
from gateway.api.images.answer import ImageList
from gateway.api.text.chat_answer import ChatCompletion
from gateway.api.text.completion_answer import Completion
from gateway.errors import ErrorBody
from gateway.paths import FILES

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"

Bodies = Mapping[str, Sequence[object]]  # content type -> one of these; `str` and `bytes` are text and a file

_TRANSCRIPTION: Bodies = {JSON: [Transcription, VerboseTranscription], TEXT: [str], EVENTS: [str]}
_IMAGES: Bodies = {JSON: [ImageList], EVENTS: [str]}

# What a 200 holds. Where nothing is said here, it is what the handler's annotation says.
BODIES: dict[str, Bodies] = {
    "/v1/chat/completions": {JSON: [ChatCompletion], EVENTS: [str]},
    "/v1/completions": {JSON: [Completion], EVENTS: [str]},
    "/v1/embeddings": {JSON: [EmbeddingList]},
    **{path: {JSON: [Ranking, list[ScoredText]]} for path in RERANK_PATHS},
    "/v1/audio/transcriptions": _TRANSCRIPTION,
    "/v1/audio/translations": _TRANSCRIPTION,
    "/v1/images/generations": _IMAGES,
    "/v1/images/edits": _IMAGES,
    FILES + "/{name}": {"image/png": [bytes], "image/jpeg": [bytes], "image/webp": [bytes]},
    "/metrics": {TEXT: [str], "application/openmetrics-text": [str]},
}

ERRORS: dict[int, str] = {
    400: "Something in the request is not valid; `param` names the field",
    401: "A key is needed, or this one is not known",
    403: "The Host or the Origin is not answered without a key",
    404: "There is no such model or file",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body's content type or encoding is not taken",
    429: "The model's queue is full; Retry-After says when to come again",
    431: "The headers are too large",
    500: "The server made a mistake",
    503: "The model is not available now, or was lost; Retry-After says when to come again",
    504: "The deadline has passed",
    507: "The server has no room for files",
}

ALWAYS = frozenset({400, 401, 403, 408, 413, 415, 431, 500})
OF_A_MODEL = frozenset({404, 429, 503, 504, 507})
NAMED = frozenset({404})

NOT_READY = 503  # answered with the same body as 200

Described = dict[str, object]


def components() -> Mapping[str, Described]:
    """`components.responses`: each error once."""
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}}
    return {f"Error{status}": {"description": text, "content": content} for status, text in ERRORS.items()}


def types() -> Iterable[object]:
    """All that need a schema."""
    yield ErrorBody
    for bodies in BODIES.values():
        yield from (each for kinds in bodies.values() for each in kinds if each not in (str, bytes))


def answers(path: str, operation: Described, schemas: Mapping[object, Described]) -> Described:
    """The `responses` of an operation. `schemas` has those of `types`."""
    own = operation.get("responses")
    said = own.get("200") if isinstance(own, dict) else None
    success: Described = dict(said) if isinstance(said, dict) else {"description": "OK"}
    if path in BODIES:
        success["content"] = {kind: {"schema": _any_of(each, schemas)} for kind, each in BODIES[path].items()}
    found: Described = {"200": success}
    for status in sorted(_errors(path, operation)):
        found[str(status)] = {"$ref": f"#/components/responses/Error{status}"}
    if path.startswith("/ready"):
        found[str(NOT_READY)] = {**success, "description": "Not ready"}
    return found


def _errors(path: str, operation: Described) -> frozenset[int]:
    found = ALWAYS
    if operation.get("security") == [{}] and not path.startswith(FILES):  # open; names that can be no file's are not
        found -= {401}
    if "{" in path:
        found |= NAMED
    if "requestBody" in operation:
        found |= OF_A_MODEL
    return found


def _any_of(kinds: Sequence[object], schemas: Mapping[object, Described]) -> Described:
    found = [_schema(each, schemas) for each in kinds]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _schema(of: object, schemas: Mapping[object, Described]) -> Described:
    if of is str:
        return {"type": "string"}
    if of is bytes:
        return {"type": "string", "format": "binary"}
    return schemas[of]
