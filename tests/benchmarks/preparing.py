"""A decode beside the preparation of long prompts: they share one interpreter lock."""

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from tests.benchmarks import client
from tests.benchmarks.figures import Figure, at_most, ratio
from tests.benchmarks.harness import MODEL, Bench, Subject
from tests.benchmarks.processes import MeasurementFailed

DECODED, PROMPTS = 256, 8
WORDS = 20_000  # of a prompt: more than any context, so that it is tokenised and then refused, never run
_SENTENCE = "the old lighthouse keeper wrote down every ship that passed along the northern coast that winter"
AFTER = 16  # tokens of the decode that have come when the prompts are sent


def compare(bench: Bench) -> Iterator[Figure]:
    gateway = bench.gateway(MODEL)
    tokens = bench.scaled(DECODED, 96)

    def p99(beside: int) -> float:
        gaps = client.run(_gaps(gateway.port, tokens, beside))
        return float(np.quantile(gaps, 0.99)) * 1e3

    found = bench.interleave(
        {"alone": Subject(partial(p99, 0), [gateway]), "beside": Subject(partial(p99, PROMPTS), [gateway])}
    )
    definition = (
        f"99th percentile of the gaps between {tokens} tokens at the client, while {PROMPTS} prompts of {WORDS:,} "
        "words are templated, tokenised and refused, against alone"
    )
    yield ratio("p99 gap beside preparing ÷ alone", definition, found["beside"], found["alone"], at_most(2.0))
    yield Figure("p99 gap, alone", definition, "ms", found["alone"])
    yield Figure("p99 gap, beside preparing", definition, "ms", found["beside"])


async def _gaps(port: int, tokens: int, beside: int) -> list[float]:
    """Between the decode's tokens; merged ones are gaps of none."""
    connection = await client.Connection.open(port)
    decode = asyncio.create_task(
        connection.post("/v1/completions", client.encode(client.completion(MODEL, _text(64), tokens)))
    )
    while len(connection.reply.stamps) < AFTER and not decode.done():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    refused = [
        client.post(port, "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": text}]})
        for text in (f"{number} {_text(WORDS)}" for number in range(beside))
    ]
    for reply in await asyncio.gather(*refused):
        if b"context_length_exceeded" not in reply.body:
            raise MeasurementFailed(f"not refused for its length: {reply.status} {reply.body[:300]!r}")
    reply = await decode
    connection.close()
    if reply.status != 200:
        raise MeasurementFailed(f"{reply.status}: {reply.body[:300]!r}")
    return [later - earlier for earlier, later in pairwise(reply.stamps)]


def _text(words: int) -> str:
    """English, so that a token is a text of its own."""
    sentence = _SENTENCE.split()
    return " ".join(sentence[index % len(sentence)] for index in range(words))
