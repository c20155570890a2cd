"""All that is known about a route follows from what it declares; and every route does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Controller, Litestar, WebSocket, get, websocket
from litestar.datastructures import State
from msgspec import Struct

from gateway import app as application
from gateway.api.request import HttpRequest, json_body, kind
from gateway.app import create_app
from gateway.asgi import Receive, Scope, Send
from gateway.cli.console import endpoint_rows
from gateway.config.environment import digest
from gateway.config.settings import Settings
from gateway.endpoint import JSON, Endpoint, FormBody, Incomplete, JsonBody, without_types
from gateway.http.endpoints import Endpoints, serves
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from pipelines.kinds import KINDS, metrics_by_kind
from tests.declared import schema_of_all
from tests.gateway.idle_fleet import KEY, make_app, make_client, make_settings

API = Path(__file__).parents[3] / "docs" / "api.md"


def app_of(*controllers: type[Controller]) -> Litestar:
    """The application with further routes."""
    with pytest.MonkeyPatch.context() as patch:
        served = [*application.controllers(), *controllers]
        patch.setattr(application, "controllers", lambda: served)
        settings, registry = Settings(), Registry(metrics_by_kind())
        return create_app(settings, Fleet(settings, registry), registry)


@pytest.fixture(scope="module")
def endpoints() -> Endpoints:
    found: Endpoints = app_of().state.endpoints
    return found


def rows(endpoints: Endpoints, kinds: Sequence[str] = tuple(KINDS)) -> list[list[Any]]:
    return endpoint_rows([*endpoints], kinds)


# --- the routes that there are ----------------------------------------------------------------------------------------


def test_what_is_declared_is_shown(endpoints: Endpoints) -> None:
    documented = API.read_text()
    schema = schema_of_all()["paths"]
    shown = [path for _, paths, _ in rows(endpoints) for path in paths.split(", ")]
    assert len(shown) == len(set(shown))
    for endpoint in endpoints:
        assert (endpoint.path in shown) is (endpoint.line is not None)
        if endpoint.path == "/schema":  # it is not about itself
            continue
        for path in map(without_types, endpoint.paths):
            assert path.replace("models/{model}", "models/{id}") in documented
            operation = schema.get(path, {}).get(endpoint.method.lower())
            assert (operation is None) is (endpoint.method == "WS")
            if operation is not None:
                answers = operation["responses"]["200"]["content"]
                assert all(each["schema"] for each in answers.values())
                assert ("requestBody" in operation) is (endpoint.body is not None)


def test_an_endpoint_of_a_kind_is_shown_where_there_is_such_a_model(endpoints: Endpoints) -> None:
    assert {endpoint.kind for endpoint in endpoints} == {None, *KINDS}
    told = {path: kind for kind in KINDS for _, path, _ in rows(endpoints, [kind])}
    assert {"/v1/chat/completions": "text", "/v1/rerank": "embedding", "/v1/images/edits": "image"}.items() <= (
        told.items()
    )
    assert rows(endpoints)[-1][0] == rows(endpoints, [])[0][0] == "GET"
    assert len(rows(endpoints, [])) < len(rows(endpoints, ["audio"])) < len(rows(endpoints))


def posts(endpoints: Endpoints, of: type[JsonBody | FormBody]) -> list[Endpoint]:
    found = [endpoint for endpoint in endpoints if isinstance(endpoint.body, of)]
    assert found
    return found


async def test_bodies_are_what_is_declared(endpoints: Endpoints, tmp_path: Path) -> None:
    schema = schema_of_all()
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        for endpoint in posts(endpoints, JsonBody):
            assert isinstance(endpoint.body, JsonBody)
            required = schema["components"]["schemas"][endpoint.body.of.__name__]["required"]
            for path in endpoint.paths:
                assert (await client.post(path, files={"file": b"x"})).status_code == 415
                unknown = (await client.post(path, json={"zzz": 1})).json()["error"]
                assert (unknown["code"], unknown["param"]) == ("unknown_parameter", "zzz")
                missing = await client.post(path, json={})
                assert missing.status_code == 400
                assert missing.json()["error"]["param"] in required
        for endpoint in posts(endpoints, FormBody):
            for path in endpoint.paths:
                assert (await client.post(path, json={})).status_code == 415


async def test_limits_are_those_of_the_body(endpoints: Endpoints, tmp_path: Path) -> None:
    """Whatever the spelling of the path. Of what is no route's it is that of documents."""
    app, _ = make_app(make_settings(tmp_path, max_body_bytes=1000, max_upload_bytes=2000))
    uploads = {path for endpoint in posts(endpoints, FormBody) for path in endpoint.paths}
    documents = {path for endpoint in posts(endpoints, JsonBody) for path in endpoint.paths}
    async with make_client(app) as client:
        for path in uploads | documents | {"/v1/audio/nothing", "/nothing", "/v1/models"}:
            for spelling in (path, path + "/", path.replace("/v1", "//v1"), path.replace("/", "//")):
                url = "http://localhost" + spelling
                sent = [(await client.post(url, content=b" " * size)).status_code for size in (1000, 1001, 2000, 2001)]
                limit = 2000 if path in uploads else 1000
                assert [status == 413 for status in sent] == [size > limit for size in (1000, 1001, 2000, 2001)], url


