"""Chat about images: a picture seen before, decodes beside pictures that come, and transformers' `generate`."""

import asyncio
import base64
import io
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, pairwise
from time import perf_counter

import numpy as np
from PIL import Image

from models.files.source import resolve
from tests.benchmarks import client
from tests.benchmarks.figures import Figure, at_least, at_most, ratio
from tests.benchmarks.harness import Bench, Subject, model_file
from tests.benchmarks.processes import MeasurementFailed, Server, Service

MODEL = "emoji-vision"
SEES = f"embedded:{MODEL}"
EDGE = 512  # pixels of a picture as it is sent
CHATS, DECODED, ANSWER = 8, 128, 32
EVERY_S = 0.25  # a picture comes beside running chats
AFTER = 16  # tokens of each chat that have come when the first one does
FILL = "Say it in one line, as you would to a friend who can not see it now."  # as many tokens as a picture has
QUESTION = "Describe what is in this picture, and in which colours."

_seeds = count(1)


def compare(bench: Bench) -> Iterator[Figure]:
    server = _gateway(bench)
    yield from _seen_before(bench, server)
    yield from _beside(bench, server)
    yield from _together(bench, server)


def _seen_before(bench: Bench, server: Server) -> Iterator[Figure]:
    def both() -> tuple[float, float]:
        picture = _picture()
        first = client.run(_first(server.port, picture, f"First: {QUESTION}"))
        return first, client.run(_first(server.port, picture, f"Again: {QUESTION}"))

    found = bench.interleave({"both": Subject(both, [server])})["both"]
    first, again = zip(*found, strict=True)
    definition = f"request → first token of a chat with a picture of {EDGE} × {EDGE} pixels, the second time it is sent"
    yield ratio("TTFT, image seen before ÷ new", f"{definition} against the first", again, first)
    yield Figure("TTFT, image new", definition, "ms", [seconds * 1e3 for seconds in first])
    yield Figure("TTFT, image seen before", definition, "ms", [seconds * 1e3 for seconds in again])


def _beside(bench: Bench, server: Server) -> Iterator[Figure]:
    tokens = bench.scaled(DECODED, 64)

    def p99(come: Callable[[], dict[str, object]] | None) -> float:
        return float(np.quantile(client.run(_gaps(server.port, tokens, come)), 0.99)) * 1e3

    def image() -> dict[str, object]:
        return _body(_picture(), QUESTION, 1)

    def text() -> dict[str, object]:
        return _body(None, f"{next(_seeds)} {QUESTION} {FILL}", 1)

    found = bench.interleave(
        {
            "alone": Subject(partial(p99, None), [server]),
            "beside images": Subject(partial(p99, image), [server]),
            "beside texts": Subject(partial(p99, text), [server]),
        }
    )
    definition = (
        f"99th percentile of the gaps between {tokens} tokens of each of {CHATS} running chats, while a chat with a "
        f"new picture comes every {EVERY_S * 1e3:.0f} ms, against none"
    )
    yield ratio("p99 gap beside images ÷ without", definition, found["beside images"], found["alone"], at_most(2.0))
    definition += "; beside texts of about as many tokens"
    yield ratio("p99 gap beside images ÷ beside texts", definition, found["beside images"], found["beside texts"])
    yield from (Figure(f"p99 gap, {name}", definition, "ms", values) for name, values in found.items())


def _together(bench: Bench, server: Server) -> Iterator[Figure]:
    other = bench.spawn(
        "transformers-vision", str(model_file()), str(resolve(SEES)), str(bench.threads), module="transformers_vision"
    )
    number = bench.scaled(ANSWER, 16)

    def theirs(service: Service) -> float:
        began = perf_counter()
        service.ask(images=[_png(_picture()) for _ in range(CHATS)], question=QUESTION, tokens=number)
        return CHATS * number / (perf_counter() - began)

    def ours(*, at_once: bool) -> float:
        return CHATS * number / client.run(_chats(server.port, number, at_once=at_once))

    try:
        found = bench.interleave(
            {
                "8 image chats at once": Subject(partial(ours, at_once=True), [server]),
                "8 image chats, one after the other": Subject(partial(ours, at_once=False), [server]),
                "8 image chats, transformers": Subject(partial(theirs, other), [other]),
            }
        )
    finally:
        other.stop()
    at_once, after_another, transformers = found.values()
    definition = (
        f"{CHATS} chats, each about a new picture of {EDGE} × {EDGE} pixels, {number} tokens each: all tokens / (sent "
        "→ last answer); ours over HTTP with the file's own 4 bits, transformers' generate of one batch in bf16"
    )
    yield ratio("8 image chats at once ÷ one after the other", definition, at_once, after_another)
    yield ratio("8 image chats ÷ transformers", definition, at_once, transformers, at_least(1.5))
    yield from (Figure(name, definition, "tokens/s", values) for name, values in found.items())


