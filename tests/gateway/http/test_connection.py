"""How long a connection lives whose client does not do its part, and that its answer can be read. On real sockets."""

import asyncio
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import httpx
import openai
import pytest
import requests

from tests.gateway.http.raw_http import CHAT, idle_fleet, keyed, only_connection, request, statuses_and_codes
from tests.gateway.idle_fleet import KEY, make_settings
from tests.servers import Gateway, gateway_thread, until

LINGER_S = 0.2


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.protocol.LINGER_S", LINGER_S)


# What has no key, or asks what is open to all, and sends no body, or one without an end.
UNFINISHED = {
    "401, nothing of the body": request("POST", CHAT, "content-length: 100000"),
    "401, chunks without an end": request("POST", CHAT, "transfer-encoding: chunked") + b"5\r\nhello\r\n",
    "401, asks before it sends": request("POST", CHAT, "content-length: 100000", "expect: 100-continue"),
    "404": request("POST", "/nothing", f"authorization: Bearer {KEY}", "content-length: 100000"),
    "health with a body": request("GET", "/health", "content-length: 5"),
    "health with a part of it": request("GET", "/health", "content-length: 5") + b"abc",
    "health in chunks": request("GET", "/health", "transfer-encoding: chunked"),
    "after one that was whole": request("GET", "/health") + request("GET", "/health", "content-length: 5"),
    "413": request("POST", CHAT, f"authorization: Bearer {KEY}", "content-length: 999999999999"),
    "a size that is none": request("POST", CHAT, "transfer-encoding: chunked") + b"nonsense\r\n",
    "no request": b"NONSENSE\r\n",
}


@pytest.mark.parametrize("drip", [False, True], ids=["silent", "dripping"])
async def test_an_answered_connection_is_closed_whatever_its_client_sends(tmp_path: Path, drip: bool) -> None:
    async def hold(address: tuple[str, int], sent: bytes) -> bytes:
        """The answer to `sent`, on a connection that the client does not close."""
        reader, writer = await asyncio.open_connection(*address)
        open_ones.append(writer)
        writer.write(sent)
        if drip:
            dripping.append(asyncio.create_task(drip_on(writer, b"1\r\nx\r\n" if b"chunked" in sent else b"x")))
        return await reader.read()  # our half ends with the answer

    async def drip_on(writer: asyncio.StreamWriter, drop: bytes) -> None:
        while True:
            await asyncio.sleep(0.02)
            writer.write(drop)

    open_ones: list[asyncio.StreamWriter] = []
    dripping: list[asyncio.Task[None]] = []
    async with keyed(tmp_path) as running, asyncio.timeout(10):
        answers = await asyncio.gather(*(hold(running.address, sent) for sent in UNFINISHED.values()))
        await gone(running)
    for each in (*dripping, *open_ones):
        each.cancel() if isinstance(each, asyncio.Task) else each.close()
    for name, answer in zip(UNFINISHED, answers, strict=True):
        assert answer.startswith(b"HTTP/1.1 "), name
        assert b"connection: close" in answer, name
        assert b"100 Continue" not in answer, name


async def gone(running: Gateway) -> None:
    """Until the server holds no connection."""
    while running.connections:  # noqa: ASYNC110  (the server has no event for us)
        await asyncio.sleep(0.01)


async def test_a_fast_client_is_not_read_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.protocol.LINGER_S", 60.0)
    monkeypatch.setattr("gateway.http.transport.LINGER_BYTES", 2**20)
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(request("POST", CHAT, "content-length: 999999999999"))
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 401")
            while running.connections:
                writer.write(b"x" * 2**16)
                await asyncio.sleep(0)
        writer.close()


async def test_a_request_that_comes_whole_keeps_its_connection(tmp_path: Path) -> None:
    """Refused or not."""
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        for sent, status in [
            (request("POST", CHAT, "content-length: 2") + b"{}", 401),
            (request("GET", "/health", "content-length: 2") + b"{}", 200),
            (request("GET", "/health"), 200),
            (request("POST", "/health", "transfer-encoding: chunked") + b"1\r\nx\r\n0\r\n\r\n", 405),
            (request("GET", "/health"), 200),
        ]:
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            assert int(head.split()[1]) == status
            assert b"connection: close" not in head
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
        writer.close()


async def test_pipelined_requests_are_answered_in_order_before_what_is_none(tmp_path: Path) -> None:
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(request("GET", "/health") + request("GET", "/v1/models") + b"NONSENSE\r\n\r\n")
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()
    assert statuses_and_codes(answer) == [(200, None), (401, "invalid_api_key"), (400, "invalid_http")]


@pytest.mark.parametrize("drip", [False, True], ids=["once", "dripping"])
async def test_empty_lines_do_not_keep_a_connection(tmp_path: Path, drip: bool) -> None:
    async with keyed(tmp_path, header_timeout_s=0.2) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(request("GET", "/health"))
        await reader.readuntil(b'{"status":"ok"}')
        writer.write(b"\r\n")
        async with asyncio.timeout(5):
            while not reader.at_eof():
                await asyncio.sleep(0.02)
                if drip and running.connections:
                    writer.write(b"\r\n")
        writer.close()


async def test_a_client_that_reads_no_answers_is_cut_off(tmp_path: Path) -> None:
    async with keyed(tmp_path, body_timeout_s=0.2) as running:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, running.address)
            await loop.sock_sendall(client, request("GET", "/schema/openapi.json", f"authorization: Bearer {KEY}") * 99)
            async with asyncio.timeout(10):
                await gone(running)


