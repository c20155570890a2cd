"""Real servers on loopback: httpx's own ASGI transport can't show what happens when a client leaves."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import uvloop

from gateway.app import create_app
from gateway.backends.worker import Supervision
from gateway.config.settings import Settings
from gateway.endpoint import Endpoint
from gateway.http.listener import bind, url
from gateway.http.server import Server, http_server
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from tests.declared import declared


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway, seen from inside and outside."""

    url: str
    settings: Settings
    fleet: Fleet
    registry: Registry
    loop: asyncio.AbstractEventLoop
    server: Server
    endpoints: Sequence[Endpoint]

    @property
    def connections(self) -> int:
        """That are open now."""
        return len(self.server.server_state.connections)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


MakeFleet = Callable[[Settings, Registry], Fleet]


@asynccontextmanager
async def gateway(
    settings: Settings, make_fleet: MakeFleet = Fleet, registry: Registry | None = None
) -> AsyncIterator[Gateway]:
    """The whole application on a free port, in the running loop; drained at the end, and every answer that left it has
    been one that its schema declares."""
    registry = registry or Registry(metrics_by_kind())
    fleet = make_fleet(settings, registry)
    app = create_app(settings, fleet, registry)
    watched = declared(app)
    server = http_server(app, settings.server)
    listener = bind(settings.server)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if serving.done():
            await serving
        await asyncio.sleep(0.005)
    try:
        loop, endpoints = asyncio.get_running_loop(), [*app.state.endpoints]
        yield Gateway(url(listener), settings, fleet, registry, loop, server, endpoints)
    finally:
        server.should_exit = True
        await serving
        watched.check()


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for something that happens elsewhere: on this loop, in another thread, in a worker."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (whatever it is, it has no event for us)
            await asyncio.sleep(0.002)


@contextmanager
def gateway_thread(
    settings: Settings,
    supervision: Supervision | None = None,
    *,
    make_fleet: MakeFleet | None = None,
    ready: bool = True,
) -> Iterator[Gateway]:
    """The same on a loop of its own in a thread, as a server for clients that block; ready when it is yielded, unless
    `ready` says otherwise."""
    found: list[Gateway] = []
    failed: list[BaseException] = []
    up = threading.Event()
    stop: list[Callable[[], None]] = []

    async def run() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(over.set))

        def supervised(settings: Settings, registry: Registry) -> Fleet:
            return Fleet(settings, registry, supervision)

        async with gateway(settings, make_fleet or supervised) as running:
            if ready:
                await until(lambda: running.fleet.readiness().ready, 60)
            found.append(running)
            up.set()
            await over.wait()

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run())
        except BaseException as error:
            failed.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=main, name="gateway")
    thread.start()
    up.wait()
    if failed:
        raise failed[0]
    try:
        yield found[0]
    finally:
        stop[0]()
        thread.join()
    if failed:
        raise failed[0]
