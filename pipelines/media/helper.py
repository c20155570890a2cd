"""The main of a media helper, started by a worker as `python -m pipelines.media.helper --fd N`.

It does one job at a time. What a library makes of a hostile file (a crash, an endless loop, all of the memory) ends
this process and nothing else. It lives as long as its socket.
"""

import argparse
import os
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue
from traceback import format_exc, print_exc
from typing import NoReturn

import msgspec
from PIL import AvifImagePlugin

from models.privacy import silence
from pipelines.base import InvalidRequest
from pipelines.media import limits
from pipelines.media.audio import decode_audio
from pipelines.media.messages import AudioJob, MediaAnswer, MediaJob, PictureJob, Piece, Pixels, Refused, Whole
from pipelines.media.pictures import decode_picture
from pipelines.media.wire import RECEIVE, Payload, send
from pipelines.runtime.ipc import FrameReader

Answer = Callable[..., None]  # (message, *payloads)


def do(job: MediaJob, answer: Answer) -> None:
    """Raises InvalidRequest, and whatever a library raises."""
    match job:
        case AudioJob():
            for piece in decode_audio(job):
                answer(Piece(len(piece)), piece)
            answer(Whole())
        case PictureJob():
            picture = decode_picture(job)
            height, width = picture.rgb.shape[:2]
            pixels = Pixels(width, height, picture.alpha is not None, *picture.full)
            answer(pixels, picture.rgb, *([] if picture.alpha is None else [picture.alpha]))


def serve(sock: socket.socket, do: Callable[[MediaJob, Answer], None] = do) -> NoReturn:
    """Jobs in the order in which they come, until the worker's end is closed."""
    jobs: SimpleQueue[MediaJob] = SimpleQueue()
    threading.Thread(target=_listen, args=(sock, jobs), name="listen", daemon=True).start()

    def answer(message: MediaAnswer, *payloads: Payload) -> None:
        send(sock, message, *payloads)

    while True:
        job = jobs.get()
        seconds = job.max_seconds if isinstance(job, AudioJob) else 0
        limits.allow(limits.CPU_SECONDS + limits.CPU_SHARE * seconds)
        try:
            refused = _attempt(do, job, answer)
            if refused is not None:
                answer(refused)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def _attempt(do: Callable[[MediaJob, Answer], None], job: MediaJob, answer: Answer) -> Refused | None:
    """Why the job could not be done. Raises OSError once the worker is gone."""
    param = "file" if isinstance(job, AudioJob) else job.param
    try:
        do(job, answer)
    except InvalidRequest as refusal:
        return Refused.of(refusal)
    except MemoryError:
        return Refused(f"{param!r} can't be decoded: it takes more memory than a file may.", param)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception:  # noqa: BLE001  libraries raise anything about a broken file
        return Refused(f"{param!r} can't be decoded: it is damaged.", param, detail=format_exc())
    return None


def _listen(sock: socket.socket, jobs: "SimpleQueue[MediaJob]") -> None:
    """In a thread of its own, so that the end of the worker is the end of this process in the middle of a job, too."""
    try:
        reader: FrameReader[MediaJob] = FrameReader(msgspec.msgpack.Decoder(MediaJob))
        while data := sock.recv(RECEIVE):
            for job in reader.feed(data):
                jobs.put(job)
    except OSError:
        pass
    except Exception:  # noqa: BLE001  there is nobody to tell but stderr
        print_exc()
        os._exit(1)
    os._exit(0)


def connect() -> socket.socket:
    """The worker's socket, after this process was confined."""
    parser = argparse.ArgumentParser(prog="pipelines.media.helper", description="Decodes media files for a worker.")
    parser.add_argument("--fd", type=int, required=True, help="an inherited socket to the worker")
    descriptor: int = parser.parse_args().fd
    limits.confine()
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # as of the other libraries: each thread takes address space
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


if __name__ == "__main__":
    silence(os.environ)
    serve(connect())
