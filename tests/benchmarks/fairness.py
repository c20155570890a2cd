"""What short requests wait for beside large ones: of their own pipeline, and of the others on the same cores."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import count
from multiprocessing import get_context
from time import sleep

import numpy as np

from tests import speech
from tests.benchmarks import client
from tests.benchmarks.figures import Bounds, Figure, at_most, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.processes import MeasurementFailed, Server

TEXT, EMBEDDING, AUDIO, IMAGE = "smollm2", "all-minilm-l6-v2", "whisper-1", "tiny-emoji-diffusion"
BATCH = {"x-gateway-priority": "batch"}
PROBES, QUICK_PROBES = 40, 10
PAUSE_S = 0.05  # between the answer to one short request and the next one
SETTLE_S = 3.0  # until a load is at work, and until it is gone
BOUND = at_most(3.0)
HOURS = 2

Ask = Callable[[int], Awaitable[client.Reply]]
_numbers = count()
_random = random.Random(0)
_WORDS = (
    *("river", "stone", "winter", "lamp", "garden", "letter", "bridge", "silver", "morning", "forest", "table"),
    *("window", "music", "paper", "summer", "road", "captain", "valley", "engine", "story", "island", "number"),
)


def compare(bench: Bench) -> Iterator[Figure]:
    server = bench.default_gateway()
    rerank, audio = _rerank(4_000_000), _long_file(bench)
    chats: Mapping[str, list[Ask]] = {
        "n = 128": [partial(_chat, words=8, tokens=256, n=128, headers=BATCH)],
        "n = 32": [partial(_chat, words=8, tokens=256, n=32, headers=BATCH)],
        "n = 32, interactive": [partial(_chat, words=8, tokens=256, n=32)],
        "40 long prompts": [partial(_chat, words=4_000, tokens=16)] * 40,
    }
    texts: Mapping[str, list[Ask]] = {
        "bulk embeddings": [_bulk] * 4,
        "a rerank of 4 MB": [partial(client.post, path="/v1/rerank", body=rerank)],
    }
    others: Mapping[str, list[Ask]] = {
        **texts,
        "20 image jobs": [partial(_image, steps=50)] * 20,
        f"a file of {HOURS} hours": [partial(_transcription, data=audio)],
    }
    yield from _beside(bench, server, "chat", partial(_chat, words=3, tokens=4), chats, BOUND)
    yield from _beside(bench, server, "short text", _short_text, texts, BOUND)
    image_jobs, file = {"20 image jobs": others["20 image jobs"]}, f"a file of {HOURS} hours"
    clip = speech.encode(speech.joined(0.5)[: 5 * speech.RATE], bench.logs / "clip.mp3", "libmp3lame").read_bytes()
    yield from _beside(bench, server, "image of 4 steps", partial(_image, steps=4), image_jobs, BOUND)
    yield from _beside(bench, server, "clip", partial(_transcription, data=clip), {file: others[file]}, BOUND)
    yield from _beside(bench, server, "chat", partial(_chat, words=3, tokens=4), others, None)


def _beside(
    bench: Bench, server: Server, name: str, short: Ask, loads: Mapping[str, list[Ask]], bounds: Bounds | None
) -> Iterator[Figure]:
    probes = bench.scaled(PROBES, QUICK_PROBES)

    def p95(load: list[Ask]) -> float:
        waits = _waits(server.port, short, load, probes)
        return float(np.quantile(waits, 0.95)) * 1e3

    subjects = {"alone": Subject(partial(p95, []), [server])}
    subjects |= {beside: Subject(partial(p95, load), [server]) for beside, load in loads.items()}
    found = bench.interleave(subjects)
    definition = (
        f"95th percentile of the time to the first output of {probes} interactive requests ({name}), one after "
    )
    definition += "the other, while the load is served too, against alone in the same round"
    for beside in loads:
        yield ratio(f"{name} beside {beside} ÷ alone", definition, found[beside], found["alone"], bounds)
    for beside in subjects:
        yield Figure(f"{name}, {beside}", definition, "ms", found[beside])


def _send(port: int, load: list[Ask]) -> None:
    """The load, sent again wherever it ends, from a process of its own: what is measured waits for the server alone."""
    _random.seed(1)

    async def go_on(ask: Ask) -> None:
        while True:
            await ask(port)

    async def everything() -> None:
        await asyncio.gather(*map(go_on, load))

    client.run(everything())


def _waits(port: int, short: Ask, load: list[Ask], probes: int) -> list[float]:
    """Seconds to the first output of each."""
    sender = get_context("spawn").Process(target=_send, args=(port, load), daemon=True) if load else None
    if sender is not None:
        sender.start()
        sleep(SETTLE_S)
    try:
        waits = client.run(_probe(port, short, probes))
        if sender is not None and not sender.is_alive():
            raise MeasurementFailed("the load ended")
    finally:
        if sender is not None:
            sender.kill()
            sender.join()
            sleep(SETTLE_S)
    return waits


async def _probe(port: int, short: Ask, probes: int) -> list[float]:
    waits: list[float] = []
    for _ in range(probes):
        reply = await short(port)
        if reply.status != 200:
            raise MeasurementFailed(f"{reply.status}: {reply.body[:300]!r}")
        waits.append(next((at - reply.sent for at, piece in reply.pieces if piece), 0.0))
        await asyncio.sleep(PAUSE_S)
    return waits


# --- requests ---------------------------------------------------------------------------------------------------------


async def _chat(
    port: int, words: int, tokens: int, n: int = 1, headers: Mapping[str, str] | None = None
) -> client.Reply:
    text = f"{next(_numbers)} " + " ".join(_random.choices(_WORDS, k=words))
    body = {
        "model": TEXT,
        "messages": [{"role": "user", "content": text}],
        "n": n,
        "max_tokens": tokens,
        "temperature": 1.0,
        "stream": True,
    }
    return await client.post(port, "/v1/chat/completions", body, headers)


async def _short_text(port: int) -> client.Reply:
    return await client.post(
        port, "/v1/embeddings", {"model": EMBEDDING, "input": " ".join(_random.choices(_WORDS, k=6))}
    )


async def _bulk(port: int) -> client.Reply:
    texts = [" ".join(_random.choices(_WORDS, k=_random.randrange(5, 200))) for _ in range(1_000)]
    return await client.post(port, "/v1/embeddings", {"model": EMBEDDING, "input": texts}, BATCH)


def _rerank(size: int) -> dict[str, object]:
    documents, length = [], 0
    while length < size:
        documents.append(" ".join(_random.choices(_WORDS, k=_random.choice((100, 1_000, 20_000)))))
        length += len(documents[-1])
    return {"model": EMBEDDING, "query": "a lamp in the window", "documents": documents}


def _long_file(bench: Bench) -> bytes:
    """The committed clips over and over: the frames of an MP3 file stand for themselves."""
    audio = speech.joined(0.5)
    once = speech.encode(audio, bench.logs / "clips.mp3", "libmp3lame").read_bytes()
    return once * int(HOURS * 3600 * speech.RATE / len(audio))


async def _image(port: int, steps: int) -> client.Reply:
    body = {
        "model": IMAGE,
        "prompt": _random.choice(_WORDS),
        "num_inference_steps": steps,
        "response_format": "b64_json",
    }
    return await client.post(port, "/v1/images/generations", body)


async def _transcription(port: int, data: bytes) -> client.Reply:
    return await client.upload(port, "/v1/audio/transcriptions", {"model": AUDIO}, "file.mp3", data)
