"""The least that a Litestar server can do with a chat request: decode the body, answer with given bytes.

Arguments: port, directory with `body` and `stream` (server-sent events, one chunk a blank line).
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from litestar import Litestar, Response, get, post
from litestar.response import Stream
from msgspec import Struct


class Message(Struct):
    role: str
    content: str


class Chat(Struct):
    model: str
    messages: list[Message]
    stream: bool = False


def application(directory: Path) -> Litestar:
    body = (directory / "body").read_bytes()
    chunks = [chunk + b"\n\n" for chunk in (directory / "stream").read_bytes().split(b"\n\n") if chunk]

    @get("/ready", sync_to_thread=False)
    def ready() -> None: ...

    @post("/v1/chat/completions", status_code=200)
    async def chat(data: Chat) -> Response[bytes] | Stream:
        if data.stream:
            return Stream(_each(chunks), media_type="text/event-stream")
        return Response(body, media_type="application/json")

    return Litestar([ready, chat], logging_config=None, openapi_config=None)


async def _each(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0)


if __name__ == "__main__":
    uvicorn.run(
        application(Path(sys.argv[2])),
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
    )
