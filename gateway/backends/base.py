"""The one protocol between a request's life in the gateway and whatever runs it."""

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from metrics.timeline import Timeline
from pipelines.messages.base import Item, Request
from pipelines.messages.frames import ErrorCode, Event, Priority, Ready


class State(StrEnum):
    READY = "ready"
    LOADING = "loading"  # first start
    RESTARTING = "restarting"
    FAILED = "failed"  # it could not be loaded, for the reason in `Backend.reason`, and nobody need wait for it
    DRAINING = "draining"
    STOPPED = "stopped"


class Call(Struct, frozen=True):
    """One request as a backend sees it."""

    id: str
    request: Request
    priority: Priority = "interactive"
    deadline: float | None = None  # seconds left
    tenant: str = ""


class BackendError(Exception):
    """The backend can't take or finish the call."""

    def __init__(self, code: ErrorCode, message: str, param: str | None = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.param = param
        self.retryable = retryable


class Session(Protocol):
    """One open call. Its events end with `Done` or `Failed`, whatever happens to the backend."""

    @property
    def ended(self) -> "asyncio.Future[None]":
        """Done when the backend has let go of the work: only then do the call's slots return."""
        ...

    async def read(self) -> Sequence[Event]:
        """The next events, all that have come, at least one: they are written at once. Where the reader lags they are
        merged: unread deltas of a choice become one. Nothing follows a terminal event."""
        ...

    async def send(self, item: Item) -> None:
        """More input of a live stream, in order; nothing once it has ended. Waits for a backend that lags."""
        ...

    def close(self) -> None:
        """Abort what is not finished. Idempotent; returns at once."""
        ...


class Backend(Protocol):
    """One replica of a model."""

    @property
    def model(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def state(self) -> State: ...

    @property
    def reason(self) -> str | None:
        """Why it is not ready, for people."""
        ...

    @property
    def ready(self) -> Ready | None:
        """What it announced, while it is ready; else None."""
        ...

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        ...

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called on the event loop after `state` or `ready` changed."""
        ...

    def launch(self) -> None:
        """Begin to load, where that has not begun yet."""
        ...

    async def start(self) -> None:
        """The same; returns once the process is started, not once it is ready."""
        ...

    async def stop(self, grace: float) -> None:
        """Let open calls finish for up to `grace` seconds, then end them."""
        ...

    def open(self, call: Call, timeline: Timeline) -> Session:
        """Send the call off. The backend stamps tokens on `timeline` as they arrive, before deltas are merged.
        Raises BackendError("worker_lost", retryable=True) where it is not ready."""
        ...
