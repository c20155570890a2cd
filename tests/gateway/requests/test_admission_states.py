"""Who waits, and for how long, while replicas load, restart and fail."""

import asyncio
from time import monotonic

import pytest

from gateway.backends.base import State
from gateway.requests.admission import Lease, Overloaded, QueueDeadline, Unavailable
from tests.gateway.requests.scripted_admission import ScriptedAdmission, settle
from tests.gateway.scripted import ScriptedBackend


async def test_nobody_is_sent_to_a_replica_that_is_not_ready() -> None:
    harness = ScriptedAdmission(2)
    harness.backends[0].become(State.RESTARTING, "it was lost")
    with pytest.raises(Unavailable) as refusal:
        await harness.admission.acquire()
    assert refusal.value.reason == "it was lost"
    assert refusal.value.retry_after == 3  # its last load took 1.2 s


async def test_the_first_load_is_waited_for_within_the_queue_and_the_deadline() -> None:
    backends = [ScriptedBackend(2)]
    backends[0].state = State.LOADING
    harness = ScriptedAdmission.over(backends, max_queue=2)
    first, second = harness.ask(), harness.ask(deadline=monotonic() + 0.02)
    await settle()
    with pytest.raises(Overloaded):
        await harness.admission.acquire()
    with pytest.raises(QueueDeadline):
        await second
    assert harness.admission.waiting == 1
    backends[0].become(State.READY)
    (await first).release()
    assert harness.admission.state() == (2, 0, 0)


@pytest.mark.parametrize("state", [State.FAILED, State.RESTARTING])  # for good, or to be tried again
async def test_a_first_load_that_failed_ends_the_wait_with_its_reason(state: State) -> None:
    backends = [ScriptedBackend()]
    backends[0].state = State.LOADING
    harness = ScriptedAdmission.over(backends)
    waiting = [harness.ask() for _ in range(3)]
    await settle()
    backends[0].become(state, "no such file")
    for each in waiting:
        with pytest.raises(Unavailable, match="no such file"):
            await each
    assert harness.admission.waiting == 0


async def test_who_waited_for_the_load_and_may_not_wait_for_a_slot_is_refused_then() -> None:
    backends = [ScriptedBackend(2)]
    backends[0].state = State.LOADING
    harness = ScriptedAdmission.over(backends, max_queue=0, max_loading=8)
    waiting = [harness.ask() for _ in range(5)]
    await settle()
    backends[0].become(State.READY)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in outcomes] == [Lease] * 2 + [Overloaded] * 3
    with pytest.raises(Overloaded):
        await harness.admission.acquire()
    for lease in outcomes:
        if isinstance(lease, Lease):
            lease.release()
    assert harness.admission.state() == (2, 0, 0)


async def test_waiters_outlive_a_restart() -> None:
    harness = ScriptedAdmission(1)
    lease = await harness.admission.acquire()
    waiting = harness.ask()
    await settle()
    harness.backends[0].become(State.RESTARTING)
    lease.release()  # its session ended with the worker
    await settle()
    assert not waiting.done()
    harness.backends[0].become(State.READY)
    (await waiting).release()


async def test_waiters_end_when_nothing_will_come_back() -> None:
    harness = ScriptedAdmission(1)
    lease = await harness.admission.acquire()
    waiting = harness.ask()
    await settle()
    harness.backends[0].become(State.FAILED, "no such file")
    with pytest.raises(Unavailable, match="no such file"):
        await waiting
    lease.release()
    assert harness.admission.state() == (0, 0, 0)