def test_a_request_is_for_whom_the_router_takes_it_for(endpoints: Endpoints) -> None:
    def found(path: str, method: str = "GET") -> str | None:
        endpoint = endpoints.find(method, path)
        return endpoint.path if endpoint is not None else None

    assert found("/v1/rerank", "POST") == found("/rerank", "POST") == found("//v2///rerank/", "POST") == "/v1/rerank"
    assert found("/v1/chat/completions") == "/v1/chat/completions"  # a method that is not there
    assert found("/ready") == found("/ready/") == "/ready"
    assert found("/ready/org/model") == "/ready/{model:path}"
    assert found("/v1/audio/stream", "WS") == "/v1/audio/stream"
    assert found("/schema/openapi.json") == found("/schema/x") == "/schema"
    assert found("/v1//images/files/a.png") == found("/v1/images/files/a\nb/c") == "/v1/images/files/{name:str}"
    assert [found(path) for path in ("/", "", "/v1", "/V1/models", "/healthy", "/v1/audio/nothing")] == [None] * 6


# --- a throw-away route -----------------------------------------------------------------------------------------------


class Echo(Struct, forbid_unknown_fields=True):
    text: str


class EchoAnswer(Struct):
    text: str
    kind: str
    routed: bool  # whether it came through Litestar's router


