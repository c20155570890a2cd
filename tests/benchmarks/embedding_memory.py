"""Resident memory over many requests of random lengths."""

import asyncio
import random
from collections.abc import Iterator

from tests.benchmarks import client
from tests.benchmarks.embedding_texts import MODEL, PATH, Texts, server
from tests.benchmarks.figures import Bounds, Figure
from tests.benchmarks.harness import Bench
from tests.benchmarks.processes import MeasurementFailed, Server

REQUESTS = 20_000
SAMPLES = 20  # one after each twentieth of the requests
WARM = 5  # samples while arenas and caches grow to what mixed lengths need: what the others are held to
CLIENTS = 16
MOST_WORDS = 60
LONG_EVERY = 50  # requests: one of the longest text that the model takes


def compare(bench: Bench) -> Iterator[Figure]:
    gateway = server(bench)
    number = bench.scaled(REQUESTS, 1000)
    samples = client.run(resident(gateway, number))
    definition = (
        f"resident memory of the gateway and its worker over {number} requests of one to three texts of 1 to "
        f"{MOST_WORDS} words, some of 250, from {CLIENTS} clients: the largest of {SAMPLES} samples behind the first "
        f"{WARM} against the largest of those"
    )
    growth = [max(samples[WARM:]) / max(samples[:WARM])]
    yield Figure("embedding: memory growth", definition, "×", growth, Bounds(1.05, 1.05, lower=True))
    yield Figure("embedding: memory", definition, "MiB", [sample / 2**20 for sample in samples])


async def resident(gateway: Server, number: int) -> list[int]:
    """Bytes after each part of the requests."""
    generator, texts = random.Random(4), Texts(seed=4)
    connections = [await client.Connection.open(gateway.port) for _ in range(CLIENTS)]
    samples: list[int] = []
    for _ in range(SAMPLES):
        bodies = iter([body(generator, texts) for _ in range(number // SAMPLES)])

        async def one(connection: client.Connection, bodies: Iterator[bytes] = bodies) -> None:
            for each in bodies:
                reply = await connection.post(PATH, each)
                if reply.status != 200:
                    raise MeasurementFailed(f"{reply.status}: {reply.body[:500]!r}")

        await asyncio.gather(*map(one, connections))
        samples.append(gateway.resident_bytes())
    for connection in connections:
        connection.close()
    return samples


def body(generator: random.Random, texts: Texts) -> bytes:
    if generator.randrange(LONG_EVERY) == 0:
        input = [texts.one(250)]
    else:
        input = [texts.one(generator.randint(1, MOST_WORDS)) for _ in range(generator.randint(1, 3))]
    return client.encode({"model": MODEL, "input": input, "truncate": "end", "encoding_format": "base64"})
