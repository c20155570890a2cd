"""Who is prepared next."""

import threading
from typing import Any

import pytest

from pipelines.base import Ticket
from pipelines.messages.text import StringPrompt, TextRequest
from pipelines.runtime.backlog import BATCH_S, LARGE, PATIENCE_S, Backlog
from pipelines.runtime.inbox import Inbox, OpenRequest
from pipelines.runtime.prepare_pool import PreparePool


def request(id: str, received: float = 0.0, priority: Any = "interactive") -> OpenRequest:
    return OpenRequest(Ticket(id, priority, received))


def put(backlog: Backlog, opened: OpenRequest, effort: int) -> None:
    backlog.put(opened, effort, since=opened.ticket.received)


def order(backlog: Backlog, count: int) -> str:
    return "".join(backlog.take(large=True).ticket.id for _ in range(count))


def test_small_ones_first_then_in_order() -> None:
    backlog = Backlog()
    for id, size in (("a", 5_000), ("b", 10), ("c", 2_000), ("d", 10)):
        put(backlog, request(id), size)
    assert order(backlog, 4) == "bdca"


def test_a_large_one_has_its_turn_once_it_has_waited_for_its_size() -> None:
    backlog = Backlog()
    put(backlog, request("L"), 10 * LARGE)
    waits = 10 * LARGE * PATIENCE_S
    put(backlog, request("a", waits - 0.1), 1)
    put(backlog, request("b", waits + 0.1), 1)
    assert order(backlog, 3) == "aLb"


def test_interactive_before_batch_and_batch_does_not_starve() -> None:
    backlog = Backlog()
    put(backlog, request("B", priority="batch"), 10)
    for number in range(3):
        put(backlog, request(str(number), BATCH_S * number), 10)
    assert order(backlog, 4) == "0B12"


def test_large_ones_leave_a_thread_to_the_others() -> None:
    backlog = Backlog()
    taken: list[str] = []
    thread = threading.Thread(target=lambda: taken.append(backlog.take(large=False).ticket.id))
    put(backlog, request("L"), LARGE + 1)
    thread.start()
    assert taken == []
    put(backlog, request("s"), LARGE)
    thread.join(10)
    assert taken == ["s"]
    assert order(backlog, 1) == "L"


def test_a_chunk_of_a_stream_waits_from_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: PreparePool[Any] = PreparePool(Inbox())  # not started: all that is put stays in its backlog
    now = 3_600.0
    monkeypatch.setattr("pipelines.runtime.prepare_pool.monotonic", lambda: now)
    for id, received, item in (
        ("stream", 0.0, bytes(1_000)),
        ("new", now, TextRequest(prompts=[StringPrompt("a")])),
        ("old", 0.0, TextRequest(prompts=[StringPrompt("a")])),
    ):
        opened = request(id, received)
        opened.push(item)
        pool.put(opened)
    assert [pool._backlog.take(large=True).ticket.id for _ in range(3)] == ["old", "new", "stream"]
