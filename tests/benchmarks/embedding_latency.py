"""One short text beside a bulk load that never stops, against the same text alone."""

import asyncio
from collections.abc import Iterator
from statistics import quantiles

from tests.benchmarks import client
from tests.benchmarks.embedding_texts import MODEL, PATH, SHORT, Texts, server
from tests.benchmarks.figures import Figure, at_most, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.processes import MeasurementFailed, Server

REQUESTS = 200
PAUSE_S = 0.02  # between two short requests: they come at any moment of a step
BULK = 256  # texts in one request of the load
IDLE, BESIDE = "alone", "beside bulk"


def compare(bench: Bench) -> Iterator[Figure]:
    gateway = server(bench)
    number = bench.scaled(REQUESTS, 40)
    texts = Texts(seed=2).some(BULK)
    load = client.encode({"model": MODEL, "input": texts, "encoding_format": "base64"})
    found = bench.interleave(
        {
            IDLE: Subject(lambda: client.run(latencies(gateway, number, None)), [gateway]),
            BESIDE: Subject(lambda: client.run(latencies(gateway, number, load)), [gateway]),
        }
    )
    definition = (
        f"milliseconds of {number} requests of one short text, one after the other; beside them requests of {BULK} "
        "texts without a pause"
    )
    percentiles = {name: [percentile(each) for each in rounds] for name, rounds in found.items()}
    for index, name in enumerate(("p50", "p95")):
        beside, idle = ([each[index] for each in percentiles[side]] for side in (BESIDE, IDLE))
        yield ratio(f"short text {name}, {BESIDE} ÷ {IDLE}", definition, beside, idle, at_most(3.0))
        yield Figure(f"short text {name}, {IDLE}", definition, "ms", idle)
        yield Figure(f"short text {name}, {BESIDE}", definition, "ms", beside)


def percentile(values: list[float]) -> tuple[float, float]:
    """(p50, p95)"""
    cuts = quantiles(values, n=20, method="inclusive")
    return cuts[9], cuts[18]


async def latencies(gateway: Server, number: int, load: bytes | None) -> list[float]:
    """Milliseconds of each short request, the first ones left out."""
    body = client.encode({"model": MODEL, "input": SHORT, "encoding_format": "base64"})
    connection = await client.Connection.open(gateway.port)
    bulk = asyncio.create_task(keep_busy(gateway, load)) if load else None
    found: list[float] = []
    warm_up = max(5, number // 10)
    for _ in range(number + warm_up):
        await asyncio.sleep(PAUSE_S)
        reply = await connection.post(PATH, body)
        if reply.status != 200:
            raise MeasurementFailed(f"{reply.status}: {reply.body[:500]!r}")
        found.append((reply.pieces[-1][0] - reply.sent) * 1e3)
    if bulk is not None:
        if bulk.done():
            bulk.result()
        bulk.cancel()
        await asyncio.gather(bulk, return_exceptions=True)
    connection.close()
    return found[warm_up:]


async def keep_busy(gateway: Server, load: bytes) -> None:
    connection = await client.Connection.open(gateway.port)
    try:
        while True:
            reply = await connection.post(PATH, load)
            if reply.status != 200:
                raise MeasurementFailed(f"{reply.status}: {reply.body[:500]!r}")
    finally:
        connection.close()
