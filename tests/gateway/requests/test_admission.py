"""Slots, queue, priorities, deadlines."""

import asyncio
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.requests.admission import INTERACTIVE_RUN, Lease, Overloaded, QueueDeadline
from tests.gateway.requests.scripted_admission import ScriptedAdmission, settle


async def test_a_free_slot_is_granted_at_once_and_returns_once() -> None:
    harness = ScriptedAdmission(2)
    lease = await harness.admission.acquire()
    assert lease.replica is harness.backends[0]
    assert harness.admission.state() == (2, 1, 0)
    lease.release()
    lease.release()
    assert harness.admission.state() == (2, 0, 0)


async def test_waiters_are_served_in_order_as_slots_return() -> None:
    harness = ScriptedAdmission(1)
    first = await harness.admission.acquire()
    second, third = harness.ask(), harness.ask()
    await settle()
    assert harness.admission.state() == (1, 1, 2)
    first.release()
    await settle()
    assert second.done()
    assert not third.done()
    second.result().release()
    (await third).release()
    assert harness.admission.state() == (1, 0, 0)


async def test_a_full_queue_is_refused_at_once_with_whole_seconds() -> None:
    harness = ScriptedAdmission(1, max_queue=1)
    held = await harness.admission.acquire()
    waiting = harness.ask()
    await settle()
    with pytest.raises(Overloaded) as refusal:
        await harness.admission.acquire()
    assert type(refusal.value.retry_after) is int
    assert refusal.value.retry_after >= 1
    held.release()
    (await waiting).release()


async def test_retry_after_follows_the_measured_rate() -> None:
    harness = ScriptedAdmission(2, max_queue=100)
    for _ in range(60):
        harness.admission.give_back(Lease(harness.admission, harness.slots[0], 0, "", large=False), held=8.0)
    held = [await harness.admission.acquire() for _ in range(2)]
    waiting = [harness.ask() for _ in range(5)]
    await settle()
    assert harness.admission.retry_after() == 24  # six ahead or here, two at a time, eight seconds each
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for lease in held:
        lease.release()


async def test_without_a_queue_a_slot_is_needed() -> None:
    harness = ScriptedAdmission(1, max_queue=0)
    lease = await harness.admission.acquire()
    with pytest.raises(Overloaded):
        await harness.admission.acquire()
    lease.release()
    (await harness.admission.acquire()).release()


async def test_interactive_goes_first_and_batch_does_not_starve() -> None:
    harness = ScriptedAdmission(1, max_queue=100)
    lease = await harness.admission.acquire()
    order: list[str] = []

    async def run(priority: str) -> None:
        granted = await harness.ask(priority=priority)
        order.append(priority)
        granted.release()

    tasks = [asyncio.create_task(run("batch")) for _ in range(3)]
    tasks += [asyncio.create_task(run("interactive")) for _ in range(3 * INTERACTIVE_RUN)]
    await settle()
    lease.release()
    await asyncio.gather(*tasks)
    one_turn = ["interactive"] * INTERACTIVE_RUN + ["batch"]
    assert order == one_turn * 3


async def test_the_deadline_ends_the_wait_and_leaves_no_trace() -> None:
    harness = ScriptedAdmission(1)
    lease = await harness.admission.acquire()
    with pytest.raises(QueueDeadline):
        await harness.admission.acquire(deadline=monotonic() + 0.02)
    assert harness.admission.state() == (1, 1, 0)
    with pytest.raises(QueueDeadline):
        await harness.admission.acquire(deadline=monotonic() - 1)
    lease.release()


async def test_one_that_leaves_is_out_of_the_queue_at_once() -> None:
    harness = ScriptedAdmission(1)
    lease = await harness.admission.acquire()
    waiting = [harness.ask() for _ in range(3)]
    await settle()
    waiting[1].cancel()
    await settle()
    assert harness.admission.state() == (1, 1, 2)
    lease.release()
    await settle()
    assert waiting[0].done()
    waiting[0].result().release()
    (await waiting[2]).release()


async def test_a_slot_granted_to_one_that_is_leaving_is_not_lost() -> None:
    harness = ScriptedAdmission(1)
    lease = await harness.admission.acquire()
    waiting = harness.ask()
    await settle()
    lease.release()  # grants it …
    waiting.cancel()  # … in the turn of the loop in which it leaves
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert harness.admission.state() == (1, 0, 0)


async def test_the_first_free_replica_takes_the_waiter_and_the_emptiest_a_newcomer() -> None:
    harness = ScriptedAdmission(2, 3)
    leases = [await harness.admission.acquire() for _ in range(5)]
    assert [lease.replica for lease in leases][:2] == [harness.backends[1], harness.backends[0]]
    waiting = harness.ask()
    await settle()
    released = next(lease for lease in leases if lease.replica is harness.backends[0])
    released.release()
    assert (await waiting).replica is harness.backends[0]


