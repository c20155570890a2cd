"""`/v1/realtime?intent=transcription` through OpenAI's client, and `/v1/audio/stream`, on a running gateway."""

import asyncio
import base64
import json
import logging
import random
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from pipelines.logs import fields
from tests import speech
from tests.integration.audio_gateway import HEADER_TIMEOUT_S, MODEL, STREAMS
from tests.integration.conftest import route
from tests.integration.live_clients import (
    COMPLETED,
    DELTA,
    KEY,
    RATE,
    realtime_client,
    server_vad,
    session,
    stream,
    streaming,
    with_tail,
)
from tests.servers import Gateway, until

pytestmark = pytest.mark.requires_weights

CLIP = speech.samples(speech.CLIPS[1])
TENTATIVE = "item.input_audio_transcription.tentative"


def wer(transcripts: list[str]) -> float:
    return speech.word_error_rate(zip(map(speech.transcript, speech.CLIPS), transcripts, strict=True))


async def test_the_clips_at_the_pace_of_speech_through_both_protocols(audio_gateway: Gateway) -> None:
    async def realtime(audio: speech.Samples) -> str:
        async with realtime_client(
            audio_gateway.url, session(transcription={"model": "whisper-1", "language": "en"})
        ) as talk:
            await talk.say(with_tail(audio), paced=True)
            await talk.until(COMPLETED)
            await talk.rest(0.2)
            assert "".join(event.delta for event in talk.of(DELTA)) == "".join(e.transcript for e in talk.of(COMPLETED))
            return talk.transcript

    async def plain(audio: speech.Samples) -> str:
        async with streaming(audio_gateway.url, model=MODEL, rate="16000", silence_duration_ms="300") as connection:
            messages = await stream(connection, audio, paced=True)
        assert messages[0] == {"type": "ready", "model": MODEL}
        assert messages[-1] == {"type": "done"}
        finals = [message for message in messages if message["type"] == "final"]
        assert all(" ".join(word["word"] for word in final["words"]) == final["text"] for final in finals)
        return " ".join(final["text"] for final in finals)

    found = await asyncio.gather(*(realtime(speech.samples(clip)) for clip in speech.CLIPS))
    assert wer(list(found)) <= speech.MAX_WER
    found = await asyncio.gather(*(plain(speech.samples(clip)) for clip in speech.CLIPS))
    assert wer(list(found)) <= speech.MAX_WER


async def test_the_events_of_turns_in_their_order(audio_gateway: Gateway) -> None:
    async with realtime_client(audio_gateway.url, {**session(), "include": [TENTATIVE]}) as talk:
        audio = [speech.silence(1), CLIP, speech.silence(0.7), CLIP, speech.silence(1.5)]
        await talk.say(np.concatenate(audio))
        await talk.until(COMPLETED, 2)
        landmarks = [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            COMPLETED,
        ]
        for index in range(2):
            marks = [talk.of(type)[index] for type in landmarks]
            positions = [talk.events.index(mark) for mark in marks]
            assert positions == sorted(positions)
            (id,) = {getattr(mark, "item_id", None) or mark.item.id for mark in marks}
            deltas = [event.delta for event in talk.of(DELTA) if event.item_id == id]
            assert "".join(deltas) == marks[-1].transcript
            last = max(i for i, event in enumerate(talk.events) if event.type == DELTA and event.item_id == id)
            assert positions[-2] < last < positions[-1]
            assert marks[-1].usage.type == "duration"
        first, second = talk.of("input_audio_buffer.committed")
        assert (first.previous_item_id, second.previous_item_id) == (None, first.item_id)
        started, stopped = talk.of(landmarks[0])[0], talk.of(landmarks[1])[0]
        assert started.audio_start_ms == pytest.approx(1000 + 256 - 300, abs=150)  # the padding is in it
        assert stopped.audio_end_ms == pytest.approx(1000 + 2816 + 300, abs=150)
        assert len({event.event_id for event in talk.events}) == len(talk.events)


