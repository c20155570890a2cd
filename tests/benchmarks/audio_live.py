"""Live transcription at the pace of speech: how long after a word it is there."""

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from itertools import chain
from time import perf_counter

import numpy as np
from websockets.asyncio.client import connect

from pipelines.audio.vad import Silero, speech_spans
from tests import speech
from tests.benchmarks.figures import Figure, at_most
from tests.benchmarks.harness import Bench
from tests.benchmarks.processes import Server

STREAMS = (1, 2, 4)
SILENCE_MS = 300
PIECE = speech.RATE // 50  # 20 ms in a message
TAIL_SECONDS = 1.5

Latencies = tuple[float, float]  # (first partial after the first speech, final after the last)


def compare(bench: Bench) -> Iterator[Figure]:
    server = _gateway(bench)
    rounds = bench.scaled(4, 1)
    for streams in STREAMS:
        found = asyncio.run(_rounds(server.port, streams, rounds))
        first, final = zip(*found, strict=True)
        where = f"{streams} stream(s) at the pace of speech, silence_duration_ms = {SILENCE_MS}"
        for name, values, goal in (
            ("first partial", first, None),
            ("final", final, at_most(0.8) if streams == 1 else None),
        ):
            definition = f"{name} at the client, counted from the sending of the "
            definition += f"{'first' if name == 'first partial' else 'last'} speech; {where}"
            yield Figure(f"{name}, {streams} stream(s), p50", definition, "s", [float(np.quantile(values, 0.5))], goal)
            yield Figure(f"{name}, {streams} stream(s), p95", definition, "s", [float(np.quantile(values, 0.95))])


async def _rounds(port: int, streams: int, rounds: int) -> list[Latencies]:
    """Every stream says every clip, each from another one on."""

    async def one(offset: int) -> list[Latencies]:
        await asyncio.sleep(0.7 * offset)  # people do not speak in chorus
        turns = rounds * len(speech.CLIPS)
        return [await _turn(port, (turn + offset) % len(speech.CLIPS)) for turn in range(turns)]

    return list(chain.from_iterable(await asyncio.gather(*map(one, range(streams)))))


async def _turn(port: int, clip: int) -> Latencies:
    audio = speech.samples(speech.CLIPS[clip])
    begins, ends = _spoken(clip)
    audio = np.concatenate([audio, speech.silence(TAIL_SECONDS)])
    url = f"ws://127.0.0.1:{port}/v1/audio/stream?rate={speech.RATE}&silence_duration_ms={SILENCE_MS}"
    async with connect(url) as connection:
        await connection.recv()
        start = perf_counter()

        async def send() -> None:
            for first in range(0, len(audio), PIECE):
                await asyncio.sleep(max(0.0, start + (first + PIECE) / speech.RATE - perf_counter()))
                await connection.send(audio[first : first + PIECE].tobytes())
            await connection.send(json.dumps({"type": "end"}))

        sending = asyncio.create_task(send())
        partial = final = float("nan")
        async for message in connection:
            now, kind = perf_counter() - start, json.loads(message)["type"]
            if kind == "partial" and np.isnan(partial):
                partial = now - begins
            elif kind == "final":
                final = now - ends
        await sending
    return (final if np.isnan(partial) else partial), final


@cache
def _spoken(clip: int) -> tuple[float, float]:
    """Where a clip's speech begins and ends, in seconds."""
    spans = speech_spans(Silero().probabilities(speech.samples(speech.CLIPS[clip])), 0.5, 200)
    return spans[0].start / speech.RATE, spans[-1].end / speech.RATE


def _gateway(bench: Bench) -> Server:
    config = bench.logs / "audio.toml"
    config.write_text(
        f'[server]\nspool_dir = "{bench.logs}/spool-audio"\nlog_level = "warning"\n'
        f'[[models]]\nname = "whisper"\nsource = "embedded:whisper-tiny.en"\nthreads = {bench.threads}\n'
    )
    return bench.serve("gateway-audio", "--config", str(config))
