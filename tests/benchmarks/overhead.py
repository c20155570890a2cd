"""What the gateway itself costs: the fake worker behind it, against a bare handler that returns the same bytes."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.benchmarks import client
from tests.benchmarks.figures import Bounds, Figure, at_most, ratio
from tests.benchmarks.harness import FAKE, Bench, Subject
from tests.benchmarks.processes import Server, free_port

PATH = "/v1/chat/completions"
CONCURRENCY = (1, 16)
CHUNKS = 32


def compare(bench: Bench) -> Iterator[Figure]:
    gateway = bench.gateway(FAKE)
    plain, streamed = _body(1, stream=False), _body(CHUNKS, stream=True)
    bare = _bare(bench, gateway, plain, streamed)
    sides = {"gateway": gateway, "bare": bare}
    for connections in CONCURRENCY:
        requests = bench.scaled(2_000, 400)
        definition = (
            f"{connections} connection(s): seconds × connections / requests of a chat of one step, gateway + frames + fake "
            "worker against a Litestar handler that decodes the body and returns the same bytes"
        )
        yield from _against(
            bench, sides, plain, connections, requests, f"overhead at {connections}", definition, at_most(3.0)
        )
    for connections in CONCURRENCY:
        requests = bench.scaled(500, 100)
        definition = (
            f"the same of a stream of {CHUNKS} tokens, one step each, against a handler that yields the same chunks"
        )
        yield from _against(bench, sides, streamed, connections, requests, f"stream at {connections}", definition, None)


def _against(
    bench: Bench,
    sides: dict[str, Server],
    body: bytes,
    connections: int,
    requests: int,
    name: str,
    definition: str,
    bounds: Bounds | None,
) -> Iterator[Figure]:
    def each(server: Server) -> float:
        spent = client.run(client.saturate(server.port, PATH, body, connections=connections, requests=requests))
        return spent * connections / requests * 1e3

    found = bench.interleave({side: Subject(lambda s=server: each(s), [server]) for side, server in sides.items()})
    yield ratio(f"{name} ÷ bare", definition, found["gateway"], found["bare"], bounds)
    yield from (Figure(f"{name}, {side}", definition, "ms", values) for side, values in found.items())


def _body(tokens: int, *, stream: bool) -> bytes:
    content = " ".join(["!tokens=" + str(tokens), *(["word"] * tokens)])
    body = {"model": FAKE, "messages": [{"role": "user", "content": content}], "stream": stream}
    return msgspec.json.encode(body)


def _bare(bench: Bench, gateway: Server, plain: bytes, streamed: bytes) -> Server:
    """The bare server, which returns what the gateway returned."""

    async def fetch(body: bytes) -> bytes:
        connection = await client.Connection.open(gateway.port)
        reply = await connection.post(PATH, body)
        connection.close()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.body!r}")
        return reply.body

    directory = bench.logs / "bare"
    directory.mkdir(exist_ok=True)
    _keep(directory / "body", client.run(fetch(plain)))
    _keep(directory / "stream", client.run(fetch(streamed)))
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.services.bare", str(port), str(directory)]
    return bench.server("bare", command, port)


def _keep(path: Path, data: bytes) -> None:
    chunks = len(re.findall(rb'"content":"[^"]', data))
    assert chunks in (1, CHUNKS), f"{chunks} chunks: {data[:500]!r}"
    path.write_bytes(data)
