"""What the gateway itself costs: the fake worker behind it, against a bare handler that returns the same bytes."""

import sys
from collections.abc import Iterator
from functools import partial

import msgspec

from tests.benchmarks import client
from tests.benchmarks.figures import Bounds, Figure, at_most, ratio
from tests.benchmarks.harness import FAKE, Bench, Subject
from tests.benchmarks.processes import MeasurementFailed, Server, free_port

PATH = "/v1/chat/completions"
CONCURRENCY = (1, 16)
TOKENS = 32


def compare(bench: Bench) -> Iterator[Figure]:
    gateway = bench.gateway(FAKE)
    plain, streamed = _body(1, stream=False), _body(TOKENS, stream=True)
    bare = _bare(bench, gateway, plain, streamed)
    sides = {"gateway": gateway, "bare": bare}
    for connections in CONCURRENCY:
        requests = bench.scaled(2_000, 400)
        definition = (
            f"{connections} connection(s): seconds × connections / requests of a chat of one step, gateway, frames and "
            "fake worker against a Litestar handler that decodes the body and returns the same bytes"
        )
        yield from _against(
            bench, sides, plain, connections, requests, f"overhead at {connections}", definition, at_most(3.0)
        )
    for connections in CONCURRENCY:
        requests = bench.scaled(500, 100)
        definition = (
            f"the same of a stream of {TOKENS} tokens, a step each without a pause, so that deltas are merged; against "
            "a handler that yields the same chunks"
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

    found = bench.interleave({side: Subject(partial(each, server), [server]) for side, server in sides.items()})
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
            raise MeasurementFailed(f"{reply.status}: {reply.body!r}")
        return reply.body

    directory = bench.logs / "bare"
    directory.mkdir(exist_ok=True)
    (directory / "body").write_bytes(client.run(fetch(plain)))
    (directory / "stream").write_bytes(client.run(fetch(streamed)))
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.services.bare", str(port), str(directory)]
    return bench.server("bare", command, port)
