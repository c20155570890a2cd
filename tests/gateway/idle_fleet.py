"""The real application over models that no worker runs: for what happens before and beside a model's work."""

from pathlib import Path
from typing import Any

import httpx
from litestar import Litestar

from gateway.app import create_app
from gateway.backends.base import State
from gateway.config.environment import digest
from gateway.config.settings import KeySettings, ModelSettings, ServerSettings, Settings
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from pipelines.messages.frames import Ready
from pipelines.messages.sampling import SamplingDefaults
from tests.declared import declared

KEY = "sk-test-key"

MODELS = (
    ModelSettings(name="first", kind="text", pipeline="tests.fakes:FakePipeline", source="fake:"),
    ModelSettings(
        name="org/second", aliases=["gpt-4o"], kind="text", pipeline="tests.fakes:FakePipeline", source="fake:"
    ),
)


READY = Ready(
    slots=4,
    context_length=2048,
    load_seconds=1.5,
    details={"device": "cpu"},
    sampling=SamplingDefaults(temperature=0.6),
)


class IdleFleet(Fleet):
    """A fleet whose workers are never started. `become` gives a model a state as a worker would have it."""

    async def start(self) -> None:
        pass

    def become(self, name: str, state: State, reason: str | None = None) -> None:
        (replica,) = self.route(name).replicas
        replica._ready = READY  # type: ignore[attr-defined]
        replica._set_state(state, reason)  # type: ignore[attr-defined]


def make_settings(tmp_path: Path, *, key: str | None = None, **server: object) -> Settings:
    keys = [KeySettings(name="test", sha256=digest(key), tenant="team")] if key else []
    return Settings(
        server=ServerSettings(spool_dir=str(tmp_path / "spool"), **server),  # type: ignore[arg-type]
        keys=keys,
        models=list(MODELS),
    )


def make_app(settings: Settings) -> tuple[Litestar, IdleFleet]:
    registry = Registry(metrics_by_kind())
    fleet = IdleFleet(settings, registry)
    return create_app(settings, fleet, registry), fleet


class Client(httpx.AsyncClient):
    """Speaks to the application itself, without its lifespan and without a socket; all its answers were declared."""

    def __init__(self, app: Litestar, headers: dict[str, str]) -> None:
        self._watched = declared(app)
        super().__init__(
            transport=httpx.ASGITransport(app=app),  # type: ignore[arg-type]
            base_url="http://localhost",
            headers=headers,
        )

    async def aclose(self) -> None:
        await super().aclose()
        self._watched.check()

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        self._watched.check()


def make_client(app: Litestar, **headers: str) -> Client:
    return Client(app, headers)
