"""`/v1/audio/transcriptions` and `/translations` on a running gateway with the embedded model."""

import io
import json
import random
import signal
import threading
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import psutil
import pysubs2
import pytest
from openai import OpenAI

from tests import speech
from tests.integration.audio_gateway import MODEL
from tests.integration.conftest import route, sample, wait_until, worker
from tests.integration.live_clients import KEY
from tests.servers import Gateway

pytestmark = pytest.mark.requires_weights

URL = "/v1/audio/transcriptions"
CLIP = speech.CLIPS[1]


@pytest.fixture(scope="module")
def client(audio_gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{audio_gateway.url}/v1", api_key=KEY, max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture(scope="module")
def http(audio_gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=audio_gateway.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as found:
        yield found


def spooled(audio_gateway: Gateway) -> list[Path]:
    return [
        path
        for path in Path(audio_gateway.settings.server.spool_dir).rglob("*")
        if path.is_file() and path.name != "lock"
    ]


def post(http: httpx.Client, *fields: tuple[str, Any], url: str = URL) -> httpx.Response:
    """A form whose parts come in this order; a Path or bytes is a file."""
    parts = [
        (name, (name, value.read_bytes() if isinstance(value, Path) else value, "audio/wav"))
        if isinstance(value, Path | bytes)
        else (name, (None, value))
        for name, value in fields
    ]
    return http.post(url, files=parts)


def test_eight_clips_at_once_through_the_openai_client(client: OpenAI) -> None:
    def transcribe(clip: Path) -> str:
        return client.audio.transcriptions.create(model="whisper-1", file=clip).text

    clips = [*speech.CLIPS, *speech.CLIPS[:3]]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(transcribe, clips))
    assert speech.word_error_rate(zip(map(speech.transcript, clips), found, strict=True)) <= speech.MAX_WER
    assert found[5:] == found[:3]


def test_every_format(client: OpenAI, http: httpx.Client, tmp_path: Path) -> None:
    clip = tmp_path / "almost.wav"  # its length in seconds ends in .9999375
    clip.write_bytes(speech.wav(speech.samples(speech.CLIPS[0])[: 5 * 16_000 - 1], clip).read_bytes())
    text = post(http, ("model", MODEL), ("response_format", "text"), ("file", clip))
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    plain = post(http, ("file", clip), ("model", MODEL)).json()
    assert set(plain) == {"text", "usage"}
    assert plain["usage"] == {"type": "duration", "seconds": 5.0}
    assert text.text == plain["text"] + "\n"

    verbose = client.audio.transcriptions.create(
        model=MODEL, file=clip, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert verbose.language == "english"
    assert float(verbose.duration) == 5.0
    assert verbose.segments
    assert verbose.words
    assert "".join(segment.text for segment in verbose.segments).strip() == verbose.text == plain["text"]
    assert " ".join(word.word for word in verbose.words) == verbose.text
    assert [segment.id for segment in verbose.segments] == list(range(len(verbose.segments)))

    for format in ("srt", "vtt"):
        captions = client.audio.transcriptions.create(model=MODEL, file=clip, response_format=format)  # type: ignore[call-overload]
        assert isinstance(captions, str)
        assert captions.startswith("WEBVTT") == (format == "vtt")
        cues = pysubs2.SSAFile.from_string(captions, format_=format)
        edges = [edge for cue in cues for edge in (cue.start, cue.end)]
        assert edges == sorted(edges)
        assert edges[0] >= 0
        assert edges[-1] <= 4999
        assert all(cue.plaintext.strip() and cue.start < cue.end for cue in cues)
        assert " ".join(cue.plaintext.replace("\n", " ") for cue in cues) == verbose.text


@pytest.mark.parametrize("spelling", ["timestamp_granularities[]", "timestamp_granularities"])
def test_both_spellings_of_granularities(http: httpx.Client, spelling: str) -> None:
    body = post(http, (spelling, "word"), ("file", CLIP), ("response_format", "verbose_json"), ("model", MODEL)).json()
    assert "segments" not in body
    assert body["words"][0]["word"] == "He"
    body = post(http, ("file", CLIP), ("response_format", "verbose_json"), ("model", MODEL)).json()
    assert "words" not in body
    assert body["segments"]


def test_fields_may_come_in_any_order_and_empty_means_absent(http: httpx.Client) -> None:
    fields: list[tuple[str, Any]] = [
        ("model", MODEL), ("file", CLIP), ("language", ""), ("temperature", "0"), ("prompt", ""), ("hotwords", ""),
        ("chunking_strategy", "auto"), ("stream", "false"),
    ]  # fmt: skip
    texts = set()
    for seed in range(3):
        random.Random(seed).shuffle(fields)
        answer = post(http, *fields)
        assert answer.status_code == 200, answer.text
        texts.add(answer.json()["text"])
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ([("file", CLIP)], "model"),
        ([("model", MODEL)], "file"),
        ([("model", MODEL), ("file", b"")], "file"),
        ([("model", MODEL), ("file", bytes(range(256)) * 64)], "file"),
        ([("model", MODEL), ("file", CLIP), ("file", CLIP)], "file"),
        ([("model", MODEL), ("file", CLIP), ("temperature", "abc")], "temperature"),
        ([("model", MODEL), ("file", CLIP), ("temperature", "1.5")], "temperature"),
        ([("model", MODEL), ("file", CLIP), ("language", "xx")], "language"),
        ([("model", MODEL), ("file", CLIP), ("language", "English")], "language"),
        ([("model", MODEL), ("file", CLIP), ("language", " ")], "language"),
        ([("model", MODEL), ("file", CLIP), ("language", "de")], "language"),
        ([("model", MODEL), ("file", CLIP), ("response_format", "xml")], "response_format"),
        ([("model", MODEL), ("file", CLIP), ("stream", "perhaps")], "stream"),
        ([("model", MODEL), ("file", CLIP), ("stream", "true"), ("response_format", "srt")], "response_format"),
        ([("model", MODEL), ("file", CLIP), ("timestamp_granularities[]", "word")], "timestamp_granularities"),
        ([("model", MODEL), ("file", CLIP), ("voice", "alloy")], "voice"),
        ([("model", MODEL), ("file", CLIP), ("chunking_strategy[type]", "whim")], "chunking_strategy.type"),
        ([("model", MODEL), ("file", CLIP), ("prompt", "x" * 70_000)], "prompt"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_it(
    audio_gateway: Gateway, http: httpx.Client, fields: list[tuple[str, Any]], param: str
) -> None:
    answer = post(http, *fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert param.split(".")[0] in error["message"] or "audio" in error["message"] or "model" in error["message"]
    wait_until(lambda: not spooled(audio_gateway))


def test_what_is_no_form(http: httpx.Client) -> None:
    assert http.post(URL, json={"model": MODEL}).status_code == 415
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert http.post(URL, content=b"--x\r\nContent-Disposition: form-data", headers=broken).status_code == 400
    assert post(http, ("file", CLIP), ("model", "whisper-9")).status_code == 404
    assert http.post(URL, files={"file": b"x"}, headers={"authorization": "Bearer wrong"}).status_code == 401


def test_an_empty_transcript_is_an_answer(http: httpx.Client, tmp_path: Path) -> None:
    for audio in (speech.silence(2), speech.silence(0.01), speech.noise(1)):
        clip = speech.wav(audio, tmp_path / "a.wav")
        for format in ("json", "verbose_json", "srt", "vtt", "text"):
            answer = post(http, ("file", clip), ("model", MODEL), ("response_format", format))
            assert answer.status_code == 200
            assert "-->" not in answer.text


def test_a_long_file_streams_as_its_windows_finish(client: OpenAI, http: httpx.Client, tmp_path: Path) -> None:
    clip = speech.wav(np.concatenate([speech.joined(3.0)] * 2), tmp_path / "long.wav")
    events = list(client.audio.transcriptions.create(model=MODEL, file=clip, stream=True))
    assert [event.type for event in events[-1:]] == ["transcript.text.done"]
    deltas = [event.delta for event in events[:-1] if event.type == "transcript.text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == events[-1].text  # type: ignore[union-attr]
    expected = " ".join(map(speech.transcript, speech.CLIPS * 2))
    assert speech.word_error_rate([(expected, "".join(deltas))]) <= speech.MAX_WER

    raw = post(http, ("file", clip), ("model", MODEL), ("stream", "true"), ("response_format", "verbose_json")).text
    assert "[DONE]" not in raw
    said = [json.loads(line.removeprefix("data: ")) for line in raw.splitlines() if line]
    segments = [event for event in said if event["type"] == "transcript.text.segment"]
    assert "".join(event["text"] for event in segments).strip() == said[-1]["text"]
    assert all(event["until"] <= event["duration"] for event in said if event["type"] == "transcript.text.delta")


def test_a_crash_of_a_decoder_costs_the_request_that_it_decoded_for(
    audio_gateway: Gateway, http: httpx.Client, tmp_path: Path
) -> None:
    """Two uploads of one worker: a helper that holds one of them gets a SIGSEGV, after the other was answered."""
    planes = speech.resampled(speech.samples(CLIP), 48_000).astype(np.float32) / 32768
    brief = speech.encode(planes, tmp_path / "a.ogg", "libopus", rate=48_000)  # so that all threads take it
    process = psutil.Process(worker(audio_gateway, MODEL).pid)
    held, *others = [each for each in process.children() if "pipelines.media.helper" in each.cmdline()]
    for each in others:
        each.kill()
    held.suspend()
    with ThreadPoolExecutor(2) as pool:
        replies = [pool.submit(post, http, ("file", brief), ("model", MODEL)) for _ in range(2)]
        try:
            wait_until(lambda: any(each.done() for each in replies), 60)
        finally:
            held.send_signal(signal.SIGSEGV)
            held.resume()
    fine, doomed = sorted((each.result() for each in replies), key=lambda each: each.status_code)
    assert fine.status_code == 200
    assert fine.json()["text"].startswith("He was not")
    assert doomed.status_code == 400
    assert doomed.json()["error"]["param"] == "file"
    assert "its decoder crashed" in doomed.json()["error"]["message"]
    assert post(http, ("file", CLIP), ("model", MODEL)).status_code == 200
    assert worker(audio_gateway, MODEL).pid == process.pid


def test_a_voice_on_one_of_eight_channels(http: httpx.Client, tmp_path: Path) -> None:
    planes = np.zeros((len(speech.samples(CLIP)), 8), "<i2")
    planes[:, 2] = speech.samples(CLIP)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((8, 2, speech.RATE, 0, "NONE", "NONE"))
        file.writeframes(planes.tobytes())
    text = post(http, ("file", tmp_path / "a.wav"), ("model", MODEL)).json()["text"]
    assert text == post(http, ("file", CLIP), ("model", MODEL)).json()["text"]


def test_translation_of_english_is_english(http: httpx.Client) -> None:
    answer = post(http, ("file", CLIP), ("model", "whisper-1"), url="/v1/audio/translations")
    assert speech.words(answer.json()["text"])[:3] == ["he", "was", "not"]


def test_500_mb_go_through_the_spool_and_not_through_memory(audio_gateway: Gateway, http: httpx.Client) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    tail = f'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{MODEL}\r\n--b--\r\n'.encode()
    megabyte = bytes(2**20)
    process = psutil.Process()
    resident, peak = process.memory_info().rss, 0

    def body() -> Iterator[bytes]:
        nonlocal peak
        yield head
        for number in range(500):
            if number % 50 == 0:
                peak = max(peak, process.memory_info().rss)
            yield megabyte
        yield tail

    answer = http.post(URL, content=body(), headers={"content-type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")  # zeros are no audio file
    assert peak - resident < 64 * 2**20
    wait_until(lambda: not spooled(audio_gateway))


def test_a_file_of_too_many_seconds_is_refused(http: httpx.Client, tmp_path: Path) -> None:
    bomb = speech.encode(speech.silence(1300)[None], tmp_path / "bomb.flac", "flac")
    answer = post(http, ("file", bomb), ("model", MODEL))
    assert answer.status_code == 400
    assert "1200 s" in answer.json()["error"]["message"]


def test_clients_that_leave_at_any_moment_leave_nothing(
    audio_gateway: Gateway, http: httpx.Client, tmp_path: Path
) -> None:
    clip = speech.wav(speech.joined(1.0), tmp_path / "long.wav").read_bytes()
    moments = random.Random(7)

    def leave(_: int) -> None:
        give_up = threading.Event()
        pause = moments.uniform(0.0, 1.2)

        def body() -> Iterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + MODEL.encode() + b"\r\n"
            yield b'--b\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n'
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
            for first in range(0, len(clip), 40_000):
                give_up.wait(0.01)
                yield clip[first : first + 40_000]
            yield b"\r\n--b--\r\n"

        headers = {"content-type": "multipart/form-data; boundary=b", "authorization": f"Bearer {KEY}"}
        with suppress(httpx.HTTPError):
            httpx.post(audio_gateway.url + URL, content=body(), headers=headers, timeout=httpx.Timeout(5, read=pause))

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(leave, range(30)))
    admission = route(audio_gateway, MODEL).admission
    wait_until(lambda: admission.used == 0 and admission.waiting == 0 and not spooled(audio_gateway), 20)
    assert post(http, ("file", CLIP), ("model", MODEL)).status_code == 200


def test_metrics_of_the_audio_row(audio_gateway: Gateway, http: httpx.Client) -> None:
    post(http, ("file", CLIP), ("model", MODEL))
    label = {"model": MODEL, "pipeline": "audio"}

    def page() -> str:
        return http.get("/metrics").text

    assert sample(page(), "gateway_rtf_count", **label) >= 1
    assert sample(page(), "gateway_rtf_sum", **label) > 0
    for kind in ("encode", "decode"):
        assert sample(page(), "gateway_step_seconds_count", kind=kind, **label) >= 1
    wait_until(lambda: sample(page(), "gateway_audio_windows_total", **label) >= 1)
    assert sample(page(), "gateway_audio_seconds_total", **label) >= 3
    assert sample(page(), "gateway_requests_total", outcome="stop", **label) >= 1


def test_the_command_line_transcribes_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gateway.cli.transcribe import TranscribeOptions, audio_model
    from gateway.cli.transcribe_console import run
    from tests.integration.audio_gateway import audio_settings

    model = audio_model(audio_settings(tmp_path), "whisper-1")
    model = msgspec.structs.replace(model, first_event_timeout_s=0.01, gap_timeout_s=0.01)  # nobody waits for a server
    garbage = tmp_path / "garbage.mp3"
    garbage.write_bytes(b"no audio at all" * 100)
    namesake = tmp_path / CLIP.name
    namesake.write_bytes(CLIP.read_bytes())
    assert not run(model, TranscribeOptions("srt"), [CLIP, namesake, garbage], tmp_path, follow=False)
    assert "garbage.mp3" in capsys.readouterr().err
    assert (tmp_path / f"{CLIP.stem}-2.srt").read_text() == (tmp_path / f"{CLIP.stem}.srt").read_text()
    cues = pysubs2.load(str(tmp_path / f"{CLIP.stem}.srt"))
    assert speech.words(cues[0].plaintext)[:3] == ["he", "was", "not"]


def test_io_of_bytes_works_as_the_sdk_sends_it(client: OpenAI) -> None:
    file = io.BytesIO(CLIP.read_bytes())
    file.name = "speech.wav"
    assert client.audio.transcriptions.create(model=MODEL, file=file, language="en", temperature=0.0).text
