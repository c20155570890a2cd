"""Frames on a stream socket: a 4-byte little-endian length, then one MessagePack message of that many bytes.

The first one, a Load, names the card of the worker's kind; that says what the others may carry.
"""

import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from pipelines.kinds import KINDS, Kind, referenced
from pipelines.logs import LogOptions
from pipelines.messages.base import Options
from pipelines.messages.frames import (
    Abort,
    Drain,
    Feed,
    FromWorker,
    Load,
    LoadFailed,
    Malformed,
    ModelSpec,
    Open,
    Ping,
    Pong,
    Ready,
    Stats,
    Step,
    ToWorker,
)

HEADER = 4
MAX_FRAME = 256 * 1024 * 1024  # bytes; uploads travel as paths, so more than this is a broken peer
POSTED = 16  # messages posted and not yet sent; of more, the oldest are dropped
RECEIVE = 256 * 1024  # bytes asked for in one read

M = TypeVar("M")

# Generics that are made concrete by a card, which no type checker reads.
_LOAD: Any = Load
_OPEN: Any = Open
_STEP: Any = Step

_encode_into = msgspec.msgpack.Encoder().encode_into


class FrameError(Exception):
    """The peer does not speak this protocol."""


def encode_frame(message: Load[Options] | ToWorker | FromWorker) -> bytearray:
    """One frame, header included. Raises FrameError past MAX_FRAME."""
    frame = bytearray(HEADER)
    _encode_into(message, frame, HEADER)
    length = len(frame) - HEADER
    if length > MAX_FRAME:
        raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
    frame[:HEADER] = length.to_bytes(HEADER, "little")
    return frame


def undecodable(body: bytes | memoryview, error: msgspec.DecodeError) -> NoReturn:
    """Raises FrameError."""
    raise FrameError(f"undecodable frame: {error}") from error


class FrameReader(Generic[M]):
    """Cuts a byte stream into messages, wherever the reads happened to end."""

    def __init__(
        self,
        decoder: "msgspec.msgpack.Decoder[M]",
        salvage: Callable[[bytes | memoryview, msgspec.ValidationError], M] = undecodable,
    ) -> None:
        """`salvage` makes what it can of a message that is none of the decoder's, or raises FrameError."""
        self._decode = decoder.decode
        self._salvage = salvage
        self._buffer = bytearray()
        self._needed = HEADER  # bytes the buffer must hold before there is a whole frame (or header) to look at

    def feed(self, data: bytes | memoryview) -> list[M]:
        """The messages that `data` completes. Raises FrameError on an oversized or undecodable frame."""
        buffer = self._buffer
        if not buffer:  # as nearly always: frames came whole
            messages, end = self._cut(data)
            buffer += data[end:]
            return messages
        buffer += data
        if len(buffer) < self._needed:
            return []
        with memoryview(buffer) as view:
            messages, end = self._cut(view)
        del buffer[:end]
        return messages

    def _cut(self, data: bytes | memoryview) -> tuple[list[M], int]:
        """(the messages of the whole frames at the front, where they end)"""
        messages: list[M] = []
        start, end = 0, len(data)
        while True:
            body = start + HEADER
            if end < body:
                self._needed = HEADER
                return messages, start
            length = int.from_bytes(data[start:body], "little")
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
            if end < body + length:
                self._needed = HEADER + length
                return messages, start
            try:
                messages.append(self._decode(data[body : body + length]))
            except msgspec.ValidationError as error:
                messages.append(self._salvage(data[body : body + length], error))
            except msgspec.DecodeError as error:
                undecodable(data[body : body + length], error)
            start = body + length


def to_worker_reader(kind: Kind) -> FrameReader[ToWorker | Malformed]:
    """Of what follows the Load."""
    return FrameReader(msgspec.msgpack.Decoder(_OPEN[kind.requests] | Feed | Abort | Ping | Drain), _malformed)


_opened = msgspec.msgpack.Decoder(Malformed)
_BROKEN = re.compile(r"(?P<what>.*?) - at `\$\.request\.(?:sampling\.)?(?P<param>[^`]*)`", re.DOTALL)


