"""What a client wrote is kept no longer than it is read: not in the queue twice, and not while its answer streams."""

import asyncio
import gc
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from gateway.backends.base import Call
from gateway.backends.session import WorkerSession
from metrics.timeline import Timeline
from tests.gateway.scripted import ScriptedBackend
from tests.gateway.scripted_app import CHAT, COMPLETIONS, AppHost, app_host
from tests.servers import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT_BYTES = 20 * 2**20
SMALL = 2 * 2**20  # what all else may need that a request and its answer leave behind
PIECE = b"x" * 2**20


class Forgetful(ScriptedBackend):
    """Keeps of a call what a worker's process would be sent, and that is elsewhere."""

    def open(self, call: Call, timeline: Timeline) -> WorkerSession:
        return super().open(Call(call.id, None, call.priority, call.deadline, call.tenant), timeline)  # type: ignore[arg-type]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AppHost]:
    async with app_host(str(tmp_path_factory.mktemp("spool"))) as running:
        yield running


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def held() -> int:
    """Bytes that Python's objects have."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


FIELDS = {
    CHAT: '"stream":true,"messages":[{"role":"user","content":"%s"}]',
    COMPLETIONS: '"stream":true,"prompt":"%s"',
    "/v1/embeddings": '"input":"%s"',
    "/v1/rerank": '"query":"q","documents":["%s"]',
}


async def ask(
    address: tuple[str, int], path: str, *, zipped: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a body of TEXT_BYTES, of which nothing is kept here."""
    reader, writer = await asyncio.open_connection(*address)
    before, after = (f'{{"model":"scripted",{FIELDS[path]}}}').encode().split(b"%s")
    body = [before, *[PIECE] * (TEXT_BYTES // len(PIECE)), after]
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    if zipped:
        body = [gzip.compress(b"".join(body), 1)]
        head += "content-encoding: gzip\r\n"
    writer.write(f"{head}content-length: {sum(map(len, body))}\r\n\r\n".encode())
    for piece in body:
        writer.write(piece)
        await writer.drain()
    return reader, writer


@pytest.mark.parametrize(("path", "zipped"), [(CHAT, False), (CHAT, True), (COMPLETIONS, False)])
async def test_a_stream_does_not_keep_what_it_answers(server: AppHost, path: str, zipped: bool) -> None:
    it = server.app(Forgetful())
    before = held()
    reader, writer = await ask(it.gateway.address, path, zipped=zipped)
    call = await it.backend.opened()
    call.accept()
    for word in ("one", "two"):
        call.text(word)
        await reader.readuntil(word.encode())
    assert held() - before < SMALL
    call.end()
    assert (await reader.readuntil(b"[DONE]")).count(b"usage") == 0
    writer.close()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank"])
async def test_nor_does_what_is_worked_at(server: AppHost, path: str) -> None:
    """Of endpoints that are called by the router, too."""
    it = server.app(Forgetful(), kind="embedding")
    before = held()
    reader, writer = await ask(it.gateway.address, path)
    call = await it.backend.opened()
    assert held() - before < SMALL
    call.fail("internal_error")
    assert b"internal_error" in await reader.readuntil(b"}}")
    writer.close()


async def test_what_waits_is_kept_once(server: AppHost) -> None:
    it = server.app(Forgetful(slots=1))
    first = asyncio.create_task(it.chat())
    holding = await it.backend.opened()
    before = held()
    _, writer = await ask(it.gateway.address, CHAT)
    await until(lambda: it.admission.waiting == 1)
    assert TEXT_BYTES < held() - before < TEXT_BYTES + SMALL
    writer.close()
    await until(lambda: it.admission.waiting == 0)
    assert held() - before < SMALL
    holding.end()
    await first
    assert json.loads((await first).content)["object"] == "chat.completion"
