"""Clients of live transcription, as they are written in the field."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from websockets.asyncio.client import ClientConnection, connect

from tests import speech

KEY = "sk-live-tests"
PIECE = 1600  # samples in one message: 100 ms
RATE = speech.RATE


def with_tail(audio: speech.Samples, seconds: float = 1.2) -> speech.Samples:
    return np.concatenate([audio, speech.silence(seconds)])


def session(**fields: Any) -> dict[str, Any]:
    """A transcription session over 16 kHz PCM; `fields` are of `audio.input`."""
    return {
        "type": "transcription",
        "audio": {"input": {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": server_vad(), **fields}},
    }


def server_vad(silence_ms: int = 300) -> dict[str, Any]:
    return {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": silence_ms}


@dataclass
class RealtimeClient:
    """One realtime session, and all the server has said in it."""

    connection: AsyncRealtimeConnection
    events: list[Any] = field(default_factory=list)

    async def say(self, audio: speech.Samples, *, paced: bool = False) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for first in range(0, len(audio), PIECE):
            piece = base64.b64encode(audio[first : first + PIECE].tobytes()).decode()
            await self.connection.input_audio_buffer.append(audio=piece)
            if paced:
                await asyncio.sleep(max(0.0, began + (first + PIECE) / RATE - loop.time()))

    async def until(self, type: str, count: int = 1) -> Any:
        """The `count`th event of a type; those before it are kept too."""
        async with asyncio.timeout(30):
            while len(found := [event for event in self.events if event.type == type]) < count:
                self.events.append(await self.connection.recv())
        return found[count - 1]

    async def rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self.events.append(await self.connection.recv())
        except TimeoutError:
            pass

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def of(self, type: str) -> list[Any]:
        return [event for event in self.events if event.type == type]

    @property
    def transcript(self) -> str:
        return " ".join(event.transcript for event in self.of(COMPLETED))


COMPLETED = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"


@asynccontextmanager
async def realtime_client(
    url: str, update: dict[str, Any] | None = None, **query: str
) -> AsyncIterator[RealtimeClient]:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    async with client, client.realtime.connect(extra_query={"intent": "transcription", **query}) as connection:
        talk = RealtimeClient(connection)
        await talk.until("session.created")
        if update is not None:
            await connection.session.update(session=update)  # type: ignore[arg-type]
            await talk.until("session.updated")
        yield talk


@asynccontextmanager
async def streaming(url: str, **query: str) -> AsyncIterator[ClientConnection]:
    """The plain form."""
    address = f"{url.replace('http', 'ws', 1)}/v1/audio/stream?" + "&".join(f"{k}={v}" for k, v in query.items())
    async with connect(address, additional_headers={"authorization": f"Bearer {KEY}"}) as connection:
        yield connection


async def stream(connection: ClientConnection, audio: speech.Samples, *, paced: bool = False) -> list[dict[str, Any]]:
    """Send audio and the end; everything that comes until the server closes."""

    async def send() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for first in range(0, len(audio), PIECE):
            await connection.send(audio[first : first + PIECE].tobytes())
            if paced:
                await asyncio.sleep(max(0.0, began + (first + PIECE) / RATE - loop.time()))
        await connection.send(json.dumps({"type": "end"}))

    sending = asyncio.create_task(send())
    messages = [json.loads(message) async for message in connection]
    await sending
    return messages
