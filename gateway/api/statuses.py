"""What each operation may answer: statuses, content types and bodies, for the schema."""

from collections.abc import Iterable, Mapping, Sequence

from gateway.endpoint import JSON, Endpoint
from gateway.errors import ErrorBody

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

Described = dict[str, object]


def components() -> Mapping[str, Described]:
    """`components.responses`: each error once."""
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}}
    return {f"Error{status}": {"description": text, "content": content} for status, text in ERRORS.items()}


def types(endpoints: Iterable[Endpoint]) -> Iterable[object]:
    """All that need a schema."""
    yield ErrorBody
    for endpoint in endpoints:
        yield from (each for kinds in endpoint.answers.values() for each in kinds if each not in (str, bytes))


def answers(endpoint: Endpoint, operation: Described, schemas: Mapping[object, Described]) -> Described:
    """The `responses` of an endpoint's operation. `schemas` has those of `types`."""
    own = operation.get("responses")
    said = own.get("200") if isinstance(own, dict) else None
    success: Described = dict(said) if isinstance(said, dict) else {"description": "OK"}
    if endpoint.answers:
        success["content"] = {kind: {"schema": _any_of(each, schemas)} for kind, each in endpoint.answers.items()}
    found: Described = {"200": success}
    for status in sorted(_errors(endpoint)):
        found[str(status)] = {"$ref": f"#/components/responses/Error{status}"}
    return found | {str(status): {**success, "description": text} for status, text in endpoint.others.items()}


def _errors(endpoint: Endpoint) -> frozenset[int]:
    found = ALWAYS
    if endpoint.access == "open" and endpoint.hidden is None:  # what can be no secret asks for the key
        found -= {401}
    if "{" in endpoint.path:
        found |= NAMED
    if endpoint.kind is not None:
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
