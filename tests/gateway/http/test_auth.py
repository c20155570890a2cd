from pathlib import Path

import pytest

from gateway.asgi import Message, Scope
from gateway.config.environment import digest
from gateway.config.settings import KeySettings
from gateway.http.auth import ANONYMOUS, METRICS_READER, Keyring, Principal, presented_key
from tests.gateway.idle_fleet import KEY, make_app, make_client, make_settings

KEYS = [
    KeySettings(name="laptop", sha256=digest("key-one")),
    KeySettings(name="nightly", sha256=digest("key-two"), tenant="batch-team", priority="batch"),
]


def http(*headers: tuple[bytes, bytes]) -> Scope:
    return {"type": "http", "path": "/v1/models", "headers": list(headers)}


def test_a_key_has_an_owner() -> None:
    keyring = Keyring(KEYS)
    assert keyring.find(b"key-one", "key") == Principal("laptop", "default", "interactive")
    assert keyring.find(b"key-two", "key") == Principal("nightly", "batch-team", "batch")


@pytest.mark.parametrize("key", [b"", b"key-on", b"key-one ", b"KEY-ONE", digest("key-one").encode(), b"\xff\xfe"])
def test_no_other_key_opens(key: bytes) -> None:
    assert Keyring(KEYS).find(key, "key") is None


def test_the_metrics_key_opens_the_metrics_only() -> None:
    keyring = Keyring(KEYS, digest("m"))
    assert keyring.find(b"m", "metrics") == METRICS_READER
    assert keyring.find(b"m", "key") is None
    assert keyring.find(b"key-one", "metrics") is not None


def test_without_keys_a_metrics_key_guards_the_metrics_alone() -> None:
    keyring = Keyring([], digest("m"))
    assert keyring.guards("metrics")
    assert not keyring.guards("key")
    assert not Keyring([]).guards("metrics")


def test_what_is_open_has_no_guard() -> None:
    assert not Keyring(KEYS, digest("m")).guards("open")


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer   abc ", b"abc"),
        (b"Basic abc", None),
        (b"Bearer", None),
        (b"Bearer a b", None),
        (b"abc", None),
    ],
)
def test_the_bearer_is_read(value: bytes, key: bytes | None) -> None:
    assert presented_key(http((b"authorization", value))) == key


def test_a_websocket_may_carry_the_key_as_subprotocol() -> None:
    offered = ["realtime", "openai-insecure-api-key.abc", "other"]
    assert presented_key({"type": "websocket", "path": "/", "headers": [], "subprotocols": offered}) == b"abc"
    assert presented_key({"type": "websocket", "path": "/", "headers": [], "subprotocols": ["realtime"]}) is None


OPEN = {"/health", "/ready", "/ready/first"}
SPELLINGS = ["{}", "{}/", "/{}", "//{}", "{}?x=1", "/.{}", "{}/%2e%2e"]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


async def test_every_route_but_the_open_ones_asks_for_the_key(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY))
    paths = {route.path.replace("{model:path}", "first").replace("{model}", "first") for route in app.routes}
    assert paths > OPEN
    assert {"/v1/models", "/v1/models/first", "/v1/chat/completions", "/metrics", "/v1/metrics", "/schema"} <= paths
    paths |= {"/", "/nothing", "/V1/MODELS", "/v1/CHAT/completions", "/health/x", "/HEALTH"}
    for header, methods, spellings in (
        ({}, METHODS, SPELLINGS),
        ({"authorization": "Bearer wrong"}, METHODS, ["{}"]),
        ({"authorization": KEY}, ["GET", "POST"], ["{}"]),
    ):
        async with make_client(app, **header) as client:
            for path in paths - OPEN:
                for method in methods:
                    for spelling in spellings:
                        response = await client.request(method, "http://localhost" + spelling.format(path))
                        assert response.status_code == 401, (method, spelling.format(path))
                        if method != "HEAD":
                            assert response.json()["error"]["code"] == "invalid_api_key"
                        assert response.headers["www-authenticate"] == "Bearer"


async def test_open_routes_need_no_key(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY))
    async with make_client(app) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/ready/first")).status_code == 503


async def test_a_key_opens(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY))
    async with make_client(app, authorization=f"Bearer {KEY}") as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.get("/nothing")).status_code == 404


async def test_without_keys_any_bearer_is_accepted(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app, authorization="Bearer whatever") as client:
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "//metrics", "/metrics/", "/v1//metrics"])
async def test_the_metrics_key_has_no_way_round(tmp_path: Path, path: str) -> None:
    app, _ = make_app(make_settings(tmp_path, metrics_sha256=digest("m")))
    url = f"http://localhost{path}"
    async with make_client(app) as client:
        assert (await client.get(url)).status_code == 401
        assert (await client.get(url, headers={"authorization": "Bearer m"})).status_code == 200
        assert (await client.get("/v1/models")).status_code == 200


async def principal_of(tmp_path: Path, key: str | None, **headers: str) -> Principal:
    app, _ = make_app(make_settings(tmp_path, key=key))
    seen: list[Message] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/health",
        "headers": [(b"host", b"localhost"), *((k.encode(), v.encode()) for k, v in headers.items())],
        "query_string": b"",
        "path_params": {},
        "state": {},
    }
    scope["path"] = "/v1/models"

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        seen.append(message)

    await app(scope, receive, send)  # type: ignore[arg-type]
    assert seen[0]["status"] == 200
    state = scope["state"]
    assert isinstance(state, dict)
    principal: Principal = state["principal"]
    return principal


async def test_the_principal_is_in_the_state(tmp_path: Path) -> None:
    assert await principal_of(tmp_path, None) == ANONYMOUS
    found = await principal_of(tmp_path, KEY, authorization=f"Bearer {KEY}")
    assert found == Principal("test", "team", "interactive")
