"""Streams over HTTP, through the gateway and its worker, against the step loop alone."""

import asyncio
from collections.abc import Iterator
from functools import partial

from tests.benchmarks import client
from tests.benchmarks.figures import Figure, at_least, ratio
from tests.benchmarks.harness import MODEL, Bench, Subject
from tests.benchmarks.processes import MeasurementFailed

PROMPT, DECODED = 128, 256
STREAMS = {1: at_least(0.9), 8: None}


def compare(bench: Bench) -> Iterator[Figure]:
    gateway, engine = bench.gateway(MODEL), bench.engine()
    tokens = bench.scaled(DECODED, 64)

    def inside(streams: int) -> float:
        stamps = engine.generate(bench.prompts(streams, PROMPT), tokens)
        return streams * tokens / max(each[-1] for each in stamps)

    def over_http(streams: int) -> float:
        bodies = [client.completion(MODEL, prompt, tokens) for prompt in bench.prompts(streams, PROMPT)]
        return streams * tokens / client.run(_last_text(gateway.port, bodies))

    for streams, bounds in STREAMS.items():
        found = bench.interleave(
            {
                "HTTP": Subject(partial(over_http, streams), [gateway]),
                "in process": Subject(partial(inside, streams), [engine]),
            }
        )
        definition = (
            f"{streams} stream(s), {PROMPT}-token prompts, {tokens} tokens each: request → last token at the client"
        )
        yield ratio(f"HTTP ÷ in process, {streams}", definition, found["HTTP"], found["in process"], bounds)
        yield Figure(f"HTTP, {streams}", definition, "tokens/s", found["HTTP"])


async def _last_text(port: int, bodies: list[dict[str, object]]) -> float:
    """Seconds until the last of all streams has its last text."""
    replies = await asyncio.gather(*(client.post(port, "/v1/completions", body) for body in bodies))
    for reply in replies:
        if reply.status != 200 or not reply.body.endswith(b"[DONE]\n\n"):
            raise MeasurementFailed(f"{reply.status}: {reply.body[-300:]!r}")
    return max(reply.stamps[-1] for reply in replies)
