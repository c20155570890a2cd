"""Messages on a stream socket, each followed by the raw bytes that it tells of."""

import socket
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pipelines.media.messages import MediaAnswer, MediaJob

HEADER = 4  # bytes: the length of the message, little-endian
RECEIVE = 256 * 1024  # bytes asked for in one read

Payload = npt.NDArray[Any]

_encode_into = msgspec.msgpack.Encoder().encode_into
_decode = msgspec.msgpack.Decoder(MediaAnswer).decode


def send(sock: socket.socket, message: MediaJob | MediaAnswer, *payloads: Payload) -> None:
    """Waits while the socket is full. Raises OSError once the peer is gone."""
    frame = bytearray(HEADER)
    _encode_into(message, frame, HEADER)
    frame[:HEADER] = (len(frame) - HEADER).to_bytes(HEADER, "little")
    sock.sendall(frame)
    for payload in payloads:
        sock.sendall(np.ascontiguousarray(payload).reshape(-1).view(np.uint8).data)


def receive(sock: socket.socket) -> MediaAnswer:
    """The next message; its payload is still to be read. Raises EOFError once the peer is gone, OSError."""
    size = int.from_bytes(_exactly(sock, bytearray(HEADER)), "little")
    return _decode(_exactly(sock, bytearray(size)))


def receive_into(sock: socket.socket, payload: Payload) -> None:
    """The same, of a contiguous array."""
    if payload.nbytes:
        _exactly(sock, payload.reshape(-1).view(np.uint8).data)


def _exactly(sock: socket.socket, data: bytearray | memoryview) -> bytearray | memoryview:
    view = memoryview(data)
    while view:
        received = sock.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    return data