async def test_a_client_that_reads_slowly_but_steadily_gets_all(tmp_path: Path) -> None:
    async with keyed(tmp_path, body_timeout_s=0.2) as running:
        reader, writer = await asyncio.open_connection(*running.address, limit=2**14)
        headers = (f"authorization: Bearer {KEY}", "connection: close")
        writer.write(request("GET", "/schema/openapi.json", headers[0]) * 60)
        writer.write(request("GET", "/schema/openapi.json", *headers))
        read = 0
        async with asyncio.timeout(20):
            while data := await reader.read(2**17):
                read += data.count(b"HTTP/1.1 200")
                await asyncio.sleep(0.01)
        writer.close()
    assert read == 61


async def test_a_client_that_reads_nothing_before_it_is_refused_is_cut_off(tmp_path: Path) -> None:
    async with keyed(tmp_path, body_timeout_s=0.2) as running:
        _, writer = await asyncio.open_connection(*running.address, limit=1)
        await until(lambda: bool(running.connections))
        connection = only_connection(running)
        while not connection.transport.get_write_buffer_size():
            connection.transport.write(b"x" * 2**14)
            await asyncio.sleep(0)
        writer.write(b"NONSENSE\r\n\r\n")
        async with asyncio.timeout(5):
            await gone(running)
        writer.close()


class Timers:
    """Of a loop, that run when they are told to."""

    def __init__(self) -> None:
        self.handles: list[tuple[asyncio.Handle, Callable[[], None]]] = []

    def call_later(self, _: float, callback: Callable[..., None], *args: object) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, asyncio.get_running_loop())
        self.handles.append((handle, lambda: callback(*args)))
        return handle


async def test_an_answer_that_was_read_is_not_held_against_the_next(tmp_path: Path) -> None:
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        await until(lambda: bool(running.connections))
        connection = only_connection(running)
        timers = Timers()
        connection._unsent._loop = cast(asyncio.AbstractEventLoop, timers)
        first, second = b"x" * 2**23, b"y" * 2**24
        connection.transport.write(first)
        await reader.readexactly(len(first))
        await until(lambda: not connection.flow.write_paused)
        connection.transport.write(second)
        handle, expire = timers.handles[0]  # the time of the first is over
        if not handle.cancelled():
            expire()
        assert await reader.readexactly(len(second)) == second
        writer.close()


async def test_requests_that_wait_on_one_connection_are_bounded(tmp_path: Path) -> None:
    """Read no further than what is answered, and counted in what was read at once."""
    async with keyed(tmp_path) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(request("GET", "/health") * 300)
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()
    statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert 100 < len(statuses) < 200
    assert set(statuses[:-1]) == {200}
    assert statuses[-1] == 400
    assert b'"too_many_pipelined"' in answer


async def test_an_unfinished_request_does_not_hold_up_the_end_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.protocol.LINGER_S", 60.0)
    async with keyed(tmp_path) as running:
        lingering = await asyncio.open_connection(*running.address)
        lingering[1].write(request("POST", CHAT, "content-length: 5"))
        await lingering[0].read()
        silent = await asyncio.open_connection(*running.address)
    for _, writer in (lingering, silent):  # the server is gone
        writer.close()


# --- clients that send more than is taken -----------------------------------------------------------------------------

LIMIT = 2**20


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway in a thread of its own that takes bodies of 1 MiB."""
    settings = make_settings(tmp_path_factory.mktemp("small"), port=0, max_body_bytes=LIMIT, max_upload_bytes=LIMIT)
    with gateway_thread(settings, make_fleet=idle_fleet, ready=False) as running:
        yield running


def by_httpx(url: str, body: bytes) -> tuple[int, str]:
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"})
    return answer.status_code, answer.text


def by_httpx_in_chunks(url: str, body: bytes) -> tuple[int, str]:
    pieces = (body[i : i + 2**16] for i in range(0, len(body), 2**16))
    answer = httpx.post(url, content=pieces, headers={"content-type": "application/json"})
    return answer.status_code, answer.text


def by_requests(url: str, body: bytes) -> tuple[int, str]:
    answer = requests.post(url, data=body, headers={"content-type": "application/json"}, timeout=20)
    return answer.status_code, answer.text


def by_urllib(url: str, body: bytes) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"}), timeout=20)
    with caught.value as error:
        return error.code, error.read().decode()


def by_openai(url: str, body: bytes) -> tuple[int, str]:
    with openai.OpenAI(base_url=url.removesuffix("/chat/completions"), api_key="any", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="first", messages=[{"role": "user", "content": body.decode()}])
        return caught.value.status_code, caught.value.response.text


def by_curl(url: str, body: bytes) -> tuple[int, str]:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    told = subprocess.run(
        ["curl", "-sS", "-w", "\n%{http_code}", "-H", "content-type: application/json", "--data-binary", "@-", url],
        input=body,
        capture_output=True,
        timeout=20,
    )
    assert told.returncode == 0, told.stderr
    text, _, status = told.stdout.decode().rpartition("\n")
    return int(status), text


@pytest.mark.parametrize("size", [LIMIT + 1, 8 * LIMIT], ids=["by one byte", "eightfold"])
@pytest.mark.parametrize("client", [by_httpx, by_httpx_in_chunks, by_requests, by_urllib, by_openai, by_curl])
def test_a_client_reads_why_its_body_was_not_taken(
    small: Gateway, client: Callable[[str, bytes], tuple[int, str]], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.protocol.LINGER_S", 5.0)
    status, text = client(small.url + CHAT, b"x" * size)
    assert status == 413
    assert json.loads(text)["error"]["code"] == "payload_too_large"
