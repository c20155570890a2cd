"""Every request ends exactly once: aborts at every stage, deadlines at every stage."""

from collections.abc import Iterator

import pytest

from pipelines.messages.frames import Abort, Accepted, Done, Event, Failed
from pipelines.messages.text import Delta
from tests.fakes import fake_spec
from tests.pipelines.worker_process import Worker, fed, terminals


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One pool thread and two slots, so that a request can be held at any stage."""
    with Worker(fake_spec(slots=2, prepare_threads=1)) as worker:
        worker.ready()
        yield worker


def end_of(worker: Worker, id: str, *others: str) -> Failed:
    """The one terminal event of a request that failed, and nothing after it while others went on."""
    worker.open("last", "one")
    events = worker.finish(id, *others, "last")[id]
    worker.open("later", "one two three")
    assert id not in worker.finish("later")
    [failed] = terminals(events)
    assert failed is events[-1]
    assert isinstance(failed, Failed)
    return failed


def test_abort_while_queued_for_prepare(worker: Worker) -> None:
    worker.open("slow", "!slow-prepare=200 one")
    worker.open("x", "one !bad !slow-prepare=0")  # would fail otherwise, were it prepared
    worker.send(Abort("x"), Abort("x"))
    assert end_of(worker, "x", "slow").code == "cancelled"


def test_abort_while_it_is_prepared(worker: Worker) -> None:
    worker.open("x", "!slow-prepare=200 one")
    worker.send(Abort("x"))
    assert end_of(worker, "x").code == "cancelled"


def test_abort_once_prepared_behind_a_long_step(worker: Worker) -> None:
    worker.open("long", "one two three !step-ms=300")
    worker.first("long", Delta)
    worker.open("x", "one two")  # prepared while the step runs; both are in the inbox after it
    worker.send(Abort("x"))
    assert end_of(worker, "x", "long").code == "cancelled"


def test_abort_while_waiting_for_a_slot_of_the_engine(worker: Worker) -> None:
    worker.open("a", "!tokens=20 !step-ms=10")
    worker.open("b", "!tokens=20 !step-ms=10")
    worker.open("x", "one")
    worker.first("x", Accepted)
    worker.send(Abort("x"))
    assert end_of(worker, "x", "a", "b").code == "cancelled"


def test_abort_while_running(worker: Worker) -> None:
    worker.open("x", "!tokens=100000 !step-ms=5")
    worker.first("x", Delta)
    worker.send(Abort("x"), Abort("x"))
    assert end_of(worker, "x").code == "cancelled"


def test_abort_of_an_open_stream(worker: Worker) -> None:
    worker.open("x", "!stream")
    worker.send(fed("x", "one"))
    worker.first("x", Delta)
    worker.send(Abort("x"), fed("x", "two"))
    assert end_of(worker, "x").code == "cancelled"


def test_abort_after_the_end_says_nothing(worker: Worker) -> None:
    worker.open("x", "one")
    assert isinstance(worker.finish("x")["x"][-1], Done)
    worker.send(Abort("x"), Abort("never opened"))
    worker.open("after", "one two three")
    assert set(worker.finish("after")) == {"after"}


def test_deadline_while_queued_for_prepare(worker: Worker) -> None:
    worker.open("slow", "!slow-prepare=200 one")
    worker.open("x", "one two three !die-prepare", deadline=0.05)  # longer, so behind it; is not even begun
    assert end_of(worker, "x", "slow").code == "deadline_exceeded"


def test_deadline_while_it_is_prepared(worker: Worker) -> None:
    worker.open("x", "!slow-prepare=200 one", deadline=0.1)
    failed = end_of(worker, "x")
    assert failed.code == "deadline_exceeded"


def test_deadline_while_waiting_for_a_slot_of_the_engine(worker: Worker) -> None:
    worker.open("a", "!tokens=40 !step-ms=10")
    worker.open("b", "!tokens=40 !step-ms=10")
    worker.open("x", "one", deadline=0.1)
    events: list[Event] = worker.finish("x")["x"]
    assert not [event for event in events if isinstance(event, Delta)]
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "deadline_exceeded"
    worker.finish("a", "b")


@pytest.mark.parametrize("words", ["!tokens=100000 !step-ms=5", "!stream"])
def test_deadline_while_it_runs_or_waits_for_input(worker: Worker, words: str) -> None:
    worker.open("x", words, deadline=0.2)
    worker.first("x", Accepted)
    failed = worker.first("x", Failed)
    assert isinstance(failed, Failed)
    assert failed.code == "deadline_exceeded"