async def test_manual_commits_and_what_can_not_be_committed(audio_gateway: Gateway) -> None:
    async with realtime_client(audio_gateway.url, session(turn_detection=None)) as talk:
        await talk.connection.input_audio_buffer.commit(event_id="mine")
        error = (await talk.until("error")).error
        assert (error.code, error.event_id) == ("input_audio_buffer_commit_empty", "mine")
        await talk.say(CLIP[: RATE // 20])
        await talk.connection.input_audio_buffer.clear()
        await talk.until("input_audio_buffer.cleared")
        await talk.say(CLIP)
        await talk.connection.input_audio_buffer.commit()
        assert speech.words((await talk.until(COMPLETED)).transcript)[:3] == ["he", "was", "not"]
        await talk.say(np.tile(speech.silence(2), 20))  # past the 30 s that the buffer holds
        await talk.until("error", 2)
        assert talk.events[-1].error.code == "input_audio_buffer_overflow"
        await talk.connection.input_audio_buffer.clear()
        await talk.say(CLIP)
        await talk.connection.input_audio_buffer.commit()
        await talk.until(COMPLETED, 2)


async def test_a_client_that_commits_after_the_turn_was_ended_keeps_the_transcript(audio_gateway: Gateway) -> None:
    async with realtime_client(audio_gateway.url, session()) as talk:
        await talk.say(with_tail(CLIP))
        await talk.until("input_audio_buffer.committed")
        await talk.connection.input_audio_buffer.commit(event_id="late")
        assert (await talk.until("error")).error.code == "input_audio_buffer_commit_empty"
        await talk.until(COMPLETED)


async def test_what_a_client_gets_wrong_leaves_the_session_as_it_was(audio_gateway: Gateway) -> None:
    async with realtime_client(audio_gateway.url, session()) as talk:
        send = talk.connection.send_raw
        audio = {"type": "input_audio_buffer.append", "audio": "no base64!", "event_id": "e1"}
        update: dict[str, Any] = {"type": "session.update", "session": {"type": "transcription"}}
        model = {**update, "session": {"audio": {"input": {"transcription": {"model": "whisper-9"}}}}}
        language = {**update, "session": {"audio": {"input": {"transcription": {"language": "xx"}}}}}
        turns = {**update, "session": {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}}
        include = {**update, "session": {"include": ["logprobs"]}}
        noise = {**update, "session": {"audio": {"input": {"noise_reduction": {"type": "near_field"}}}}}
        for message, code, param in [
            ("no json", "invalid_json", None),
            ({"type": "transcription_session.update", "session": {}}, "invalid_event_type", "type"),
            ({"type": "response.create"}, "invalid_event_type", "type"),
            ({"type": "input_audio_buffer.append"}, "invalid_value", "audio"),
            (audio, "invalid_value", "audio"),
            (model, "model_not_found", "session.audio.input.transcription.model"),
            (language, "invalid_value", "session.audio.input.transcription.language"),
            (turns, "invalid_value", "session.audio.input.turn_detection.type"),
            (include, "invalid_value", "session.include"),
            (noise, "invalid_value", "session.audio.input.noise_reduction"),
        ]:
            await send(message if isinstance(message, str) else json.dumps(message))
            error = (await talk.until("error", len(talk.of("error")) + 1)).error
            assert (error.code, error.param) == (code, param), message
            assert isinstance(message, str) or error.event_id == message.get("event_id")
        assert "session.update" in talk.of("error")[1].error.message
        await talk.connection.session.update(session={"type": "transcription"})
        updated = (await talk.until("session.updated", 2)).session
        assert updated.audio.input.format.rate == RATE
        assert updated.audio.input.turn_detection.silence_duration_ms == 300
        await talk.say(with_tail(CLIP))
        await talk.until(COMPLETED)


@pytest.mark.parametrize(
    ("type", "rate", "encode"),
    [
        ("audio/pcm", 24_000, lambda audio: speech.resampled(audio, 24_000).tobytes()),
        ("audio/pcm", 44_100, lambda audio: speech.resampled(audio, 44_100).tobytes()),
        ("audio/pcmu", 8_000, lambda audio: g711(audio, "mu")),
        ("audio/pcma", 8_000, lambda audio: g711(audio, "a")),
    ],
)
async def test_every_encoding(audio_gateway: Gateway, type: str, rate: int, encode: Any) -> None:
    clip = speech.samples(speech.CLIPS[0])
    data = encode(with_tail(clip))
    format = {"type": type, "rate": rate} if type == "audio/pcm" else {"type": type}
    async with realtime_client(audio_gateway.url, session(format=format)) as talk:
        for first in range(0, len(data), 9_999):  # not on the borders of samples
            piece = base64.b64encode(data[first : first + 9_999]).decode()
            await talk.connection.input_audio_buffer.append(audio=piece)
        await talk.until(COMPLETED)
        await talk.rest(0.3)
        assert speech.word_error_rate([(speech.transcript(speech.CLIPS[0]), talk.transcript)]) <= 0.1


def g711(audio: speech.Samples, law: str) -> bytes:
    from pipelines.audio.live.chunks import A_LAW, MU_LAW

    table = (MU_LAW if law == "mu" else A_LAW).astype(np.int32)
    order = np.argsort(table, kind="stable")
    at = np.clip(np.searchsorted(table[order], speech.resampled(audio, 8_000)), 0, 255)
    return order[at].astype(np.uint8).tobytes()


async def test_a_model_named_in_the_address_or_not_at_all(audio_gateway: Gateway) -> None:
    async with realtime_client(audio_gateway.url, model="whisper-1") as talk:
        assert talk.events[0].session.audio.input.transcription.model == "whisper-1"
    async with realtime_client(audio_gateway.url) as talk:
        assert talk.events[0].session.type == "transcription"
        assert talk.events[0].session.audio.input.transcription.model == MODEL


async def refused(url: str, path: str, **options: Any) -> tuple[int, str]:
    options.setdefault("additional_headers", {"authorization": f"Bearer {KEY}"})
    with pytest.raises(InvalidStatus) as refusal:
        async with connect(url.replace("http", "ws", 1) + path, **options):
            pass
    body = json.loads(refusal.value.response.body)
    return refusal.value.response.status_code, body["error"]["code"]


async def test_refusals_come_before_the_handshake(audio_gateway: Gateway) -> None:
    assert await refused(audio_gateway.url, "/v1/realtime?intent=transcription&model=nope") == (404, "model_not_found")
    assert await refused(audio_gateway.url, "/v1/realtime?intent=conversation") == (400, "invalid_request")
    assert await refused(audio_gateway.url, "/v1/audio/stream?rate=abc") == (400, "invalid_request")
    assert await refused(audio_gateway.url, "/v1/audio/stream?colour=red") == (400, "unknown_parameter")
    wrong = {"additional_headers": {"authorization": "Bearer wrong"}}
    assert await refused(audio_gateway.url, "/v1/realtime", **wrong) == (401, "invalid_api_key")
    for header in ({"x-gateway-priority": "urgent"}, {"x-gateway-timeout-ms": "soon"}):
        wrong = {"additional_headers": {"authorization": f"Bearer {KEY}", **header}}
        assert await refused(audio_gateway.url, "/v1/audio/stream", **wrong) == (400, "invalid_request")


async def test_browsers_send_the_key_as_a_subprotocol(audio_gateway: Gateway) -> None:
    url = audio_gateway.url.replace("http", "ws", 1) + "/v1/realtime?intent=transcription"
    async with connect(url, subprotocols=["realtime", f"openai-insecure-api-key.{KEY}"]) as connection:  # type: ignore[list-item]
        assert connection.subprotocol == "realtime"
        assert json.loads(await connection.recv())["type"] == "session.created"
    wrong = {"additional_headers": {}, "subprotocols": ["realtime", "openai-insecure-api-key.wrong"]}
    assert await refused(audio_gateway.url, "/v1/realtime", **wrong) == (401, "invalid_api_key")


async def test_streams_have_places_of_their_own_and_no_queue(audio_gateway: Gateway) -> None:
    streams = route(audio_gateway, MODEL).streams
    await until(lambda: streams.used == 0, 10)
    async with asyncio.TaskGroup() as group:
        let_go = asyncio.Event()
        held = 0

        async def hold() -> None:
            nonlocal held
            async with streaming(audio_gateway.url) as connection:
                await connection.recv()
                held += 1
                await let_go.wait()

        for _ in range(STREAMS):
            group.create_task(hold())
        await until(lambda: held == STREAMS, 10)
        assert await refused(audio_gateway.url, "/v1/audio/stream") == (429, "overloaded")
        client = AsyncOpenAI(base_url=f"{audio_gateway.url}/v1", api_key=KEY, max_retries=0)
        assert (await client.audio.transcriptions.create(model=MODEL, file=speech.CLIPS[1])).text  # files go on
        await client.close()
        let_go.set()
    await until(lambda: streams.used == 0, 10)


async def test_controls_and_audio_that_were_mixed_up(audio_gateway: Gateway) -> None:
    async with streaming(audio_gateway.url, rate="16000") as connection:
        await connection.recv()
        for message in ("END_OF_AUDIO", json.dumps({"type": "end"}).encode(), json.dumps({"type": "shout"})):
            await connection.send(message)
            assert json.loads(await connection.recv())["error"]["code"] == "invalid_message"
        messages = await stream(connection, CLIP)
        (final,) = [message for message in messages if message["type"] == "final"]
        assert speech.words(final["text"])[:3] == ["he", "was", "not"]
        assert 0 <= final["start"] <= final["end"] <= len(CLIP) / RATE


async def test_a_client_that_commits_by_itself_in_the_plain_form(audio_gateway: Gateway) -> None:
    async with streaming(audio_gateway.url, turns="client", rate="16000") as connection:
        await connection.recv()
        await connection.send(CLIP.tobytes())
        await connection.send(json.dumps({"type": "commit"}))
        assert json.loads(await connection.recv())["type"] == "final"
        await connection.send(CLIP.tobytes())
        await connection.send(json.dumps({"type": "clear"}))
        assert json.loads(await connection.recv()) == {"type": "cleared"}


async def test_a_quiet_session_stays_open(audio_gateway: Gateway) -> None:
    async with realtime_client(audio_gateway.url, session(turn_detection=server_vad())) as talk:
        await talk.rest(HEADER_TIMEOUT_S + 1.0)
        await talk.say(with_tail(CLIP))
        await talk.until(COMPLETED)


async def test_thirty_clients_that_leave_at_any_moment_leave_nothing(audio_gateway: Gateway) -> None:
    moments = random.Random(3)

    async def leave(index: int) -> None:
        await asyncio.sleep(moments.uniform(0, 3))
        try:
            async with asyncio.timeout(moments.uniform(0.05, 1.0)):
                if index % 2:
                    async with realtime_client(audio_gateway.url, session()) as talk:
                        await talk.say(np.tile(CLIP, 5))
                        await talk.rest(9)
                else:
                    async with streaming(audio_gateway.url) as connection:
                        await stream(connection, np.tile(CLIP, 5))
        except (TimeoutError, InvalidStatus):
            pass

    await asyncio.gather(*(leave(index) for index in range(30)))
    found = route(audio_gateway, MODEL)
    await until(lambda: found.streams.used == 0 and found.admission.used == 0, 20)
    async with realtime_client(audio_gateway.url, session()) as talk:
        await talk.say(with_tail(CLIP))
        assert speech.words((await talk.until(COMPLETED)).transcript)[:3] == ["he", "was", "not"]


async def test_a_session_has_a_line_in_the_log(audio_gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[tuple[str, dict[str, Any]]]:
        """Not of the sessions before, which may end now."""
        records = [record for record in caplog.records if record.name == "gateway.request"]
        found = [(record.getMessage(), dict(fields(record))) for record in records]
        return [line for line in found if line[0] != "WS /v1/realtime"]

    with caplog.at_level(logging.INFO):
        async with streaming(audio_gateway.url, model="whisper-1", rate=str(RATE), prompt="xyzzy") as connection:
            await stream(connection, CLIP)
        await until(lambda: len(lines()) == 1)
        await refused(audio_gateway.url, "/v1/audio/stream?prompt=xyzzy&rate=abc")
        await until(lambda: len(lines()) == 2)
    (asked, session), (_, refusal) = lines()
    assert asked == "WS /v1/audio/stream"
    assert (session["status"], session["key"], session["model"]) == (101, "tests", MODEL)
    assert session["seconds"] == pytest.approx(len(CLIP) / RATE, abs=0.01)
    assert (refusal["status"], refusal["key"], refusal.get("model")) == (400, "tests", None)
    assert not any(record.name.startswith("gateway") and "xyzzy" in record.getMessage() for record in caplog.records)