async def test_a_request_of_many_units_takes_what_is_free_up_to_its_share() -> None:
    harness = ScriptedAdmission(20)
    first = await harness.admission.acquire(units=128, large=True)
    assert first.units == 5  # a quarter
    others = [await harness.admission.acquire(units=3) for _ in range(4)]
    assert [lease.units for lease in others] == [3, 3, 3, 3]
    held = [await harness.admission.acquire() for _ in range(2)]
    last = await harness.admission.acquire(units=4)
    assert last.units == 1  # it starts with what there is, and keeps nobody waiting for more
    for lease in (first, *others, *held, last):
        lease.release()
    assert harness.admission.state() == (20, 0, 0)
    assert harness.slots[0].large == 0


async def test_large_requests_and_batch_leave_a_reserve_for_whoever_comes() -> None:
    harness = ScriptedAdmission(10, max_queue=100)
    asked = [harness.ask(large=True) for _ in range(8)] + [harness.ask(priority="batch") for _ in range(8)]
    await settle()
    assert harness.admission.state() == (10, 8, 8)
    small = [harness.ask() for _ in range(2)]
    await settle()
    assert [task.done() for task in small] == [True, True]
    for task in small:
        task.result().release()
    await settle()
    assert harness.admission.state() == (10, 8, 8)  # what small ones give back is no room for large ones
    for task in asked:
        (await task).release()
    assert harness.admission.state() == (10, 0, 0)


async def test_large_ones_are_not_passed_by_small_ones_where_the_reserve_is_not_at_stake() -> None:
    harness = ScriptedAdmission(10, max_queue=100)
    held = [await harness.admission.acquire() for _ in range(10)]
    order: list[str] = []

    async def run(name: str, large: bool) -> None:
        lease = await harness.ask(large=large)
        order.append(name)
        lease.release()

    tasks = [asyncio.create_task(run(name, name.isupper())) for name in "aBcD"]
    await settle()
    held[0].release()
    await asyncio.gather(*tasks)
    assert order == ["a", "B", "c", "D"]
    for lease in held[1:]:
        lease.release()


async def test_a_queue_full_of_large_ones_has_room_for_small_ones() -> None:
    harness = ScriptedAdmission(5, max_queue=5)
    held = [await harness.admission.acquire() for _ in range(5)]
    large = [harness.ask(large=True) for _ in range(4)]
    await settle()
    with pytest.raises(Overloaded):
        await harness.admission.acquire(large=True)
    small = harness.ask()
    await settle()
    assert not small.done()
    for lease in held:
        lease.release()
    for task in (small, *large):
        (await task).release()


async def test_tenants_have_equal_shares_however_much_each_asks_for() -> None:
    harness = ScriptedAdmission(4, max_queue=100)
    held = [await harness.admission.acquire(tenant="a") for _ in range(4)]
    asked = {tenant: [harness.ask(tenant=tenant) for _ in range(number)] for tenant, number in (("a", 20), ("b", 3))}
    await settle()
    for lease in held[:2]:
        lease.release()
    await settle()
    assert [sum(task.done() for task in tasks) for tasks in asked.values()] == [0, 2]  # two each now
    for lease in held[2:]:
        lease.release()
    await settle()
    assert [sum(task.done() for task in tasks) for tasks in asked.values()] == [2, 2]
    for task in (*asked["b"], *asked["a"]):
        (await task).release()
    assert harness.admission.state() == (4, 0, 0)


async def test_of_tenants_that_hold_the_same_the_one_that_waited_longest_is_next() -> None:
    harness = ScriptedAdmission(1, max_queue=100)
    lease = await harness.admission.acquire()
    order: list[str] = []

    async def run(tenant: str) -> None:
        granted = await harness.ask(tenant=tenant)
        order.append(tenant)
        granted.release()

    tasks = [asyncio.create_task(run(tenant)) for tenant in "aaaabbc"]
    await settle()
    lease.release()
    await asyncio.gather(*tasks)
    assert order == list("abcabaa")


async def test_configured_slots_cap_what_a_worker_announces() -> None:
    harness = ScriptedAdmission(16, limit=2)
    assert harness.admission.total == 2


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(["ask", "release", "leave"]), st.integers(0, 5), st.booleans()), max_size=60),
)
def test_slots_are_never_oversold_and_all_return(replicas: list[int], moves: list[tuple[str, int, bool]]) -> None:
    async def run() -> None:
        harness = ScriptedAdmission(*replicas, max_queue=5)
        open_: list[asyncio.Task[Lease]] = []
        for move, number, batch in moves:
            if move == "ask":
                priority, tenant = "batch" if batch else "interactive", str(number % 2)
                open_.append(harness.ask(number + 1, priority, tenant=tenant, large=number == 5))
            elif open_:
                task = open_.pop(number % len(open_))
                if move == "release" and task.done() and not task.cancelled() and task.exception() is None:
                    task.result().release()
                elif not task.done():
                    task.cancel()
                    if number % 2:
                        await settle()
                else:
                    open_.append(task)
            if number % 3:
                await settle()
            assert all(slots.large <= slots.used <= slots.total for slots in harness.slots)
        await settle()
        while open_:
            task = open_.pop(0)
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().release()
            elif not task.done():
                open_.append(task)
            await settle()
        assert harness.admission.state() == (sum(replicas), 0, 0)
        assert not any(slots.large for slots in harness.slots)
        assert not harness.admission._held

    asyncio.run(run())
