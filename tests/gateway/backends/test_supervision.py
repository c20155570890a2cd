"""A worker's life: killed, frozen, hung, unloadable, drained; and what is left of it."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gateway.backends.base import State
from gateway.backends.worker import Supervision, WorkerBackend
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from pipelines.messages.frames import Done
from pipelines.messages.text import Delta
from tests.fakes import fake_spec
from tests.gateway.backends.workers import (
    IMPATIENT,
    PATIENCE,
    first,
    lost,
    open_call,
    read,
    running,
    text,
    until,
    workers,
)

ROOT = Path(__file__).parents[3]


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_a_killed_worker_loses_its_calls_and_comes_back() -> None:
    registry = Registry(metrics_by_kind())
    async with running(registry=registry) as backend:
        changes: list[State] = []
        backend.subscribe(lambda: changes.append(backend.state))
        session = open_call(backend, "!tokens=100000 !step-ms=5")
        await first(session, Delta)
        pid = backend.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert lost(await read(session))
        assert backend.state is State.RESTARTING
        await until(lambda: backend.state is State.READY)
        assert backend.pid != pid
        assert not psutil.pid_exists(pid)  # reaped
        assert set(changes) == {State.RESTARTING, State.READY}
        assert text(await read(open_call(backend, "back again"))) == "back again"
        assert 'gateway_worker_restarts_total{model="fake",pipeline="text"} 1.0' in registry.render()[0].decode()


@pytest.mark.parametrize("fault", ["step-error", "die-prepare", "freeze", "hang"])
async def test_a_worker_that_breaks_or_stands_still_is_replaced(fault: str) -> None:
    """`freeze`: no pong; `hang`: pongs that tell of a step without end."""
    async with running(step_timeout_s=0.3) as backend:
        session = open_call(backend, f"one two three !{fault}")
        assert lost(await read(session))
        assert backend.ready is None
        await until(lambda: backend.restarts == 1 and backend.state is State.READY)
        assert text(await read(open_call(backend, "back again"))) == "back again"


async def test_the_reason_of_a_loss_is_kept_for_people() -> None:
    slow = Supervision(ping=0.05, silence=0.3, backoff=60.0)
    async with running(supervision=slow, step_timeout_s=0.3) as backend:
        await read(open_call(backend, "one two !hang"))
        await until(lambda: "step took longer" in (backend.reason or ""))
        assert backend.state is State.RESTARTING
    assert backend.state is State.STOPPED  # also while it waits for its next life


async def test_a_model_that_can_never_load_is_not_tried_again() -> None:
    backend = WorkerBackend(
        fake_spec(source="fake:missing"), registry=Registry(metrics_by_kind()), supervision=IMPATIENT
    )
    await backend.start()
    await until(lambda: backend.state is State.FAILED)
    assert backend.reason == "the fake model is missing"
    await until(lambda: not workers())
    await asyncio.sleep(3 * IMPATIENT.backoff_max)
    assert (backend.state, backend.restarts) == (State.FAILED, 0)
    await backend.stop(1.0)


async def test_a_load_that_broke_is_tried_again(tmp_path: Path) -> None:
    async with running(fake_spec(source=f"fake:flaky:{tmp_path / 'tried'}")) as backend:
        assert backend.restarts == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error", "KeyError: 'a key' while it loaded the model"),
        ("memory", "MemoryError while it loaded the model"),
        ("panic", "BaseException: a library panicked while it loaded the model"),
        ("sys-exit", "SystemExit: a library gave up while it loaded the model"),
        ("exit", "the worker exited with status 0 while it loaded the model"),
        ("segv", "the worker ended by SIGSEGV while it loaded the model"),
        ("kill", "the worker ended by SIGKILL while it loaded the model"),
    ],
)
async def test_a_model_whose_loads_break_has_failed_for_that_reason(fault: str, reason: str) -> None:
    patience = replace(IMPATIENT, loads=2)
    backend = WorkerBackend(
        fake_spec(source=f"fake:broken:{fault}"), registry=Registry(metrics_by_kind()), supervision=patience
    )
    states: list[State] = []
    backend.subscribe(lambda: states.append(backend.state))
    await backend.start()
    await until(lambda: backend.state is State.FAILED)
    assert backend.reason == reason
    await asyncio.sleep(3 * patience.backoff_max)
    assert (backend.state, backend.restarts) == (State.FAILED, 1)
    assert states == [State.LOADING, State.RESTARTING, State.FAILED]
    await backend.stop(1.0)


async def test_a_model_that_was_ready_is_tried_again_though_its_loads_break(tmp_path: Path) -> None:
    """Its files can be loaded: what is missing may come back, as memory does. Meanwhile nobody waits for it."""
    broken = tmp_path / "broken"
    patience = replace(IMPATIENT, loads=2)
    async with running(fake_spec(source=f"fake:broken-by:{broken}"), supervision=patience) as backend:
        broken.touch()
        await read(open_call(backend, "!die=1 x"))
        await until(lambda: backend.state is State.FAILED)
        assert "broken by a file" in (backend.reason or "")
        broken.unlink()
        await until(lambda: backend.state is State.READY)


async def test_loading_is_exempt_from_the_other_limits_but_has_its_own() -> None:
    async with running(fake_spec(source="fake:slow:1"), step_timeout_s=0.1) as backend:
        assert backend.restarts == 0
    hurried = Supervision(ping=0.05, load=0.2, backoff=60.0)
    backend = WorkerBackend(fake_spec(source="fake:slow:60"), registry=Registry(metrics_by_kind()), supervision=hurried)
    await backend.start()
    await until(lambda: "not loaded" in (backend.reason or ""))
    await backend.stop(0.0)


async def test_stop_lets_open_calls_finish() -> None:
    async with running() as backend:
        session = open_call(backend, "one two three !step-ms=30")
        await first(session, Delta)
        stopping = asyncio.ensure_future(backend.stop(PATIENCE))
        await asyncio.sleep(0)
        assert backend.state is State.DRAINING
        assert backend.ready is None
        events = await read(session)
        assert isinstance(events[-1], Done)
        await stopping
        assert backend.state is State.STOPPED


async def test_stop_ends_what_does_not_finish_in_time_and_leaves_nothing_behind() -> None:
    before = descriptors()
    tasks = asyncio.all_tasks()
    async with running() as backend:
        stuck = open_call(backend, "one !hang=1")
        frozen = open_call(backend, "!stream")
        await asyncio.gather(backend.stop(0.1), backend.stop(0.1))
        assert lost(await read(stuck))
        assert lost(await read(frozen))
    assert not workers()
    assert asyncio.all_tasks() == tasks
    await until(lambda: descriptors() == before)


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_stop_while_it_loads(pause: float) -> None:
    backend = WorkerBackend(fake_spec(source="fake:slow:60"), registry=Registry(metrics_by_kind()))
    await backend.start()
    await asyncio.sleep(pause)
    await backend.stop(PATIENCE)
    assert backend.state is State.STOPPED
    assert not workers()


async def test_restarts_leak_no_descriptors() -> None:
    async with running() as backend:
        before = descriptors()
        for _ in range(3):
            await read(open_call(backend, "!die=1 x"))
            await until(lambda: backend.state is State.READY)
        assert backend.restarts == 3
        await until(lambda: descriptors() == before)


def test_a_worker_ends_with_a_gateway_that_is_killed() -> None:
    script = (
        "import asyncio\n"
        "from tests.gateway.backends.workers import running\n"
        "async def main():\n"
        "    async with running() as backend:\n"
        "        print(backend.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        worker = psutil.Process(int(gateway.stdout.readline()))
        gateway.kill()
        worker.wait(PATIENCE)
