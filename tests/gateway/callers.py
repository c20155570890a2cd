"""Clients that ask for one piece of work each, over sockets: the two forms of a request, and of a live stream."""

import asyncio
import json
from contextlib import suppress
from typing import ClassVar

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.requests.admission import Admission
from pipelines.messages.audio import SpeechStarted
from tests.gateway.scripted import ScriptedCall
from tests.gateway.scripted_app import CHAT, ScriptedApp, chat


class Caller:
    """One client. `asked` ends with the error code that it was told, or with "stop"."""

    live: ClassVar[bool] = False
    kind: ClassVar[str] = "text"  # of the model

    def __init__(self, app: ScriptedApp) -> None:
        self.started = asyncio.Event()  # it has seen the answer's first event
        self.asked = asyncio.create_task(self._ask(app))

    async def leave(self) -> None:
        """Close the connection."""
        self.asked.cancel()
        await asyncio.gather(self.asked, return_exceptions=True)

    async def _ask(self, app: ScriptedApp) -> str:
        raise NotImplementedError

    @staticmethod
    def admission(app: ScriptedApp) -> Admission:
        """What grants its place."""
        return app.admission

    @staticmethod
    def say(call: ScriptedCall) -> None:
        """A first event of the work."""
        call.text("Hel")

    @staticmethod
    def end(call: ScriptedCall) -> None:
        call.end()


class Body(Caller):
    """A chat whose answer is one body."""

    stream: ClassVar[bool] = False

    async def _ask(self, app: ScriptedApp) -> str:
        async with (
            httpx.AsyncClient(base_url=app.gateway.url, timeout=20) as client,
            client.stream("POST", CHAT, json=chat(stream=self.stream)) as answer,
        ):
            if answer.status_code != 200:
                return str(json.loads(await answer.aread())["error"]["code"])
            async for line in answer.aiter_lines():
                self.started.set()
                data = line.removeprefix("data: ")
                if data and data != "[DONE]" and "error" in (event := json.loads(data)):
                    return str(event["error"]["code"])
        return "stop"


class Events(Body):
    """A chat that is answered by events."""

    stream = True


class Plain(Caller):
    """A live stream in the plain protocol."""

    live = True
    kind = "audio"
    path: ClassVar[str] = "/v1/audio/stream"

    @staticmethod
    def admission(app: ScriptedApp) -> Admission:
        return app.gateway.fleet.routes[0].streams

    @staticmethod
    def say(call: ScriptedCall) -> None:
        call.say(SpeechStarted(call.call.id, 0, 0.5))

    @staticmethod
    def end(call: ScriptedCall) -> None:
        call.say(call.done())

    async def _ask(self, app: ScriptedApp) -> str:
        try:
            async with connect(app.gateway.url.replace("http", "ws", 1) + self.path) as connection:
                return await self._listen(connection)
        except InvalidStatus as refusal:
            return str(json.loads(refusal.response.body)["error"]["code"])

    async def _listen(self, connection: ClientConnection) -> str:
        code = "stop"
        with suppress(ConnectionClosed):
            while True:
                message = json.loads(await connection.recv())
                if message["type"] == "error":
                    code = message["error"]["code"]
                elif message["type"] not in ("ready", "session.created"):
                    self.started.set()
        # 1000: the stream is over; 1011: it broke; 1012: the server goes
        assert (connection.close_code == 1011) == (code != "stop")
        return code


class Realtime(Plain):
    """The same in OpenAI's."""

    path = "/v1/realtime?intent=transcription"


CALLERS: list[type[Caller]] = [Body, Events, Plain, Realtime]
