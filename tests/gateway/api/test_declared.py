"""That what answers are held to (tests/declared.py) would be noticed, and that all of the schema holds together."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.backends.base import State
from gateway.errors import ApiError
from tests.declared import Declared, Undeclared, declared, schema_of_all
from tests.gateway.idle_fleet import make_app, make_client, make_settings


async def test_answers_are_held_to_the_schema(tmp_path: Path) -> None:
    app, fleet = make_app(make_settings(tmp_path))
    fleet.become("first", State.READY)
    async with make_client(app) as client:
        for path in ("/health", "/ready", "/ready/first", "/ready/nope", "/v1/models", "/v1/models/org/second"):
            await client.get(path)
        await client.get("/metrics")
        await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
        await client.post("/v1/chat/completions", content=b"{")
    assert {(path, status, kind) for _, path, status, kind in declared(app).seen} == {
        ("/health", 200, "application/json"),
        ("/ready", 503, "application/json"),
        ("/ready/{model}", 200, "application/json"),
        ("/ready/{model}", 404, "application/json"),
        ("/v1/models", 200, "application/json"),
        ("/v1/models/{model}", 200, "application/json"),
        ("/metrics", 200, "text/plain"),
        ("/metrics", 200, "application/openmetrics-text"),
        ("/v1/chat/completions", 400, "application/json"),
    }


@pytest.mark.parametrize(
    ("status", "kind", "body", "says"),
    [
        (418, b"application/json", b"{}", "418 application/json is not declared"),
        (200, b"text/html", b"{}", "200 text/html is not declared"),
        (200, b"application/json", b'{"status": 1}', "1 is not of type 'string'"),
        (200, b"application/json", b"{", "Expecting property name"),
        (400, b"application/json", b'{"message": "no"}', "'error' is a required property"),
    ],
)
async def test_what_is_not_declared_is_noticed(status: int, kind: bytes, body: bytes, says: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body})

    async def send(message: Any) -> None: ...

    watched = Declared(app, schema_of_all())
    await watched({"type": "http", "method": "GET", "path": "/health"}, send, send)
    with pytest.raises(Undeclared, match="GET /health") as caught:
        watched.check()
    assert says in str(caught.value)


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_the_schema_holds_together() -> None:
    schema = schema_of_all()
    for reference in references(schema):
        node = schema
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
    for component in schema["components"]["schemas"].values():
        Draft202012Validator.check_schema(component)
    for path, item in schema["paths"].items():
        for operation in item.values():
            assert {"200", "400", "403", "413", "415", "500"} <= operation["responses"].keys(), path
            assert ("429" in operation["responses"]) is ("requestBody" in operation), path


def test_an_error_is_what_its_body_says() -> None:
    """The component is ErrorBody's; nothing else is encoded."""
    error = ApiError(400, "no", param="n").encode()
    assert error == b'{"error":{"message":"no","type":"invalid_request_error","param":"n","code":null}}'


def seen(image: Any) -> dict[str, Any]:
    """A chat about an image."""
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": image}]}]}


# Bodies, and whether they are valid: by the schema as by the endpoint.
JUDGED: list[tuple[str, dict[str, Any], bool]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, True),
    ("/v1/chat/completions", {"messages": []}, False),
    ("/v1/chat/completions", {"messages": [{"role": "", "content": "hi"}]}, False),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"7": 1}}, True),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"x": 1}}, False),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 0}, False),
    ("/v1/chat/completions", seen({"url": "data:image/png;base64,AAAA", "detail": "low"}), True),
    ("/v1/chat/completions", seen("data:image/png;base64,AAAA"), True),
    ("/v1/chat/completions", seen({"url": "data:image/png;base64,AAAA", "detail": "medium"}), False),
    ("/v1/chat/completions", seen({"detail": "low"}), False),
    ("/v1/completions", {"prompt": ""}, True),
    ("/v1/completions", {"prompt": "hi", "logit_bias": {"-1": 1}}, False),
    ("/v1/embeddings", {"input": "hi"}, True),
    ("/v1/embeddings", {"input": [[1, 2], [3]]}, True),
    ("/v1/embeddings", {"input": ""}, False),
    ("/v1/embeddings", {"input": []}, False),
    ("/v1/embeddings", {"input": [""]}, False),
    ("/v1/embeddings", {"input": [[]]}, False),
    ("/v1/rerank", {"query": "hi", "documents": ["a", {"text": "b"}]}, True),
    ("/v1/rerank", {"query": "", "documents": ["a"]}, False),
    ("/v1/rerank", {"query": "hi", "documents": []}, False),
    ("/v1/images/generations", {"prompt": "a cat", "size": "64x64"}, True),
    ("/v1/images/generations", {"prompt": ""}, False),
    ("/v1/images/generations", {"prompt": "a cat", "size": "large"}, False),
]


@pytest.mark.parametrize(("path", "body", "valid"), JUDGED)
async def test_the_schema_judges_bodies_as_their_endpoint_does(
    tmp_path: Path, path: str, body: dict[str, Any], valid: bool
) -> None:
    schema = schema_of_all()
    declared_body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body = {"model": "nobody", **body}
    judge = Draft202012Validator({**declared_body, "components": schema["components"]})
    assert judge.is_valid(body) is valid
    # What is valid gets as far as to the model, of which there is none.
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        answer = await client.post(path, json=body)
        if answer.status_code == 404 and not valid:  # the model was looked for first
            answer = await client.post(path, json={**body, "model": "first"})
    assert (answer.status_code == 404) is valid