class Says:
    """An ASGI response."""

    def __init__(self, answer: EchoAnswer) -> None:
        self._body = msgspec.json.encode(answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", JSON.encode())]})
        await send({"type": "http.response.body", "body": self._body})


def echo(**said: Any) -> type[Controller]:
    """A controller of one endpoint, which says more than the least."""

    class EchoController(Controller):
        @serves(
            Endpoint(
                **{
                    "method": "POST",
                    "path": "/v1/echo",
                    "kind": "text",
                    "line": "the same again",
                    "summary": "Says it again",
                    "body": JsonBody(Echo),
                    "answers": {JSON: [EchoAnswer]},
                    **said,
                }
            )
        )
        async def echo(self, request: HttpRequest) -> Says:
            body = msgspec.json.decode(await json_body(request), type=Echo)
            return Says(EchoAnswer(body.text, kind(request), "route_handler" in request.scope))

    return EchoController


class Bare(Controller):
    @get("/v1/bare")
    async def bare(self) -> None: ...


class BareSocket(Controller):
    @websocket("/v1/bare")
    async def bare(self, socket: WebSocket[object, object, State]) -> None: ...


class Odd(Controller):
    @get("/v1/bare", endpoint="text")
    async def bare(self) -> None: ...


@pytest.mark.parametrize("controller", [Bare, BareSocket, Odd])
def test_a_route_that_declares_nothing_is_refused(controller: type[Controller]) -> None:
    with pytest.raises(Incomplete, match="bare declares no endpoint"):
        app_of(controller)


def test_the_methods_of_a_path_agree_about_who_may_ask() -> None:
    def peeking(at: type[Controller]) -> type[Controller]:
        class Peek(at):  # type: ignore[valid-type, misc]
            @serves(Endpoint(method="GET", path="/v1/echo", kind=None, line=None, summary="Peeks", access="open"))
            async def peek(self) -> EchoAnswer: ...

        return Peek

    with pytest.raises(Incomplete, match="/v1/echo: its methods disagree"):
        app_of(peeking(echo()))
    found = app_of(peeking(echo(access="open"))).state.endpoints
    assert found.find("POST", "/v1/echo").summary == "Says it again"
    assert found.find("GET", "/v1/echo").summary == "Peeks"


def test_a_declared_route_is_listed() -> None:
    found = app_of(echo(), echo(path="/v1/echo/again")).state.endpoints
    assert ["POST", "/v1/echo, /v1/echo/again", "the same again"] in rows(found)
    assert ["POST", "/v1/echo", "the same again"] in rows(app_of(echo(aliases=("/echo",))).state.endpoints)
    assert not any("/v1/echo" in path for _, path, _ in rows(found, ["audio"]))
    assert not any("/v1/echo" in path for _, path, _ in rows(app_of(echo(line=None)).state.endpoints))


async def operations(tmp_path: Path, controller: type[Controller]) -> dict[str, Any]:
    """In the schema."""
    async with make_client(app_of(controller)) as client:
        schema = (await client.get("/schema/openapi.json")).json()
    return {path: item["post"] for path, item in schema["paths"].items() if "echo" in path}


async def test_a_declared_route_is_in_the_schema(tmp_path: Path) -> None:
    found = await operations(tmp_path, echo(aliases=("/echo",)))
    assert found.keys() == {"/v1/echo", "/echo"}
    for operation in found.values():
        assert operation["summary"] == "Says it again"
        assert operation["requestBody"]["content"] == {JSON: {"schema": {"$ref": "#/components/schemas/Echo"}}}
        assert operation["responses"]["200"]["content"] == {
            JSON: {"schema": {"$ref": "#/components/schemas/EchoAnswer"}}
        }
        assert {"400", "401", "404", "413", "429", "503"} <= operation["responses"].keys()

    (plain,) = (await operations(tmp_path, echo(kind=None, others={503: "Not now"}))).values()
    assert not {"404", "429", "504"} & plain["responses"].keys()
    assert plain["responses"]["503"]["description"] == "Not now"
    (form,) = (await operations(tmp_path, echo(body=FormBody(Echo, ("sound",), ("cover",))))).values()
    assert form["requestBody"]["content"].keys() == {"multipart/form-data"}
    (open_one,) = (await operations(tmp_path, echo(access="open"))).values()
    assert "401" not in open_one["responses"]
    assert open_one["security"] == [{}]


@pytest.mark.parametrize("direct", [True, False])
async def test_a_declared_route_is_served_the_way_that_it_says(tmp_path: Path, direct: bool) -> None:
    async with make_client(app_of(echo(direct=direct, aliases=("/echo",)))) as client:
        for path in ("/v1/echo", "/echo"):
            said = (await client.post(path, json={"text": "hi"})).json()
            assert said == {"text": "hi", "kind": "text", "routed": not direct}
        routed = await client.post("/v1/echo/", json={"text": "hi"})
        assert routed.json() == {"text": "hi", "kind": "text", "routed": True}


@pytest.mark.parametrize(("body", "limit"), [(JsonBody(Echo), 1000), (FormBody(Echo, ("file",)), 2000)])
async def test_a_declared_route_has_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: JsonBody | FormBody, limit: int
) -> None:
    served = [*application.controllers(), echo(body=body)]
    monkeypatch.setattr(application, "controllers", lambda: served)
    app, _ = make_app(make_settings(tmp_path, max_body_bytes=1000, max_upload_bytes=2000))
    async with make_client(app) as client:
        for size in (900, 1001, 2001):
            answer = await client.post("/v1/echo", json={"text": "x" * (size - 11)})
            assert (answer.status_code == 413) is (size > limit), size


@pytest.mark.parametrize("access", ["open", "key", "metrics"])
async def test_a_declared_route_asks_for_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: str) -> None:
    served = [*application.controllers(), echo(access=access)]
    monkeypatch.setattr(application, "controllers", lambda: served)
    app, _ = make_app(make_settings(tmp_path, key=KEY, metrics_sha256=digest("m")))
    async with make_client(app) as client:
        for key, opens in ((None, ["open"]), ("m", ["open", "metrics"]), (KEY, ["open", "key", "metrics"])):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            answer = await client.post("/v1/echo", json={"text": "hi"}, headers=headers)
            assert (answer.status_code == 200) is (access in opens), (access, key)
