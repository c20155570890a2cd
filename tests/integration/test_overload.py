"""More clients than a model takes: everybody is answered, nobody waits for ever, and everything comes back."""

import asyncio
import json
import os
from collections import Counter
from time import monotonic
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI, OpenAI, RateLimitError

from tests.integration.conftest import route, sample, wait_until, worker
from tests.servers import Gateway, until

CHAT = "/v1/chat/completions"


def chat(model: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


async def leave(gateway: Gateway, body: dict[str, Any], after: asyncio.Event) -> None:
    """A client on a connection of its own that reads nothing and leaves."""
    data = json.dumps(body).encode()
    _, writer = await asyncio.open_connection(*gateway.address)
    writer.write(
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(data), data)
    )
    await writer.drain()
    await after.wait()
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_two_hundred_clients_on_sixteen_slots(fakes: Gateway) -> None:
    busy = route(fakes, "busy").admission
    process = psutil.Process(worker(fakes, "busy").pid)
    gateway_fds, worker_fds = len(os.listdir("/proc/self/fd")), process.num_fds()
    async with httpx.AsyncClient(base_url=fakes.url, timeout=30, limits=httpx.Limits(max_connections=200)) as client:

        async def one(number: int) -> tuple[httpx.Response, float]:
            body = chat("busy", "!tokens=20 !step-ms=20", stream=bool(number % 2))
            began = monotonic()
            return await client.post(CHAT, json=body), monotonic() - began

        answers = await asyncio.gather(*map(one, range(200)))
        statuses = Counter(answer.status_code for answer, _ in answers)
        assert set(statuses) == {200, 429}
        # Those that were served by the time the last ones came have left their places to them.
        assert 48 <= statuses[200] < 200
        served = [seconds for answer, seconds in answers if answer.status_code == 200]
        for answer, seconds in answers:
            if answer.status_code == 429:
                assert answer.json()["error"]["code"] == "overloaded"
                assert answer.headers["retry-after"].isdigit()
                assert seconds < max(served)
            elif answer.headers["content-type"].startswith("text/event-stream"):
                assert answer.text.endswith("data: [DONE]\n\n")
        wait_until(lambda: (busy.used, busy.waiting) == (0, 0))
        text = (await client.get("/metrics")).text
        assert sample(text, "gateway_slots", model="busy") == 16
        assert sample(text, "gateway_slots_used", model="busy") == 0
        assert sample(text, "gateway_queued", model="busy") == 0
        assert sample(text, "gateway_rejections_total", model="busy", reason="overloaded") == statuses[429]
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= gateway_fds + 1)
    assert process.num_fds() == worker_fds


async def test_load_leaves_no_memory_behind(fakes: Gateway) -> None:
    process = psutil.Process(worker(fakes, "busy").pid)
    async with httpx.AsyncClient(base_url=fakes.url, timeout=30) as client:

        async def wave() -> None:
            bodies = [chat("busy", "!tokens=50 " + "word " * 200, stream=True) for _ in range(40)]
            await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))

        for _ in range(2):
            await wave()
        before = process.memory_info().rss
        for _ in range(6):
            await wave()
        assert process.memory_info().rss - before < 8 * 2**20


async def test_clients_that_leave_while_queued_are_forgotten(fakes: Gateway) -> None:
    """One slot, fifty waiting, all leave: no work is done for them, and the next one is served at once."""
    one = route(fakes, "one").admission
    async with httpx.AsyncClient(base_url=fakes.url, timeout=30) as client:
        admitted = sample((await client.get("/metrics")).text, "gateway_requests_admitted_total", model="one")
        holder = asyncio.create_task(client.post(CHAT, json=chat("one", "!tokens=100 !step-ms=10")))
        await until(lambda: one.used > 0)
        go = asyncio.Event()
        leaving = [
            asyncio.create_task(leave(fakes, chat("one", "!tokens=1", stream=i % 2 == 0), go)) for i in range(50)
        ]
        await until(lambda: one.waiting >= 50)
        go.set()
        await asyncio.gather(*leaving)
        await until(lambda: not one.waiting, 2)
        assert one.used == 1
        next_one = asyncio.create_task(client.post(CHAT, json=chat("one", "!tokens=1")))
        assert (await holder).status_code == 200
        assert (await next_one).status_code == 200
        text = (await client.get("/metrics")).text
        assert sample(text, "gateway_queued", model="one") == 0
        assert sample(text, "gateway_requests_admitted_total", model="one") - admitted == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot_within_a_step(fakes: Gateway, stream: bool) -> None:
    """The request would run for 40 s; its slot is free for the next one after a step or two of 10 ms."""
    one = route(fakes, "one").admission
    go = asyncio.Event()
    leaving = asyncio.create_task(leave(fakes, chat("one", "!tokens=4000 !step-ms=10", stream=stream), go))
    await until(lambda: one.used > 0)
    await asyncio.sleep(0.1)
    go.set()
    async with httpx.AsyncClient(base_url=fakes.url, timeout=5) as client:
        assert (await client.post(CHAT, json=chat("one", "!tokens=1"))).status_code == 200
    await leaving


