"""No route is open but the documented ones, whatever it is called and however it is spelled."""

import hashlib
from collections.abc import Iterator

import httpx
import pytest

from gateway.app import create_app
from gateway.config.settings import KeySettings, ServerSettings, Settings
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from tests.integration.conftest import fake_model
from tests.servers import gateway_thread

KEY = "sk-right"
OPEN = {"/health", "/ready", "/ready/one"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(
        server=ServerSettings(port=0, spool_dir=str(tmp_path_factory.mktemp("spool"))),
        keys=[KeySettings(name="k", sha256=hashlib.sha256(KEY.encode()).hexdigest())],
        models=[fake_model("one", 1, required=False, preload=False)],
    )


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[httpx.Client]:
    with gateway_thread(settings) as running, httpx.Client(base_url=running.url, timeout=10) as client:
        yield client


def routes(settings: Settings) -> list[tuple[str, str]]:
    """Every (method, path) of the application."""
    registry = Registry(metrics_by_kind())
    app = create_app(settings, Fleet(settings, registry), registry)
    return sorted(
        (method, route.path.replace("{model:path}", "one").replace("{path:str}", "x"))
        for route in app.routes
        for method in route.methods
    )


def test_every_route_asks_for_the_key(client: httpx.Client, settings: Settings) -> None:
    found = routes(settings)
    assert ("POST", "/v1/chat/completions") in found
    assert ("GET", "/metrics") in found
    for method, path in found:
        for headers in ({}, {"authorization": "Bearer sk-wrong"}, {"authorization": f"Basic {KEY}"}):
            answer = client.request(method, path, headers=headers)
            if path in OPEN:
                assert answer.status_code != 401, (method, path)
            else:
                assert answer.status_code == 401, (method, path)
                assert answer.json()["error"]["type"] == "authentication_error"
        assert client.request(method, path, headers={"authorization": f"Bearer {KEY}"}).status_code != 401


@pytest.mark.parametrize(
    "path",
    ["/v1/models/", "//v1/models", "/V1/MODELS", "/v1//models", "/v1/./models", "/v1/%6dodels", "/v1/models?x=/health",
     "/health/", "/HEALTH", "//health", "/health/../v1/models", "/v1/models%2f..%2f..%2fhealth", "/nothing/here"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_no_spelling_gets_round_it(client: httpx.Client, path: str, method: str) -> None:
    answer = client.request(method, httpx.URL(str(client.base_url).rstrip("/") + path))
    assert answer.status_code == 401
