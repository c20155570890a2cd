"""A worker that dies takes its own requests along and nothing else."""

import json
import os
import signal
import threading
from typing import Any

import httpx

from tests.integration.conftest import sample, wait_until, worker
from tests.servers import Gateway

CHAT = "/v1/chat/completions"


def chat(model: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


def test_a_killed_worker(fakes: Gateway, http_fakes: httpx.Client) -> None:
    frail = worker(fakes, "frail")
    restarts = sample(http_fakes.get("/metrics").text, "gateway_worker_restarts_total", model="frail")
    started, found = threading.Barrier(4), dict[str, str]()

    def stream(name: str) -> None:
        body = chat("frail", "!tokens=4000 !step-ms=5", stream=True)
        with httpx.stream("POST", f"{fakes.url}{CHAT}", json=body, timeout=30) as answer:
            chunks = answer.iter_text()
            text = next(chunks)
            started.wait()
            found[name] = text + "".join(chunks)

    def whole(name: str) -> None:
        started.wait()
        answer = httpx.post(f"{fakes.url}{CHAT}", json=chat("frail", "!tokens=4000 !step-ms=5"), timeout=30)
        found[name] = f"{answer.status_code} {answer.text} {answer.headers.get('x-should-retry')}"

    threads = [threading.Thread(target=stream, args=(f"stream {i}",)) for i in range(2)]
    threads.append(threading.Thread(target=whole, args=("whole",)))
    for thread in threads:
        thread.start()
    started.wait()
    wait_until(lambda: len(frail._sessions) == 3 and all(s._timeline.tokens for s in frail._sessions.values()))
    assert frail.pid is not None
    os.kill(frail.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()

    # Each of its requests ends with one error, and none with a clean end.
    for name in ("stream 0", "stream 1"):
        last = [frame for frame in found[name].split("\n\n") if frame][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "worker_lost"
        assert found[name].count('"error"') == 1
        assert "[DONE]" not in found[name]
    assert found["whole"].startswith("503 ")
    assert '"worker_lost"' in found["whole"]
    assert found["whole"].endswith(" false")

    # The other models go on, and the server stays ready; the model itself is not, until it is back.
    assert http_fakes.post(CHAT, json=chat("one", "a b")).status_code == 200
    ready = http_fakes.get("/ready")
    assert ready.status_code == 200
    wait_until(lambda: http_fakes.get("/ready/frail").status_code == 200)
    state = http_fakes.get("/ready/frail").json()["replicas"][0]
    assert state["state"] == "ready"
    assert state["restarts"] >= 1
    assert (
        http_fakes.post(CHAT, json=chat("frail", "back again")).json()["choices"][0]["message"]["content"]
        == "back again"
    )
    text = http_fakes.get("/metrics").text
    assert sample(text, "gateway_worker_restarts_total", model="frail") == restarts + 1
    assert sample(text, "gateway_workers", model="frail", state="ready") == 1
    assert sample(text, "gateway_requests_total", model="frail", outcome="worker_lost") == 3
    assert sample(text, "gateway_slots_used", model="frail") == 0


def test_while_it_restarts_newcomers_are_told_to_come_back(fakes: Gateway, http_fakes: httpx.Client) -> None:
    frail = worker(fakes, "frail")
    assert frail.pid is not None
    os.kill(frail.pid, signal.SIGKILL)
    wait_until(lambda: frail.ready is None)
    answer = http_fakes.post(CHAT, json=chat("frail", "a"))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_unavailable"
    assert int(answer.headers["retry-after"]) >= 1
    assert http_fakes.get("/ready/frail").status_code == 503
    shown = {model["name"]: model["ready"] for model in http_fakes.get("/ready").json()["models"]}
    assert shown["frail"] is False
    assert shown["one"] is True
    wait_until(lambda: frail.ready is not None)


def test_those_that_wait_for_a_slot_outlive_the_restart(fakes: Gateway) -> None:
    frail = worker(fakes, "frail")
    wait_until(lambda: frail.ready is not None)
    admission = next(each for each in fakes.fleet.routes if each.name == "frail").admission
    statuses: list[int] = []

    def ask(content: str) -> None:
        statuses.append(httpx.post(f"{fakes.url}{CHAT}", json=chat("frail", content), timeout=30).status_code)

    running = [threading.Thread(target=ask, args=("!tokens=4000 !step-ms=5",)) for _ in range(8)]
    for thread in running:
        thread.start()
    wait_until(lambda: admission.used == 8)
    waiting = [threading.Thread(target=ask, args=("a b",)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: admission.waiting == 3)
    assert frail.pid is not None
    os.kill(frail.pid, signal.SIGKILL)
    for thread in [*running, *waiting]:
        thread.join(15)
    assert sorted(statuses) == [200] * 3 + [503] * 8
