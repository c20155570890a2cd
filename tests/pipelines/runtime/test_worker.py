"""The worker process, over its socket, with the fake pipeline in it: faults, streams, drain, its end."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from pipelines.messages.frames import Accepted, Done, Drain, Failed, Feed, LoadFailed, Open, Ping, Pong, Stats
from pipelines.messages.sampling import Sampling
from pipelines.messages.text import Delta, StringPrompt, TextRequest
from tests.fakes import fake_spec
from tests.pipelines.worker_process import PATIENCE, Worker, fed, terminals, text


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Shared by tests that leave it alive."""
    with Worker(fake_spec()) as worker:
        worker.ready()
        yield worker


def test_a_request_is_accepted_then_streams_then_is_done(worker: Worker) -> None:
    worker.open("whole", "one two three", n=2)
    events = worker.finish("whole")["whole"]
    assert isinstance(events[0], Accepted)
    assert events[0].prompt_tokens == 3  # shared by the choices, counted once
    assert text(events, 0) == text(events, 1) == "one two three"
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 6)
    assert 0 < done.timing.prepare <= done.timing.total


@pytest.mark.parametrize(
    ("words", "code", "param"),
    [
        ("!bad", "invalid_request", "messages[0].content"),
        ("!too-long", "context_length_exceeded", "messages"),
        ("!prepare-error", "internal_error", None),
    ],
)
def test_a_request_that_breaks_prepare_fails_alone(worker: Worker, words: str, code: str, param: str | None) -> None:
    worker.open("good", "one two !step-ms=5")
    worker.open("bad", words)
    events = worker.finish("good", "bad")
    assert text(events["good"]) == "one two"
    [failed] = events["bad"]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == (code, param)
    assert "secret" not in failed.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 129}, "n"), ({"prompts": []}, "prompts"), ({"sampling": Sampling(temperature=-1.0)}, "temperature")],
)
def test_a_request_beyond_the_limits_of_its_type_fails_alone(worker: Worker, fields: Any, param: str) -> None:
    worker.open("good", "one two !step-ms=5")
    worker.send(Open("bad", TextRequest(**{"prompts": [StringPrompt("one")], **fields})))
    events = worker.finish("good", "bad")
    assert text(events["good"]) == "one two"
    [failed] = events["bad"]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == ("invalid_request", param)
    assert f"'{param}' is not valid" in failed.message


def test_a_request_that_breaks_the_step_fails_alone(worker: Worker) -> None:
    for id in ("a", "b", "c"):
        worker.open(id, "one two three !step-ms=20" + (" !crash-step" if id == "b" else ""))
    events = worker.finish("a", "b", "c")
    assert text(events["a"]) == text(events["c"]) == "one two three"
    [failed] = terminals(events["b"])
    assert isinstance(failed, Failed)
    assert failed.code == "internal_error"
    assert "secret" not in failed.message


def test_a_step_that_fails_only_together_fails_nobody(worker: Worker) -> None:
    worker.open("a", "one two three !flaky-step !step-ms=20")
    worker.open("b", "one two three !step-ms=20")
    events = worker.finish("a", "b")
    assert text(events["a"]) == text(events["b"]) == "one two three"
    assert all(isinstance(terminals(of)[0], Done) for of in events.values())


@pytest.mark.parametrize("fault", ["step-error", "device-lost"])
def test_a_fault_that_leaves_the_model_in_doubt_ends_the_process(fault: str) -> None:
    with Worker(fake_spec()) as worker:
        worker.ready()
        worker.open("a", f"one two three !{fault}")
        assert not terminals(list(worker.events()))
        assert worker.process.wait(PATIENCE) not in (0, None)


def test_chunks_of_a_stream_are_worked_off_in_order(worker: Worker) -> None:
    numbers = [str(number) for number in range(200)]
    request = TextRequest(prompts=[StringPrompt("!stream !slow-prepare=20")])
    worker.send(Open("s", request), *(fed("s", number) for number in numbers), fed("s", None))
    assert text(worker.finish("s")["s"]).split() == numbers


def test_a_bad_chunk_ends_its_stream(worker: Worker) -> None:
    worker.open("s", "!stream")
    worker.send(*(fed("s", word) for word in ("one", "!bad", "two", None)), fed("unknown", "x"))
    worker.open("after", "one")
    events = worker.finish("s", "after")
    [failed] = terminals(events["s"])
    assert isinstance(failed, Failed)
    assert failed.param == "data"
    assert "two" not in text(events["s"])


def test_pings_are_answered_in_the_middle_of_a_step(worker: Worker) -> None:
    worker.open("slow", "one two !step-ms=400")
    worker.first("slow", Delta)
    worker.send(Ping(1), Ping(2))
    pongs = [worker.until(lambda message: isinstance(message, Pong)) for _ in range(2)]
    assert [pong.nonce for pong in pongs if isinstance(pong, Pong)] == [1, 2]
    worker.finish("slow")
    worker.until(lambda message: isinstance(message, Stats) and message.running == 0)
    worker.send(Ping(3))
    assert worker.until(lambda message: isinstance(message, Pong)) == Pong(3, 0.0)  # nothing runs


def waits(worker: Worker) -> int:
    """How often its threads have gone to sleep so far."""
    threads = Path(f"/proc/{worker.process.pid}/task").iterdir()
    return sum(psutil.Process(int(thread.name)).num_ctx_switches().voluntary for thread in threads)


