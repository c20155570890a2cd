"""All served models by name: their workers are started, watched and drained together."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from gateway.backends.base import Backend, State
from gateway.backends.worker import Supervision, WorkerBackend
from gateway.config.settings import ModelSettings, Settings
from gateway.requests.routing import Route
from metrics.registry import Registry
from pipelines.kinds import KINDS
from pipelines.logs import LogOptions

HEAD_START_S = 20.0  # at most: a model whose files have to be fetched first must not hold up the others


class UnknownModel(LookupError):
    """No model has this name or alias. `known`: the names that are served."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no model {name!r}; served: {', '.join(known)}")
        self.name = name
        self.known = tuple(known)


class ReplicaStatus(Struct, frozen=True):
    state: State
    reason: str | None = None
    restarts: int = 0


class ModelStatus(Struct, frozen=True):
    name: str
    kind: str
    required: bool
    ready: bool  # at least one replica takes requests
    replicas: list[ReplicaStatus]


class Readiness(Struct, frozen=True):
    """`ready`: every required model that is preloaded was ready once. A worker that restarts does not take it back."""

    ready: bool
    models: list[ModelStatus]


class Fleet:
    """Lives on the event loop's thread alone."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        supervision: Supervision | None = None,
        *,
        head_start_s: float = HEAD_START_S,
    ) -> None:
        self._head_start = head_start_s
        log = settings.server.log
        self._served = [_Served(model, registry, supervision, log, self._wake) for model in settings.models]
        self._by_name = {name: served for served in self._served for name in (served.route.name, *served.route.aliases)}
        self._started = False
        self._loading: asyncio.Task[None] | None = None  # starts those that wait for the first ones

    @property
    def routes(self) -> list[Route]:
        return [served.route for served in self._served]

    def route(self, name: str) -> Route:
        """The route of a name or an alias. Raises UnknownModel."""
        return self._find(name).route

    async def start(self) -> None:
        """Begin to load what is preloaded; returns once the first processes are started."""
        self._started = True
        preloaded = [served for served in self._served if served.settings.preload]
        first = [served for served in preloaded if KINDS[served.route.kind].first] or preloaded
        for served in first:
            for replica in served.route.replicas:
                await replica.start()
        self._loading = asyncio.get_running_loop().create_task(self._load_others(first, preloaded), name="fleet")

    async def drain(self, grace: float) -> None:
        """Let open calls finish for up to `grace` seconds, then end every worker. Idempotent."""
        self._started = False
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        async with asyncio.TaskGroup() as stops:
            for served in self._served:
                for replica in served.route.replicas:
                    stops.create_task(replica.stop(grace))

    def readiness(self) -> Readiness:
        return Readiness(
            ready=all(served.was_ready for served in self._served if served.awaited),
            models=[served.status() for served in self._served],
        )

    def status(self, name: str) -> ModelStatus:
        """Of one name or alias. Raises UnknownModel."""
        return self._find(name).status()

    def _find(self, name: str) -> "_Served":
        served = self._by_name.get(name)
        if served is None:
            raise UnknownModel(name, [route.name for route in self.routes])
        return served

    def _wake(self, served: "_Served") -> None:
        if self._started:
            served.launch()

    async def _load_others(self, first: "Sequence[_Served]", preloaded: "Sequence[_Served]") -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._head_start):
                for served in first:
                    await served.settled.wait()
        for served in preloaded:
            served.launch()


class _Served:
    """One model: its route, and how far it is."""

    def __init__(
        self,
        settings: ModelSettings,
        registry: Registry,
        supervision: Supervision | None,
        log: LogOptions,
        wake: "Callable[[_Served], None]",
    ) -> None:
        spec = settings.spec()
        self.settings = settings
        self.was_ready = False
        self.settled = asyncio.Event()  # its first load has ended, well or not
        replicas: list[Backend] = [
            WorkerBackend(
                spec,
                registry=registry,
                replica=str(number),
                step_timeout_s=settings.step_timeout_s,
                supervision=supervision,
                log=log,
            )
            for number in range(settings.replicas)
        ]
        self.route = Route(settings.name, spec.kind, settings.aliases, settings, replicas, registry, lambda: wake(self))
        registry.set_slo(settings.name, msgspec.structs.asdict(settings.slo))
        for replica in replicas:
            replica.subscribe(self._changed)

    @property
    def awaited(self) -> bool:
        """Whether the fleet is not ready without it. What waits for its first request can't keep requests away."""
        return self.settings.required and self.settings.preload

    def launch(self) -> None:
        for replica in self.route.replicas:
            replica.launch()

    def status(self) -> ModelStatus:
        replicas = [ReplicaStatus(each.state, each.reason, each.restarts) for each in self.route.replicas]
        return ModelStatus(self.route.name, self.route.kind, self.settings.required, self.route.ready, replicas)

    def _changed(self) -> None:
        self.was_ready = self.was_ready or self.route.ready
        if all(replica.state is not State.LOADING for replica in self.route.replicas):
            self.settled.set()
