"""Media decoded outside of the worker: a file that crashes its decoder costs the request that brought it."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

import pipelines
from pipelines.base import InvalidRequest
from pipelines.media.messages import AudioJob, MediaJob, PictureJob, Piece, Pixels, Refused, Whole
from pipelines.media.pictures import Picture
from pipelines.media.wire import receive, receive_into, send

log = logging.getLogger(__name__)

ROOT = str(Path(pipelines.__file__).parent.parent)  # where a child finds this code, whatever its working directory is
HELPER = "pipelines.media.helper"
KEPT = 2  # helpers that stay for the next job
EXIT_S = 10.0  # that a process may take to be gone
# After which a helper that says nothing is killed. One that computes has a limit of its own, in CPU time; on a busy
# machine it gets a tenth of a core.
SILENCE_S = 600.0

Samples = npt.NDArray[np.int16]
T = TypeVar("T")


class MediaDecoder:
    """Any thread. Each thread that decodes has a helper of its own meanwhile; they are started when they are needed,
    and end with this object, at the latest with this process."""

    def __init__(self, program: str = HELPER, silence: float = SILENCE_S) -> None:
        """`program`: the module that a helper runs. `silence`: seconds."""
        self._program = program
        self._silence = silence
        self._idle: list[_Helper] = []
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end_all, self._idle)

    def warm(self) -> None:
        """Start a helper in the background, so that the first job need not wait for that."""
        self._put(self._start())

    def close(self) -> None:
        """End those that have nothing to do. Idempotent."""
        self._end()

    def audio(self, job: AudioJob) -> Samples:
        """The first audio track, mono. Raises InvalidRequest."""
        return self._do(job, "file", _samples)

    def picture(self, job: PictureJob) -> Picture:
        """Raises InvalidRequest."""
        return self._do(job, job.param, _picture)

    def _do(self, job: MediaJob, param: str, read: "Callable[[socket.socket], T | Refused]") -> T:
        try:
            answer = self._try(job, param, read)
        except _Killed:  # whoever did it, most likely for lack of memory: it need not be for this file
            try:
                answer = self._try(job, param, read)
            except _Killed as again:
                raise RuntimeError("a media helper was killed, and so was the next one") from again
        if isinstance(answer, Refused):
            if answer.detail:
                log.error("a file could not be decoded\n%s", answer.detail)
            raise answer.refusal()
        return answer

    def _try(self, job: MediaJob, param: str, read: "Callable[[socket.socket], T | Refused]") -> "T | Refused":
        helper = self._take()
        try:
            send(helper.socket, job)
            answer = read(helper.socket)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            _lost(helper, param)
        except TimeoutError:
            helper.end()
            log.error("a media helper said nothing for %g s and was killed", self._silence)
            raise _too_long(param) from None
        except BaseException:
            helper.end()  # in the middle of an answer
            raise
        self._put(helper)
        return answer

    def _take(self) -> "_Helper":
        while True:
            with self._lock:
                helper = self._idle.pop() if self._idle else None
            if helper is None:
                return self._start()
            if helper.alive:
                return helper
            helper.end()  # killed while it had nothing to do

    def _put(self, helper: "_Helper") -> None:
        with self._lock:
            if len(self._idle) < KEPT and self._end.alive:
                self._idle.append(helper)
                return
        helper.end()

    def _start(self) -> "_Helper":
        return _Helper(self._program, self._silence)


class _Helper:
    """A process and the socket to it. It is spawned, never forked: it has no thread, lock or descriptor of the worker
    but its end of the pair and stderr."""

    def __init__(self, program: str, silence: float) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(silence)
        descriptor = theirs.fileno()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", program, "--fd", str(descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints is log
                pass_fds=[descriptor],
                env=_environment(),
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.socket.close()

    def status(self) -> int:
        """Its exit status, of a process whose end of the socket is closed; negative: the signal."""
        self.socket.close()
        try:
            return self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    # One thread a helper, and one heap: each of either takes address space, which is limited.
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def _end_all(helpers: list[_Helper]) -> None:
    for helper in helpers:
        helper.end()
    helpers.clear()


class _Killed(Exception):
    """A helper ended by SIGKILL, which no library sends."""


def _lost(helper: _Helper, param: str) -> NoReturn:
    """Raises InvalidRequest where the file crashed its decoder, _Killed where somebody ended the helper, and
    RuntimeError where it ended by itself."""
    status = helper.status()
    if status >= 0:
        raise RuntimeError(f"a media helper exited with status {status}")
    log.error("a media helper ended in the middle of a job, by %s", signal.Signals(-status).name)
    if status == -signal.SIGKILL:
        raise _Killed from None
    if status == -signal.SIGXCPU:
        raise _too_long(param) from None
    raise InvalidRequest(f"{param!r} can't be decoded: its decoder crashed.", param) from None


def _too_long(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param!r} can't be decoded: it takes longer than a file may.", param)


def _samples(sock: socket.socket) -> Samples | Refused:
    pieces: list[Samples] = []
    while True:
        match receive(sock):
            case Piece(samples=samples):
                piece = np.empty(samples, np.int16)
                receive_into(sock, piece)
                pieces.append(piece)
            case Whole():
                return np.concatenate(pieces)
            case Refused() as refused:
                return refused
            case other:
                raise AssertionError(other)


def _picture(sock: socket.socket) -> Picture | Refused:
    match receive(sock):
        case Pixels() as pixels:
            rgb = np.empty((pixels.height, pixels.width, 3), np.uint8)
            receive_into(sock, rgb)
            alpha = np.empty((pixels.height, pixels.width), np.uint8) if pixels.alpha else None
            if alpha is not None:
                receive_into(sock, alpha)
            return Picture(rgb, alpha, (pixels.full_width, pixels.full_height))
        case Refused() as refused:
            return refused
        case other:
            raise AssertionError(other)
