"""What a route has to say of itself, and who may ask for which spelling of its path."""

from typing import Any

import pytest
from msgspec import Struct

from gateway.endpoint import JSON, Endpoint, FormBody, Incomplete, JsonBody, without_types
from gateway.http.endpoints import serves


class Body(Struct):
    text: str


SAID: dict[str, Any] = {"kind": None, "line": None, "summary": "Something", "path": "/v1/x"}
GET = SAID | {"method": "GET"}
POST = SAID | {"method": "POST", "body": JsonBody(Body)}
WS = {"method": "WS", "path": "/v1/x", "kind": "audio", "line": "live"}


@pytest.mark.parametrize("said", [GET, POST, WS, POST | {"body": FormBody(Body, ("file",))}])
def test_what_is_enough(said: dict[str, Any]) -> None:
    assert Endpoint(**said).paths == ("/v1/x",)


@pytest.mark.parametrize(
    "said",
    [
        *({name: value for name, value in GET.items() if name != missing} for missing in GET),
        {name: value for name, value in POST.items() if name != "body"},
        {name: value for name, value in WS.items() if name != "kind"},
        GET | {"body": JsonBody(Body)},
        WS | {"summary": "Something"},
        WS | {"answers": {JSON: [Body]}},
        WS | {"direct": True},
        WS | {"access": "open"},
        GET | {"hidden": "[a-z]+"},  # what of it?
        GET | {"example": {"text": "x"}},
        POST | {"example": {"text": "x"}},  # of which model?
    ],
)
def test_what_is_not(said: dict[str, Any]) -> None:
    with pytest.raises(TypeError):  # Incomplete is one
        Endpoint(**said)


def test_a_handler_says_what_it_answers() -> None:
    async def silent(self: object, request: object) -> object: ...

    async def told(self: object, request: object) -> Body: ...

    with pytest.raises(Incomplete, match=r"GET /v1/x: what does it answer\?"):
        serves(Endpoint(**GET))(silent)
    serves(Endpoint(**GET))(told)
    serves(Endpoint(**GET, answers={JSON: [Body]}))(silent)


def test_on_the_short_way_nothing_is_injected() -> None:
    async def more(self: object, request: object, spool: object) -> Body: ...

    with pytest.raises(Incomplete, match="nothing but the request"):
        serves(Endpoint(**POST, direct=True))(more)
    serves(Endpoint(**POST))(more)


@pytest.mark.parametrize(
    ("said", "path", "access"),
    [
        ({"path": "/up"}, "/up", "key"),
        ({"path": "/up", "access": "metrics"}, "//up/", "metrics"),
        ({"path": "/up", "access": "open"}, "/up", "open"),
        ({"path": "/up", "access": "open"}, "/up/", "key"),
        ({"path": "/up", "access": "open"}, "//up", "key"),
        ({"path": "/up", "access": "open"}, "/UP", "key"),
        ({"path": "/up", "access": "open"}, "/upper", "key"),
        ({"path": "/up", "aliases": ("/v1/up",), "access": "open"}, "/v1/up", "open"),
        ({"path": "/up/{model:path}", "access": "open"}, "/up/org/model", "open"),
        ({"path": "/up/{model:path}", "access": "open"}, "/up", "key"),
        ({"path": "/files/{name:str}", "access": "open", "hidden": r"[a-z]+\.png|x"}, "/files/abc.png", "open"),
        ({"path": "/files/{name:str}", "access": "open", "hidden": r"[a-z]+\.png|x"}, "/files/x", "open"),
        ({"path": "/files/{name:str}", "access": "open", "hidden": r"[a-z]+\.png|x"}, "/files/abc.gif", "key"),
        ({"path": "/files/{name:str}", "access": "open", "hidden": r"[a-z]+\.png|x"}, "/files/a/b.png", "key"),
    ],
)
def test_only_the_declared_spelling_is_open(said: dict[str, Any], path: str, access: str) -> None:
    assert Endpoint(**(GET | said)).access_of(path) == access


def test_paths_without_what_is_between_their_braces() -> None:
    assert without_types("/v1/models/{model:path}") == "/v1/models/{model}"
    assert Endpoint(**(GET | {"path": "/files/{name:str}"})).shown_path == "/files/…"
