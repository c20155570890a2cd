"""What is left out of what was said, against faster-whisper, through REST, both WebSockets and the command."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from models.files.source import resolve
from tests import recordings, speech
from tests.benchmarks.figures import Figure, at_most
from tests.benchmarks.harness import GATEWAY, Bench
from tests.benchmarks.processes import Server
from tests.integration.live_clients import COMPLETED, realtime_client, server_vad, session, stream, streaming, with_tail
from tests.recordings import Recording

MODELS = ("whisper-tiny.en", "whisper-base")
UTTERANCES, PAIRS = 210, 30
SLACK = 0.002  # of the words, by which there may be more left out than faster-whisper does
SILENCE_MS = 500  # that ends a turn
AT_ONCE = 4  # requests or streams
TAIL_SECONDS = 1.5
LONGEST_S = 1_800.0

Door = Callable[[Server, str, Recording], Awaitable[str]]


def compare(bench: Bench) -> Iterator[Figure]:
    server = _gateway(bench)
    said = {
        "pairs": recordings.pairs(bench.scaled(PAIRS, 6)),
        "long file": [recordings.recording(bench.scaled(UTTERANCES, 30))],
    }
    for model in MODELS:
        for name, recorded in said.items():
            yield from _case(bench, server, model, name, recorded)


def _case(bench: Bench, server: Server, model: str, name: str, said: Sequence[Recording]) -> Iterator[Figure]:
    words = sum(len(utterance.starts) for each in said for _, utterance in each.said)
    left_out = f"{name}, {model}, int8: of {words} words, those left out"
    found = {door: asyncio.run(_through(way, server, model, said)) for door, way in LIVE.items()}
    found["REST"] = asyncio.run(_through(_rest, server, model, said))
    found["command"] = _command(bench, model, said)
    turns = [_turns(each) for each in said]
    heard = iter(_reference(bench, model, [turn for each in turns for turn in each]))
    live = recordings.score_all(said, [" ".join(next(heard) for _ in each) for each in turns]).deletions
    whole = recordings.score_all(said, _reference(bench, model, [each.audio for each in said])).deletions
    for door, texts in found.items():
        score = recordings.score_all(said, texts)
        reference = live if door in LIVE else whole
        definition = (
            f"{left_out}, less those that WhisperModel leaves out of the same {'turns' if door in LIVE else 'files'}"
        )
        yield Figure(f"{name}, {model}, {door}", definition, "", [score.deletions - reference], at_most(SLACK))
        lost = f"utterances of which four words in five are left out, {name}"
        yield Figure(f"{name}, {model}, {door}: lost", lost, "", [len(score.lost)], at_most(0))
        yield Figure(f"{name}, {model}, {door}: in all", left_out, "", [score.deletions])
    yield Figure(f"{name}, {model}, WhisperModel on files", left_out, "", [whole])
    yield Figure(f"{name}, {model}, WhisperModel on turns", left_out, "", [live])


def _turns(said: Recording) -> list[speech.Samples]:
    """Its sound, parted as a live stream is: in the middle of each pause that ends a turn."""
    cuts = [0]
    for (start, utterance), (following, _) in zip(said.said, said.said[1:], strict=False):
        end = start + utterance.seconds
        if following - end >= SILENCE_MS / 1e3:
            cuts.append(int((end + following) / 2 * speech.RATE))
    return [said.audio[first:last] for first, last in zip(cuts, [*cuts[1:], len(said.audio)], strict=True)]


async def _through(way: Door, server: Server, model: str, said: Sequence[Recording]) -> list[str]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(each: Recording) -> str:
        async with places, asyncio.timeout(LONGEST_S):
            return await way(server, model, each)

    return list(await asyncio.gather(*map(one, said)))


async def _rest(server: Server, model: str, said: Recording) -> str:
    async with httpx.AsyncClient(base_url=_url(server), timeout=LONGEST_S) as http:
        form = {"model": model, "language": "en", "response_format": "text"}
        with TemporaryDirectory() as folder:
            wav = speech.wav(said.audio, Path(folder) / "a.wav").read_bytes()
        answer = await http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", wav)})
    return answer.raise_for_status().text


async def _realtime(server: Server, model: str, said: Recording) -> str:
    wishes = session(transcription={"model": model, "language": "en"}, turn_detection=server_vad(SILENCE_MS))
    async with realtime_client(_url(server), wishes) as client:
        saying = asyncio.create_task(client.say(with_tail(said.audio, TAIL_SECONDS)))  # what is said meanwhile is read
        while True:
            await client.rest(0.2)
            if not saying.done():
                continue
            await saying
            ends = [event.audio_end_ms for event in client.of("input_audio_buffer.speech_stopped")]
            if (
                ends
                and ends[-1] > 1000 * (said.seconds - recordings.PAUSES[1])
                and len(client.of(COMPLETED)) == len(ends)
            ):
                return client.transcript


async def _stream(server: Server, model: str, said: Recording) -> str:
    wishes = {"model": model, "language": "en", "rate": str(speech.RATE), "silence_duration_ms": str(SILENCE_MS)}
    async with streaming(_url(server), **wishes) as connection:
        messages = await stream(connection, with_tail(said.audio, TAIL_SECONDS))
    return " ".join(message["text"] for message in messages if message["type"] == "final")


LIVE: dict[str, Door] = {"realtime": _realtime, "stream": _stream}


def _command(bench: Bench, model: str, said: Sequence[Recording]) -> list[str]:
    """`gateway transcribe FILE …`, a transcript beside each."""
    folder = bench.logs / f"{model}-{len(said)}"
    folder.mkdir(exist_ok=True)
    files = [speech.wav(each.audio, folder / f"{number}.wav") for number, each in enumerate(said)]
    command = [*GATEWAY, "transcribe", "--config", str(_config(bench)), "--model", model]
    subprocess.run([*command, "-o", str(folder), *map(str, files)], check=True, capture_output=True)
    return [file.with_suffix(".txt").read_text() for file in files]


def _reference(bench: Bench, model: str, sounds: Sequence[speech.Samples]) -> list[str]:
    files = [str(speech.wav(each, bench.logs / f"reference-{number}.wav")) for number, each in enumerate(sounds)]
    folder = str(resolve(f"embedded:{model}"))
    service = bench.spawn(model, folder, str(bench.threads), "sequential", module="whisper_reference")
    try:
        return [text for text, _ in service.ask(files=files, language="en")]
    finally:
        service.stop()


def _gateway(bench: Bench) -> Server:
    return bench.started("gateway-doors") or bench.serve("gateway-doors", "--config", str(_config(bench)))


def _config(bench: Bench) -> Path:
    file = bench.logs / "doors.toml"
    models = (f'[[models]]\nname = "{name}"\nkind = "audio"\nsource = "embedded:{name}"\n' for name in MODELS)
    spool = f'[server]\nspool_dir = "{bench.logs / "spool"}"\n'
    file.write_text(spool + "\n".join(models))
    return file


def _url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"