def _malformed(body: bytes | memoryview, error: msgspec.ValidationError) -> Malformed:
    """Raises FrameError where it is no request that is wrong."""
    try:
        opened = _opened.decode(body)
    except msgspec.DecodeError:
        undecodable(body, error)
    match = _BROKEN.fullmatch(str(error))
    if match is None:
        return Malformed(opened.id, str(error))
    return Malformed(opened.id, f"{match['param']!r} is not valid: {match['what'].replace('`', '')}", match["param"])


def from_worker_reader(kind: Kind) -> FrameReader[FromWorker]:
    return FrameReader(msgspec.msgpack.Decoder(Ready | LoadFailed | _STEP[kind.events] | Stats | Pong))


def load_frame(spec: ModelSpec[Options], log: LogOptions | None = None) -> bytearray:
    """The first frame for a worker."""
    return encode_frame(Load(KINDS[spec.kind].card, spec, log or LogOptions()))


class _Card(Struct, frozen=True, tag="load"):
    """So much of a Load as says what the rest of it is."""

    card: str


def receive_load(sock: socket.socket) -> tuple[Kind, Load[Options]]:
    """The first frame, which is waited for, and the card that it names. Raises EOFError, FrameError, OSError."""
    length = int.from_bytes(_receive_exactly(sock, HEADER), "little")
    if length > MAX_FRAME:
        raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
    body = _receive_exactly(sock, length)
    try:
        reference = msgspec.msgpack.decode(body, type=_Card).card
        kind = referenced(reference)
        if not isinstance(kind, Kind):
            raise FrameError(f"{reference} is no card of a kind")
        load: Load[Options] = msgspec.msgpack.decode(body, type=_LOAD[kind.options])
    except msgspec.DecodeError as error:
        raise FrameError(f"undecodable frame: {error}") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise FrameError(f"there is no card {reference!r}: {error}") from error
    return kind, load


def _receive_exactly(sock: socket.socket, size: int) -> bytearray:
    """Raises EOFError where the stream ends before."""
    received = bytearray()
    while len(received) < size:
        data = sock.recv(size - len(received))
        if not data:
            raise EOFError
        received += data
    return received


class WorkerChannel:
    """The worker's blocking end of the socket pair. One thread at a time receives; any thread sends."""

    def __init__(self, sock: socket.socket, kind: Kind) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._reader = to_worker_reader(kind)
        self._space = memoryview(bytearray(RECEIVE))
        self._sending = threading.Lock()
        self._posted: deque[bytearray] = deque(maxlen=POSTED)

    def fileno(self) -> int:
        """To wait until there is something to receive."""
        return self._socket.fileno()

    def receive(self) -> Sequence[ToWorker | Malformed]:
        """The messages that the next read completes, often none. Raises EOFError once the gateway's end is closed,
        FrameError, OSError."""
        size = self._socket.recv_into(self._space)
        if not size:
            raise EOFError
        return self._reader.feed(self._space[:size])

    def send(self, *messages: FromWorker) -> None:
        """All of them in one write; waits while the socket is full. Raises OSError once the gateway is gone."""
        frames = encode_frame(messages[0])
        for message in messages[1:]:
            frames += encode_frame(message)
        with self._sending:
            self._socket.sendall(frames)
        self._send_posted()

    def post(self, message: FromWorker) -> None:
        """Send without ever waiting, so that the thread that reads does not stop because the gateway has.

        Where another thread is writing, that one sends the message after its own; where the socket is full, the message
        is dropped.
        """
        self._posted.append(encode_frame(message))
        self._send_posted()

    def _send_posted(self) -> None:
        # Looked at again after each release: a message may be posted just before one, by a thread that found the lock
        # held.
        while self._posted and self._sending.acquire(blocking=False):
            try:
                frame = self._posted.popleft()
                sent = self._socket.send(frame, socket.MSG_DONTWAIT)
                if sent < len(frame):  # a frame once begun has to be finished
                    self._socket.sendall(frame[sent:])
            except (BlockingIOError, IndexError):
                pass
            finally:
                self._sending.release()
