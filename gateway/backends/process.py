"""One life of a worker process: started, spoken to, ended."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import cast

import psutil

import pipelines
from pipelines.kinds import KINDS
from pipelines.logs import LogOptions
from pipelines.messages.base import Options
from pipelines.messages.frames import FromWorker, ModelSpec, ToWorker
from pipelines.runtime.ipc import FrameError, encode_frame, from_worker_reader, load_frame

log = logging.getLogger(__name__)

# Where the child finds this code, whatever its working directory is.
ROOT = str(Path(pipelines.__file__).parent.parent)

# Times that an OpenMP thread spins at a barrier before it sleeps: enough to bridge two small operations,
# and what libgomp itself takes where it sees more threads than cores. It does not see those of other workers: with its
# usual 300,000, workers that share cores burn their time slices in waiting, and steps take many times as long.
SPIN = "1000"

REAP_PAUSE = (0.002, 0.1)  # seconds between two looks at a process that is on its way out: first, longest


class WorkerProcess(asyncio.Protocol):
    """The gateway's end of the socket pair, and the child at the other.

    The child ends by itself once this end is closed. `closed` is done when nothing more will come from it.
    """

    def __init__(self, spec: ModelSpec[Options], on_message: Callable[[FromWorker], None], log: LogOptions) -> None:
        loop = asyncio.get_running_loop()
        self.started = monotonic()
        self.heard = 0  # reads so far: a sign of life
        self.closed: asyncio.Future[None] = loop.create_future()
        self._on_message = on_message
        self._reader = from_worker_reader(KINDS[spec.kind])
        self._transport: asyncio.Transport | None = None
        self._loop = loop
        self._pending = bytearray()  # frames of this turn of the event loop
        self._room = asyncio.Event()
        self._room.set()
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._child = _start(theirs)
            except OSError:
                self._socket.close()
                raise
        # Not through the event loop: that may be busy for a while (it imports the HTTP stack), and the worker need not
        # wait for it. A new socket takes a frame of this size at once.
        self._socket.sendall(load_frame(spec, log))

    @classmethod
    async def start(
        cls, spec: ModelSpec[Options], on_message: Callable[[FromWorker], None], log: LogOptions
    ) -> "WorkerProcess":
        """A process that loads `spec`. Raises OSError where the system is out of processes, memory or descriptors."""
        process = cls(spec, on_message, log)
        await asyncio.get_running_loop().create_unix_connection(lambda: process, sock=process._socket)
        return process

    @property
    def pid(self) -> int:
        return self._child.pid

    def resident_bytes(self) -> int | None:
        try:
            resident: int = psutil.Process(self._child.pid).memory_info().rss
        except psutil.Error:
            return None
        return resident

    def send(self, message: ToWorker) -> None:
        """Queue a frame; never waits. Lost where the worker is."""
        if self._transport is not None and not self._transport.is_closing():
            # One write a turn of the event loop: each one wakes the worker.
            if not self._pending:
                self._loop.call_soon(self._flush)
            self._pending += encode_frame(message)

    def _flush(self) -> None:
        pending, self._pending = self._pending, bytearray()
        if self._transport is not None:
            self._transport.write(pending)

    async def writable(self) -> None:
        """Until the worker has read most of what was sent, or is gone."""
        await self._room.wait()

    def close(self) -> None:
        """Close this end: the worker exits at once."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()

    async def reap(self, patience: float) -> int:
        """Its exit status (negative: the signal), after `patience` seconds by SIGKILL."""
        pause, longest = REAP_PAUSE
        deadline = monotonic() + patience
        while (status := self._child.poll()) is None:
            if monotonic() >= deadline:
                self.kill()
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
        return status

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard += 1
        try:
            messages = self._reader.feed(data)
        except FrameError as error:
            log.error("worker %d: %s", self.pid, error)
            self.kill()
            self.close()
            return
        for message in messages:
            self._on_message(message)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._room.set()
        if not self.closed.done():
            self.closed.set_result(None)


def _start(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    """Spawn, never fork: the child has no thread, lock or descriptor of ours but its end of the pair and stderr."""
    descriptor = theirs.fileno()
    return subprocess.Popen(
        [*python_module("pipelines.runtime.worker"), "--fd", str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a library prints is log
        pass_fds=[descriptor],
        env=child_environment(os.environ),
    )


def python_module(name: str) -> list[str]:
    """The command that runs a module of this code, with `child_environment`: never one of its name in the working
    directory."""
    return [sys.executable, "-P", "-m", name]


def child_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Ours, and what has to be set before the child imports its libraries."""
    path = os.pathsep.join(filter(None, (ROOT, ours.get("PYTHONPATH"))))
    environment = {**ours, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
    # numpy's own matrix products are small: threads that spin for them take the cores from the model's.
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "OMP_WAIT_POLICY" not in ours:
        environment.setdefault("GOMP_SPINCOUNT", SPIN)
    return environment


def describe_exit(status: int) -> str:
    """An exit status for people."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"
