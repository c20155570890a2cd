"""Open requests of a worker, and the queue by which its other threads reach the engine thread."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic

from msgspec import Struct

from pipelines.base import Ticket, W
from pipelines.messages.base import Request
from pipelines.messages.frames import Abort, Drain, ErrorCode


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request from Open to its terminal event, with its input in the order in which it came.

    `items` is worked off by one pool thread at a time (`scheduled`), so the chunks of a stream stay in order behind the
    prepare of the request itself.
    """

    ticket: Ticket
    closed: bool = False  # only ever set: whatever is still queued for it is dropped
    _items: deque[Request | bytes] = field(default_factory=deque)
    _scheduled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def push(self, item: Request | bytes) -> bool:
        """Whether the caller has to hand this request to the pool: it is not there yet."""
        with self._lock:
            self._items.append(item)
            if self._scheduled:
                return False
            self._scheduled = True
            return True

    def first(self) -> Request | bytes:
        """The item to work on; it stays at the head until `advance`."""
        return self._items[0]

    def advance(self) -> bool:
        """Drop the item just worked on. Whether there is another one: then the caller hands it to the pool again."""
        with self._lock:
            self._items.popleft()
            self._scheduled = bool(self._items)
            return self._scheduled


# Requests by id. Who listens inserts, the engine thread alone removes, with the terminal event that it sends: this is
# what makes that event the only one. Single dict operations are atomic, so there is no lock.
OpenRequests = dict[str, OpenRequest]


class Prepared(Struct, Generic[W], frozen=True):
    """Work of a request, ready for `admit`. `opening`: it comes from the request itself, not from a later chunk."""

    request: OpenRequest
    works: Sequence[W]
    opening: bool


class Refused(Struct, frozen=True):
    """A request, or a chunk of its stream, that can't be served."""

    request: OpenRequest
    code: ErrorCode
    message: str
    param: str | None = None


Command = Prepared[W] | Refused | Abort | Drain


class Inbox(Generic[W]):
    """Many writers, one reader: the engine thread. What is put while that one waits wakes it, by a pipe that it polls
    beside its socket."""

    def __init__(self) -> None:
        self._commands: deque[Command[W]] = deque()
        self._awaited = False
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)

    def put(self, command: Command[W]) -> None:
        self._commands.append(command)
        if self._awaited:
            self.wake()

    def take(self) -> list[Command[W]]:
        """All that is there."""
        commands: list[Command[W]] = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    def wait(self) -> bool:
        """From here until `waited`, each put wakes the reader. Whether there is nothing yet."""
        self._awaited = True  # before one looks: a put that is not seen then wakes
        return not self._commands

    def waited(self) -> None:
        self._awaited = False

    def fileno(self) -> int:
        """What to poll beside the socket: readable once it was woken."""
        return self._wakeup_read

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is full: the reader has long been woken
            os.write(self._wakeup_write, b"\0")

    def clear_wakeup(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wakeup_read, 4096)
