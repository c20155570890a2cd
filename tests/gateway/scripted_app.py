"""The real application over scripted replicas, on a socket in the test's own loop."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
import msgspec

from gateway.config.settings import ServerSettings, Settings
from gateway.requests.admission import Admission
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from metrics.timeline import Intervals, Timeline
from pipelines.kinds import metrics_by_kind
from tests.gateway.scripted import SETTINGS, ScriptedBackend, ScriptedFleet
from tests.servers import Gateway, gateway

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class RecordingRegistry(Registry):
    """Remembers the timelines it was handed."""

    def __init__(self) -> None:
        super().__init__(metrics_by_kind())
        self.closed: list[Timeline] = []
        self.refused: list[str] = []

    def request(self, model: str, pipeline: str, timeline: Timeline) -> Intervals:
        self.closed.append(timeline)
        return super().request(model, pipeline, timeline)

    def rejected(self, model: str, pipeline: str, reason: str) -> None:
        self.refused.append(reason)
        super().rejected(model, pipeline, reason)

    @property
    def outcomes(self) -> list[str]:
        return [timeline.outcome for timeline in self.closed]


@dataclass
class ScriptedApp:
    gateway: Gateway
    backend: ScriptedBackend
    registry: RecordingRegistry
    client: httpx.AsyncClient

    @property
    def admission(self) -> Admission:
        return self.gateway.fleet.routes[0].admission

    async def chat(
        self, content: Any = "hello", /, headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        return await self.client.post(CHAT, json=chat(content, **fields), headers=headers)

    async def complete(self, prompt: Any = "hello", /, **fields: Any) -> httpx.Response:
        return await self.client.post(COMPLETIONS, json={"model": "scripted", "prompt": prompt, **fields})


def chat(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": content}], **fields}


class AppHost:
    """One running application; each test gets a route of its own on it."""

    def __init__(self, running: Gateway, registry: RecordingRegistry, client: httpx.AsyncClient) -> None:
        self._running = running
        self._registry = registry
        self._client = client

    def app(self, backend: ScriptedBackend | None = None, **model: object) -> ScriptedApp:
        """`model`: settings of the one model."""
        served = backend or ScriptedBackend()
        settings = msgspec.structs.replace(SETTINGS, **model)
        cast(ScriptedFleet, self._running.fleet).serve(settings, [served])
        self._registry.closed.clear()
        self._registry.refused.clear()
        return ScriptedApp(self._running, served, self._registry, self._client)


@asynccontextmanager
async def app_host(spool: str, **server: Any) -> AsyncIterator[AppHost]:
    """`server`: further settings of it."""
    registry = RecordingRegistry()

    def make_fleet(settings: Settings, registry: Registry) -> Fleet:
        return cast(Fleet, ScriptedFleet(registry))

    settings = Settings(server=ServerSettings(port=0, spool_dir=spool, **server))
    async with (
        gateway(settings, make_fleet, registry) as running,
        httpx.AsyncClient(base_url=running.url, timeout=20) as client,
    ):
        yield AppHost(running, registry, client)


def events(text: str) -> list[dict[str, Any]]:
    """The payloads of a stream that ended well."""
    frames = text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