async def test_no_count_stays_behind_after_streams_of_every_fate(fakes: Gateway) -> None:
    one, busy = route(fakes, "one").admission, route(fakes, "busy").admission
    go = asyncio.Event()
    async with httpx.AsyncClient(base_url=fakes.url, timeout=30) as client:
        finished = [client.post(CHAT, json=chat("busy", "!tokens=5", stream=True)) for _ in range(5)]
        refused = [client.post(CHAT, json=chat("busy", "!too-long a", stream=True)) for _ in range(5)]
        failed = [client.post(CHAT, json=chat("busy", "!crash-step=3 !tokens=9", stream=True)) for _ in range(5)]
        left = [leave(fakes, chat("busy", "!tokens=4000 !step-ms=5", stream=True), go) for _ in range(5)]
        asyncio.get_running_loop().call_later(0.3, go.set)
        answers = await asyncio.gather(*finished, *refused, *failed, *left)
        statuses = [answer.status_code for answer in answers[:15] if answer is not None]
        assert statuses[:10] == [200] * 5 + [400] * 5
        assert all(answer is not None and "[DONE]" not in answer.text for answer in answers[10:15])
        wait_until(lambda: busy.used == busy.waiting == one.used == 0)
        text = (await client.get("/metrics")).text
        assert sample(text, "gateway_slots_used", model="busy") == sample(text, "gateway_queued", model="busy") == 0
        await asyncio.sleep(1.2)  # workers report once a second
        text = (await client.get("/metrics")).text
        assert sample(text, "gateway_running", model="busy") == sample(text, "gateway_waiting", model="busy") == 0


async def test_the_client_s_own_retries_succeed_once_a_slot_frees(fakes: Gateway) -> None:
    busy = route(fakes, "busy").admission
    async with AsyncOpenAI(base_url=f"{fakes.url}/v1", api_key="any", timeout=30) as client:
        held = [
            asyncio.create_task(
                client.with_options(max_retries=0).completions.create(model="busy", prompt="!tokens=10 !step-ms=20")
            )
            for _ in range(48)
        ]
        await until(lambda: busy.waiting >= 32)
        with pytest.raises(RateLimitError):
            await client.with_options(max_retries=0).completions.create(model="busy", prompt="one")
        late = await client.with_options(max_retries=3).completions.create(model="busy", prompt="one two")
        assert late.choices[0].text == "one two"
        await asyncio.gather(*held)


def test_deadlines_are_not_retried_by_the_client(fakes: Gateway) -> None:
    with OpenAI(base_url=f"{fakes.url}/v1", api_key="any", max_retries=3, timeout=30) as client:
        before = sample(
            httpx.get(f"{fakes.url}/metrics").text, "gateway_requests_total", model="busy", outcome="deadline_exceeded"
        )
        with pytest.raises(Exception, match="deadline"):
            client.completions.create(
                model="busy", prompt="!tokens=4000 !step-ms=10", extra_headers={"x-gateway-timeout-ms": "100"}
            )
        after = sample(
            httpx.get(f"{fakes.url}/metrics").text, "gateway_requests_total", model="busy", outcome="deadline_exceeded"
        )
    assert after - before == 1


def test_counts_follow_their_definitions(fakes: Gateway, http_fakes: httpx.Client) -> None:
    """TTFT has one sample a request that got a token, however many choices, and none below what a token takes."""
    names = ("gateway_ttft_seconds_count", "gateway_requests_admitted_total", "gateway_e2e_seconds_count")
    before = {name: sample(http_fakes.get("/metrics").text, name, model="one") for name in names}
    for _ in range(5):
        assert http_fakes.post(CHAT, json=chat("one", "!step-ms=20 a b")).status_code == 200
    for _ in range(2):
        assert http_fakes.post(CHAT, json=chat("one", "!step-ms=20 a b", n=3)).status_code == 200
    for _ in range(2):
        with http_fakes.stream("POST", CHAT, json=chat("one", "!tokens=4000 !step-ms=20", stream=True)) as answer:
            next(answer.iter_raw())
    assert http_fakes.post(CHAT, json=chat("one", "!too-long a")).status_code == 400
    wait_until(lambda: route(fakes, "one").admission.used == 0)
    text = http_fakes.get("/metrics").text
    grown = {name: sample(text, name, model="one") - before[name] for name in names}
    assert grown == {
        "gateway_ttft_seconds_count": 9,
        "gateway_requests_admitted_total": 10,
        "gateway_e2e_seconds_count": 7,
    }
    assert sample(text, "gateway_ttft_seconds_bucket", model="one", le="0.01") < 9 + before[names[0]]


async def test_short_chats_are_answered_beside_one_request_of_many_choices(real: Gateway, model: str) -> None:
    admission = route(real, model).admission
    large = chat(model, "Tell me a story.", n=64, max_tokens=400, ignore_eos=True, stream=True)
    headers = {"x-gateway-priority": "batch"}
    async with (
        httpx.AsyncClient(base_url=real.url, timeout=60) as client,
        client.stream("POST", CHAT, json=large, headers=headers) as story,
    ):
        lines = story.aiter_lines()  # closed, it would close the connection
        await anext(lines)  # it is under way
        assert 1 <= admission.used <= admission.total // 4
        short = [chat(model, f"Say {number}.", max_tokens=4) for number in range(12)]
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for body in short))
        assert [answer.status_code for answer in answers] == [200] * 12
        assert admission.used >= 1  # the story goes on
    wait_until(lambda: (admission.used, admission.waiting) == (0, 0))
