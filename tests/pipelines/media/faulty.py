"""A media helper whose jobs do what a library can do to it: `python -m tests.pipelines.media.faulty --fd N`."""

import ctypes
import os
import signal
import time
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from pipelines.media import limits
from pipelines.media.helper import Answer, connect, do, serve
from pipelines.media.messages import AudioJob, MediaJob, Piece


def misbehave(job: MediaJob, answer: Answer) -> None:
    """As the name of the file says; what is no such name is decoded."""
    assert isinstance(job, AudioJob)
    match job.path:
        case "crash":
            answer(Piece(3), np.zeros(3, np.int16))
            ctypes.string_at(0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case path if path.startswith("killed once "):  # and a path that is not there yet
            mark, _, rest = path.removeprefix("killed once ").partition(" then ")
            if not Path(mark).exists():
                Path(mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            do(replace(job, path=rest), answer)
        case "exit":
            os._exit(7)
        case "memory":
            np.ones(8 << 30, np.uint8)
        case "loop":
            limits.allow(0)
            while True:
                pass
        case "sleep":
            time.sleep(3600)
        case "error":
            raise ZeroDivisionError("secret words of a library")
        case _:
            *pipe, path = job.path.split(" then ")
            for each in pipe:
                Path(each).read_bytes()  # until its writer closes it
            do(replace(job, path=path), answer)


if __name__ == "__main__":
    serve(connect(), misbehave)
