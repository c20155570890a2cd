"""No sentence is lost: many utterances with pauses, through every way in.

The limits are what faster-whisper's WhisperModel.transcribe makes of the same recordings with the same model, beam and
time tokens, in the better of its ways (word_timestamps=True), and two words in a thousand. `python -m tests.benchmarks
--only audio` measures both.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests import recordings, speech
from tests.integration.audio_gateway import MODEL, audio_settings
from tests.integration.live_clients import (
    COMPLETED,
    KEY,
    RealtimeClient,
    realtime_client,
    server_vad,
    session,
    stream,
    streaming,
)
from tests.recordings import Recording, Score
from tests.servers import Gateway

pytestmark = pytest.mark.requires_weights

UTTERANCES = 210
LONG_DELETIONS, PAIR_DELETIONS = 0.0087, 0.0089  # shares of the words, faster-whisper's
SLACK = 0.002
MAX_TIME_ERROR = 0.3  # seconds, at the 95th percentile
TURN = recordings.recording(20, seed=3, pauses=(0.2, 0.4))  # more than a minute without a pause that ends a turn
MAX_TURN_WER = 0.12  # espeak-ng is hard to understand; whole sentences were lost at 0.3


@pytest.fixture(scope="module")
def http(audio_gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=audio_gateway.url, headers={"authorization": f"Bearer {KEY}"}, timeout=300) as found:
        yield found


def transcribe(http: httpx.Client, audio: speech.Samples, folder: Path, name: str = "a") -> dict[str, Any]:
    with speech.wav(audio, folder / f"{name}.wav").open("rb") as file:
        form = {"model": MODEL, "response_format": "verbose_json", "timestamp_granularities[]": "word"}
        answer = http.post("/v1/audio/transcriptions", data=form, files={"file": file})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    assert "<|" not in found["text"]
    return found


def scored(recording: Recording, found: dict[str, Any]) -> Score:
    words = [(word["word"], word["start"]) for word in found["words"]]
    assert " ".join(word for word, _ in words).split() == found["text"].split()
    return recordings.score(recording, words)


def test_a_long_file_loses_no_sentence_and_knows_when_words_were_said(http: httpx.Client, tmp_path: Path) -> None:
    recording = recordings.recording(UTTERANCES)
    score = scored(recording, transcribe(http, recording.audio, tmp_path))
    assert score.lost == ()
    assert score.deletions <= LONG_DELETIONS + SLACK
    assert score.time_error <= MAX_TIME_ERROR


def test_of_two_utterances_with_a_pause_between_none_is_lost(http: httpx.Client, tmp_path: Path) -> None:
    pairs = recordings.pairs(30)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: transcribe(http, each[1].audio, tmp_path, str(each[0])), enumerate(pairs)))
    score = recordings.total([(pair, scored(pair, each)) for pair, each in zip(pairs, found, strict=True)])
    assert score.lost == ()
    assert score.deletions <= PAIR_DELETIONS + SLACK


def is_whole(text: str) -> bool:
    score = recordings.score(TURN, [(text, None)])
    return score.lost == () and score.word_error_rate <= MAX_TURN_WER and "<|" not in text


def test_a_minute_without_a_long_pause_by_rest_and_as_a_stream(http: httpx.Client, tmp_path: Path) -> None:
    whole = transcribe(http, TURN.audio, tmp_path)["text"]
    assert is_whole(whole)
    with (tmp_path / "a.wav").open("rb") as file:
        form = {"model": MODEL, "stream": "true", "response_format": "text"}
        said = http.post("/v1/audio/transcriptions", data=form, files={"file": file}).text
    assert f'"text":"{whole}"' in said


async def test_a_minute_without_a_long_pause_through_both_websockets(audio_gateway: Gateway) -> None:
    audio = np.concatenate([TURN.audio, speech.silence(1.5)])

    async def realtime() -> str:
        wishes = session(transcription={"model": MODEL, "language": "en"}, turn_detection=server_vad(500))
        async with realtime_client(audio_gateway.url, wishes) as talk:
            await talk.say(audio)
            async with asyncio.timeout(120):
                while not heard_all(talk):
                    await talk.rest(0.2)
            return talk.transcript

    def heard_all(talk: RealtimeClient) -> bool:
        stops = [event.audio_end_ms for event in talk.of("input_audio_buffer.speech_stopped")]
        return bool(stops) and stops[-1] > 1000 * TURN.seconds and len(talk.of(COMPLETED)) == len(stops)

    async def plain() -> str:
        async with streaming(audio_gateway.url, model=MODEL, rate="16000", silence_duration_ms="500") as connection:
            messages = await stream(connection, audio)
        return " ".join(message["text"] for message in messages if message["type"] == "final")

    for text in await asyncio.gather(realtime(), plain()):
        assert is_whole(text)


def test_a_minute_without_a_long_pause_by_the_command(tmp_path: Path) -> None:
    from gateway.cli.transcribe import TranscribeOptions, audio_model
    from gateway.cli.transcribe_console import run

    path = speech.wav(TURN.audio, tmp_path / "turn.wav")
    model = audio_model(audio_settings(tmp_path), MODEL)
    assert run(model, TranscribeOptions("text"), [path], tmp_path, follow=False)
    assert is_whole((tmp_path / "turn.txt").read_text())


def hums(seconds: float = 20.0) -> dict[str, speech.Samples]:
    """What nobody says."""
    time = np.arange(int(seconds * speech.RATE)) / speech.RATE
    scale = 220 * 2 ** (np.array([0, 4, 7, 12, 7, 4])[(time * 2).astype(int) % 6] / 12)
    beat = np.exp(-6 * (time * 2 % 1))
    music = sum(np.sin(2 * np.pi * np.cumsum(scale * part) / speech.RATE) / part for part in (1, 2, 3)) * beat
    return {
        "silence": speech.silence(seconds),
        "hush": speech.noise(seconds, 20),
        "noise": speech.noise(seconds, 2000),
        "tone": (8000 * np.sin(2 * np.pi * 440 * time)).astype(np.int16),
        "low tone": (8000 * np.sin(2 * np.pi * 110 * time)).astype(np.int16),
        "music": (6000 * music).astype(np.int16),
    }


def test_where_nobody_speaks_nothing_is_said(http: httpx.Client, tmp_path: Path) -> None:
    found = {name: transcribe(http, audio, tmp_path, name)["text"] for name, audio in hums().items()}
    assert found == dict.fromkeys(found, "")
