"""The life of the gateway process: bind, load, serve, drain."""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.backends.base import State
from gateway.config.settings import Settings
from gateway.endpoint import Endpoint
from gateway.http.listener import url
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind

# In these a model's first load has not ended.
LOADING = frozenset({State.LOADING, State.STOPPED})


class Announcer(Protocol):
    """Who tells the operator what happens."""

    def listening(self, url: str) -> None: ...

    def settled(self, fleet: Fleet, endpoints: Sequence[Endpoint], url: str) -> None:
        """Every required model is ready, or will never be."""
        ...


def run(settings: Settings, listener: socket.socket, announcer: Announcer) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP (its terminal is gone), then drain; a second signal cuts that short."""
    with asyncio.Runner(loop_factory=_new_event_loop()) as runner:
        runner.run(serve(settings, listener, announcer))


def _new_event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's where it is installed: it has no wheel for every platform, and asyncio's own does, more slowly."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return make


async def serve(settings: Settings, listener: socket.socket, announcer: Announcer) -> None:
    loop = asyncio.get_running_loop()
    stop = _Stop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has it ignored
            loop.add_signal_handler(number, stop)

    registry = Registry(metrics_by_kind())
    fleet = Fleet(settings, registry)
    await fleet.start()
    try:
        # The workers load while this process imports its HTTP stack, which takes half a second.
        from gateway.app import create_app
        from gateway.http.server import http_server

        app = create_app(settings, fleet, registry, started=True)
        server = http_server(app, settings.server)
        stop.drain = lambda: setattr(server, "should_exit", True)
        stop.cut = lambda: setattr(server, "force_exit", True)
        watching = loop.create_task(_announce(fleet, settings, announcer, [*app.state.endpoints], url(listener)))
        try:
            if not stop.requested:
                await server.serve(sockets=[listener])
        finally:
            watching.cancel()
    finally:
        await fleet.drain(0)


class _Stop:
    """The signal handler: the first signal drains, the next ones cut it short."""

    def __init__(self) -> None:
        self.requested = False
        self.drain: Callable[[], None] | None = None
        self.cut: Callable[[], None] | None = None

    def __call__(self) -> None:
        then = self.cut if self.requested else self.drain
        self.requested = True
        if then is not None:
            then()


async def _announce(
    fleet: Fleet, settings: Settings, announcer: Announcer, endpoints: Sequence[Endpoint], at: str
) -> None:
    announcer.listening(at)
    changed = asyncio.Event()
    preloaded = [m.name for m in settings.models if m.preload]
    awaited = [route for route in fleet.routes if route.name in preloaded]
    for route in awaited:
        for replica in route.replicas:
            replica.subscribe(changed.set)
    while any(replica.state in LOADING for route in awaited for replica in route.replicas):
        changed.clear()
        await changed.wait()
    announcer.settled(fleet, endpoints, at)
