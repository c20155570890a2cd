"""The main of a worker process, started by the gateway as `python -m pipelines.runtime.worker --fd N`.

Three kinds of threads: the main one, which loads the model, then is the engine and listens to the gateway between its
steps; a small pool that prepares requests; and the reader's, which listens while a step lasts. The process lives as
long as its socket: signals that a terminal or a service manager sends to the whole group are the gateway's to act on.
"""

import argparse
import gc
import logging
import os
import signal
import socket
import sys
from time import monotonic
from typing import NoReturn

from msgspec.structs import replace

from models.privacy import silence
from pipelines import logs
from pipelines.base import ModelError, Pipeline, Work
from pipelines.kinds import referenced
from pipelines.messages.base import Options, Request
from pipelines.messages.frames import LoadFailed, ModelSpec, Ready
from pipelines.runtime.engine import Engine
from pipelines.runtime.inbox import Inbox, OpenRequests
from pipelines.runtime.ipc import WorkerChannel, receive_load
from pipelines.runtime.prepare_pool import PreparePool
from pipelines.runtime.reader import Reader, StepClock

log = logging.getLogger(__name__)

# Seconds a thread may keep the interpreter lock while another waits. Beside a pool thread that is busy in Python, the
# engine thread waits for it some hundred times a step; with Python's default such a step takes several times as long.
SWITCH_INTERVAL = 0.0001

MOST_SHOWN = 300  # characters of an error that is told outside of the log

EXIT_DRAINED = 0
EXIT_CRASHED = 1
EXIT_LOAD_FAILED = 3
EXIT_ORPHANED = 4  # the gateway is gone


def import_pipeline(path: str) -> type[Pipeline[Request, Work]]:
    """The class at "module:Class". Raises ModelError where there is none."""
    try:
        pipeline: type[Pipeline[Request, Work]] = referenced(path)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == path.partition(".")[0]:
            raise ModelError(f"there is no pipeline {path!r}: {error}") from error
        raise  # a library that it imports
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(f"there is no pipeline {path!r}: {error}") from error
    return pipeline


def load(spec: ModelSpec[Options]) -> tuple[Pipeline[Request, Work], Ready]:
    """Import and load, timed. Raises ModelError, and whatever else loading raises."""
    started = monotonic()
    try:
        pipeline, ready = import_pipeline(spec.pipeline).load(spec)
    except ModuleNotFoundError as error:
        raise ModelError(f"the library {error.name} is not installed; 'gateway doctor' says what to install") from error
    # What loading made stays for ever: the collector need not look at it again in the middle of a step.
    gc.collect()
    gc.freeze()
    return pipeline, replace(ready, load_seconds=monotonic() - started)


def serve(sock: socket.socket) -> int:
    """The worker's whole life; its exit status."""
    try:
        kind, first = receive_load(sock)
    except EOFError:
        return EXIT_CRASHED
    spec = first.spec
    logs.configure(first.log, spec.name)
    channel = WorkerChannel(sock, kind)

    requests: OpenRequests = {}
    clock = StepClock()
    inbox: Inbox[Work] = Inbox()
    pool = PreparePool(inbox)
    reader = Reader(channel, requests, pool, inbox, clock)
    reader.start()
    try:
        pipeline, ready = load(spec)
    except ModelError as error:
        log.error("%s", error)
        channel.send(LoadFailed(str(error), permanent=True))
        return EXIT_LOAD_FAILED
    except BaseException as error:  # a library that exits, or panics, has not loaded the model either
        log.exception("the model could not be loaded")
        channel.send(LoadFailed(f"{describe(error)} while it loaded the model"))
        return EXIT_LOAD_FAILED

    pool.start(pipeline, spec.options.prepare_threads)
    channel.send(ready)
    Engine(pipeline, reader, inbox, requests, channel, clock).run()
    return EXIT_DRAINED


def describe(error: BaseException) -> str:
    """An error for people, in one line."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="pipelines.runtime.worker", description="One model, in a process of its own.")
    parser.add_argument("--fd", type=int, required=True, help="an inherited socket to the gateway")
    descriptor: int = parser.parse_args().fd
    silence(os.environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL)
    os.set_inheritable(descriptor, False)
    try:
        status = serve(socket.socket(fileno=descriptor))
    except (BrokenPipeError, ConnectionResetError):
        status = EXIT_ORPHANED
    except Exception:
        log.exception("the worker failed")
        status = EXIT_CRASHED
    # Threads that block in C and a model's destructors have no say in when the process ends.
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