# --- requests ---------------------------------------------------------------------------------------------------------


def _picture() -> bytes:
    """One that was never sent."""
    generator = np.random.default_rng(next(_seeds))
    coarse = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(coarse).resize((EDGE, EDGE), Image.Resampling.BICUBIC).save(held, "PNG")
    return held.getvalue()


def _png(picture: bytes) -> str:
    return base64.b64encode(picture).decode()


def _body(picture: bytes | None, text: str, tokens: int) -> dict[str, object]:
    content: list[dict[str, object]] = [{"type": "text", "text": text}]
    if picture is not None:
        content.insert(0, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_png(picture)}"}})
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


async def _ask(port: int, body: dict[str, object]) -> client.Reply:
    reply = await client.post(port, "/v1/chat/completions", body)
    if reply.status != 200:
        raise MeasurementFailed(f"{reply.status}: {reply.body[:300]!r}")
    return reply


async def _first(port: int, picture: bytes, text: str) -> float:
    return (await _ask(port, _body(picture, text, 1))).stamps[0]


async def _chats(port: int, tokens: int, *, at_once: bool) -> float:
    """Seconds until all are answered."""
    bodies = [_body(_picture(), QUESTION, tokens) for _ in range(CHATS)]
    began = perf_counter()
    if at_once:
        await asyncio.gather(*(_ask(port, body) for body in bodies))
    else:
        for body in bodies:
            await _ask(port, body)
    return perf_counter() - began


async def _gaps(port: int, tokens: int, come: Callable[[], dict[str, object]] | None) -> list[float]:
    """Between the tokens of running chats, while other ones `come`; merged ones are gaps of none."""
    connections = [await client.Connection.open(port) for _ in range(CHATS)]
    chats = [
        asyncio.create_task(
            connection.post("/v1/chat/completions", client.encode(_body(None, f"Story {number}: go on", tokens)))
        )
        for number, connection in enumerate(connections)
    ]
    while any(len(connection.reply.stamps) < AFTER for connection in connections):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    asked: list[asyncio.Task[client.Reply]] = []
    while not all(chat.done() for chat in chats):
        if come is not None:
            asked.append(asyncio.create_task(_ask(port, come())))
        await asyncio.wait(chats, timeout=EVERY_S)
    await asyncio.gather(*asked)
    gaps: list[float] = []
    for chat, connection in zip(chats, connections, strict=True):
        reply = await chat
        connection.close()
        if reply.status != 200:
            raise MeasurementFailed(f"{reply.status}: {reply.body[:300]!r}")
        gaps += [later - earlier for earlier, later in pairwise(reply.stamps[AFTER:])]
    return gaps


def _gateway(bench: Bench) -> Server:
    """A gateway that serves the model that sees and nothing else, started at the first call."""
    name = "gateway-vision"
    if (found := bench.started(name)) is not None:
        return found
    config = bench.logs / f"{name}.toml"
    config.write_text(
        _CONFIG.format(logs=bench.logs, model=MODEL, source=model_file(), sees=SEES, threads=bench.threads)
    )
    return bench.serve(name, "--config", str(config))


_CONFIG = """\
[server]
spool_dir = "{logs}/spool-vision"
log_level = "warning"

[[models]]
name = "{model}"
source = "{source}"
threads = {threads}

[models.text]
vision = "{sees}"
preload_vision = true
"""
