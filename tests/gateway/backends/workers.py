"""Real workers with the fake pipeline in them, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic

import psutil

from gateway.backends.base import Call, Session, State
from gateway.backends.worker import Supervision, WorkerBackend
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.kinds import metrics_by_kind
from pipelines.messages.frames import Done, Event, Failed, ModelSpec
from pipelines.messages.text import Delta, StringPrompt, TextRequest
from tests.fakes import fake_spec

PATIENCE = 30.0  # seconds; a test that waits this long has failed

# Quick to notice and to restart.
IMPATIENT = Supervision(ping=0.05, silence=0.3, backoff=0.02, backoff_max=0.1)


def workers() -> list[psutil.Process]:
    """Children of this process that it has not reaped. Other tests' media helpers may be there beside them."""

    def decodes(child: psutil.Process) -> bool:
        with suppress(psutil.Error):  # one that has ended has no command line
            return "pipelines.media.helper" in child.cmdline()
        return False

    return [child for child in psutil.Process().children() if not decodes(child)]


async def until(happened: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE
    while not happened():
        assert monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    spec: ModelSpec | None = None,
    *,
    registry: Registry | None = None,
    supervision: Supervision = IMPATIENT,
    step_timeout_s: float = 60.0,
) -> AsyncIterator[WorkerBackend]:
    """A backend that is ready, and stopped afterwards."""
    backend = WorkerBackend(
        spec or fake_spec(),
        registry=registry or Registry(metrics_by_kind()),
        step_timeout_s=step_timeout_s,
        supervision=supervision,
    )
    await backend.start()
    try:
        await until(lambda: backend.state is State.READY)
        yield backend
    finally:
        await backend.stop(0.0)


def open_call(backend: WorkerBackend, words: str, *, n: int = 1, timeline: Timeline | None = None) -> Session:
    call = Call("call", TextRequest(prompts=[StringPrompt(words)], n=n))
    return backend.open(call, timeline or Timeline())


async def each(session: Session) -> AsyncIterator[Event]:
    """Its events up to the terminal one."""
    while True:
        for event in await session.read():
            yield event
            if isinstance(event, Done | Failed):
                return


async def read(session: Session) -> list[Event]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in each(session)]


async def first(session: Session, kind: type[Event]) -> None:
    """Read up to the first event of that kind."""
    async with asyncio.timeout(PATIENCE):
        async for event in each(session):
            if isinstance(event, kind):
                return
    raise AssertionError(f"no {kind.__name__}")


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def terminals(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Done | Failed)]


def lost(events: list[Event]) -> bool:
    """Whether the events end, once, with the loss of the worker."""
    [end] = terminals(events)
    return end is events[-1] and isinstance(end, Failed) and end.code == "worker_lost"