def settled(worker: Worker) -> int:
    """The same, once its threads have found their way into the wait."""
    seen, now = -1, waits(worker)
    while now != seen:
        time.sleep(0.3)
        seen, now = now, waits(worker)
    return now


def test_an_idle_worker_is_not_woken(worker: Worker) -> None:
    worker.open("a", "one")
    worker.until(lambda message: isinstance(message, Stats) and message.running == 0)
    worker.open("b", "one two")
    worker.finish("b")
    worker.until(lambda message: isinstance(message, Stats) and message.running == 0)
    before = settled(worker)
    worker.socket.settimeout(1.5)
    try:
        with pytest.raises(TimeoutError):
            worker.receive()  # no message either
    finally:
        worker.socket.settimeout(PATIENCE)
    assert waits(worker) == before


def test_what_comes_during_a_long_step_is_prepared_meanwhile(worker: Worker) -> None:
    """By the reader's thread, and by the pool: it is admitted with the next step."""
    worker.open("slow", "one two !step-ms=400")
    worker.first("slow", Delta)
    worker.open("brief", "one")
    worker.open("long", "one !slow-prepare=100")
    worker.open("ill", "!bad")
    events = worker.finish("slow", "brief", "long", "ill")
    for id in ("brief", "long"):
        accepted = events[id][0]
        assert isinstance(accepted, Accepted)
        done = events[id][-1]
        assert isinstance(done, Done)
        assert done.timing.prepare < accepted.at  # it was ready, and waited for the step to end
    assert isinstance(events["ill"][-1], Failed)


def test_a_long_wait_is_ended_by_what_the_pool_has_prepared(worker: Worker) -> None:
    worker.until(lambda message: isinstance(message, Stats) and message.running == 0)
    worker.open("long", "one !slow-prepare=100")
    assert text(worker.finish("long")["long"]) == "one"


def test_a_gateway_that_does_not_read_blocks_nobody_for_good(worker: Worker) -> None:
    """The worker fills the socket and waits; it still reads all it is sent, and nothing is lost."""
    word = "x" * 2000
    ids = [f"r{number}" for number in range(8)]
    for id in ids:
        worker.open(id, f"{word} !tokens=400")
    for _ in range(2000):  # more than the socket holds, while nothing is read
        worker.send(Feed("unknown", b"y" * 1000), Ping(0))
    events = worker.finish(*ids)
    assert all(len(text(events[id])) == 400 * 2001 - 1 for id in ids)


def test_signals_for_the_whole_group_are_the_gateways(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGINT)
    worker.process.send_signal(signal.SIGTERM)
    worker.open("a", "one")
    assert text(worker.finish("a")["a"]) == "one"


def test_the_child_has_no_descriptor_but_its_own() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        with Worker(fake_spec()) as worker:
            worker.ready()
            links = [os.readlink(entry) for entry in Path(f"/proc/{worker.process.pid}/fd").iterdir()]
            assert sum(link.startswith("socket:") for link in links) == 1
            assert os.readlink(f"/proc/self/fd/{write}") not in links
    finally:
        os.close(read)
        os.close(write)


def test_drain_finishes_what_is_open_and_takes_nothing_more() -> None:
    with Worker(fake_spec()) as worker:
        worker.ready()
        worker.open("a", "one two three !step-ms=50")
        worker.first("a", Delta)
        worker.send(Drain())
        worker.open("late", "one")
        events = worker.finish("a", "late")
        assert isinstance(events["a"][-1], Done)
        [refused] = events["late"]
        assert isinstance(refused, Failed)
        assert worker.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("words", ["!hang=1", "one two !step-ms=20000", "!slow-prepare=20000", ""])
def test_the_worker_ends_with_its_gateway(words: str) -> None:
    with Worker(fake_spec()) as worker:
        worker.ready()
        if words:
            worker.open("a", words)
        worker.send(Ping(1))
        worker.until(lambda message: isinstance(message, Pong))
        worker.socket.close()
        worker.process.wait(PATIENCE / 3)  # far sooner than what it was doing


def test_a_model_that_can_never_load_says_so() -> None:
    for spec in (
        fake_spec(source="fake:missing"),
        msgspec.structs.replace(fake_spec(), pipeline="tests.fakes:NoSuchPipeline"),
        msgspec.structs.replace(fake_spec(), pipeline="no.such.module:Pipeline"),
    ):
        with Worker(spec) as worker:
            failed = worker.receive()
            assert isinstance(failed, LoadFailed)
            assert failed.permanent
            assert worker.process.wait(PATIENCE) != 0


def test_a_load_that_broke_may_be_tried_again(tmp_path: Path) -> None:
    spec = fake_spec(source=f"fake:flaky:{tmp_path / 'tried'}")
    with Worker(spec) as worker:
        failed = worker.receive()
        assert isinstance(failed, LoadFailed)
        assert not failed.permanent
        assert failed.message == "RuntimeError: secret words of a library while it loaded the model"
    with Worker(spec) as worker:
        assert worker.ready().slots == 8


def test_what_is_brief_does_not_wait_for_the_pool() -> None:
    with Worker(fake_spec(prepare_threads=1)) as worker:
        worker.ready()
        worker.open("slow", "!slow-prepare=20000 one")
        worker.open("brief", "one two")
        assert isinstance(worker.finish("brief")["brief"][-1], Done)
