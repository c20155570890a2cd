"""A worker process spoken to by hand: frames out, frames in."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pipelines.kinds import KINDS
from pipelines.messages.audio import Audio, End
from pipelines.messages.base import Options, encode_item
from pipelines.messages.frames import (
    Done,
    Event,
    Failed,
    Feed,
    FromWorker,
    ModelSpec,
    Open,
    Ready,
    Step,
    ToWorker,
)
from pipelines.messages.text import Delta, StringPrompt, TextRequest
from pipelines.runtime.ipc import encode_frame, from_worker_reader, load_frame

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0  # seconds; a test that waits this long has failed


class Worker:
    def __init__(self, spec: ModelSpec[Options]) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pipelines.runtime.worker", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._reader = from_worker_reader(KINDS[spec.kind])
        self._unread: list[FromWorker] = []
        self.socket.sendall(load_frame(spec))

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()

    def send(self, *messages: ToWorker) -> None:
        self.socket.sendall(b"".join(encode_frame(message) for message in messages))

    def open(self, id: str, words: str, *, n: int = 1, deadline: float | None = None) -> None:
        request = TextRequest(prompts=[StringPrompt(words)], n=n)
        self.send(Open(id, request, deadline=deadline))

    def receive(self) -> FromWorker | None:
        """The next message; None at the end of the stream."""
        while not self._unread:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._unread.extend(self._reader.feed(data))
        return self._unread.pop(0)

    def until(self, wanted: Callable[[FromWorker], bool]) -> FromWorker:
        """The first message that is wanted; those before it are dropped."""
        while (message := self.receive()) is not None:
            if wanted(message):
                return message
        raise AssertionError("the worker has gone")

    def ready(self) -> Ready:
        message = self.until(lambda message: isinstance(message, Ready))
        assert isinstance(message, Ready)
        return message

    def events(self) -> Iterator[Event]:
        while (message := self.receive()) is not None:
            if isinstance(message, Step):
                yield from message.events

    def first(self, id: str, kind: type[Event]) -> Event:
        """The next event of that kind of one request; what comes before it is dropped."""
        for event in self.events():
            if event.id == id and isinstance(event, kind):
                return event
        raise AssertionError("the worker has gone")

    def finish(self, *ids: str) -> dict[str, list[Event]]:
        """All events until each of the requests has ended; by request."""
        seen: dict[str, list[Event]] = {id: [] for id in ids}
        ended: set[str] = set()
        for event in self.events():
            seen.setdefault(event.id, []).append(event)
            if isinstance(event, Done | Failed):
                ended.add(event.id)
                if ended.issuperset(ids):
                    return seen
        raise AssertionError(f"the worker has gone; ended: {ended}")


def text(events: list[Event], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)


def fed(id: str, words: str | None) -> Feed:
    """More words for a stream of the fake pipeline; None: its end."""
    return Feed(id, encode_item(End() if words is None else Audio(words.encode())))


def terminals(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Done | Failed)]
