"""The thread that always reads what the gateway sends, and hands it on."""

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Generic

from pipelines.base import Ticket, W
from pipelines.inbox import Inbox, OpenRequest, OpenRequests, Refused
from pipelines.ipc import FrameError, WorkerChannel
from pipelines.messages import Abort, Drain, Feed, Load, Open, Ping, Pong, ToWorker
from pipelines.prepare import PreparePool

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StepClock:
    """When the engine thread took up what it is doing now; None while it waits or the model loads.

    Written by the engine thread, read by the reader.
    """

    started: float | None = None

    def age(self) -> float:
        started = self.started
        return 0.0 if started is None else monotonic() - started


class Reader(Generic[W]):
    """Ends the process when the gateway's end closes, in the middle of a step too: nobody is left to answer to."""

    def __init__(
        self,
        channel: WorkerChannel,
        messages: Iterator[ToWorker],
        requests: OpenRequests,
        pool: PreparePool[W],
        inbox: Inbox[W],
        clock: StepClock,
    ) -> None:
        self._channel = channel
        self._messages = messages
        self._requests = requests
        self._pool = pool
        self._inbox = inbox
        self._clock = clock
        self._draining = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="reader", daemon=True).start()

    def _run(self) -> None:
        status = 1
        try:
            for message in self._messages:
                self._handle(message)
            status = 0
        except (FrameError, OSError) as error:
            log.error("the connection to the gateway broke: %s", error)
        except Exception:
            log.exception("the reader failed")
        finally:
            logging.shutdown()
            os._exit(status)

    def _handle(self, message: ToWorker) -> None:
        match message:
            case Open():
                self._open(message)
            case Feed(id=id, data=data):
                request = self._requests.get(id)
                if request is not None and request.push(data):
                    self._pool.put(request)
            case Abort():
                self._inbox.put(message)
            case Ping(nonce=nonce):
                self._channel.post(Pong(nonce, self._clock.age()))
            case Drain():
                self._draining = True
                self._inbox.put(message)
            case Load():
                raise FrameError("a second Load")

    def _open(self, message: Open) -> None:
        received = monotonic()
        deadline = None if message.deadline is None else received + message.deadline
        request = OpenRequest(Ticket(message.id, message.priority, received, deadline))
        if message.id in self._requests:
            raise FrameError(f"request {message.id} is open already")
        self._requests[message.id] = request
        if self._draining:
            self._inbox.put(Refused(request, "worker_lost", "the worker is shutting down"))
        elif request.push(message.request):
            self._pool.put(request)
