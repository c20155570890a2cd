"""Receives what the gateway sends, and hands it on."""

import logging
import os
import select
import threading
from math import ceil
from time import monotonic, sleep
from typing import Generic, NoReturn

from pipelines.base import Ticket, W
from pipelines.messages.base import Request
from pipelines.messages.frames import Abort, Drain, Feed, Malformed, Open, Ping, Pong, ToWorker
from pipelines.runtime.inbox import Inbox, OpenRequest, OpenRequests, Refused
from pipelines.runtime.ipc import FrameError, WorkerChannel
from pipelines.runtime.prepare_pool import PreparePool

log = logging.getLogger(__name__)

LONG = 0.02  # seconds of work after which another thread listens in the engine's place


class StepClock:
    """When the engine thread took up what it is doing now; None while it waits or the model loads.

    The engine thread alone starts and stops it.
    """

    def __init__(self) -> None:
        self._started: float | None = None
        self._runs = threading.Event()  # set by the engine, cleared by who waits for it

    def start(self) -> None:
        self._started = monotonic()
        if not self._runs.is_set():
            self._runs.set()

    def stop(self) -> None:
        self._started = None

    def age(self) -> float:
        started = self._started
        return 0.0 if started is None else monotonic() - started

    def wait(self) -> None:
        """Until the engine works."""
        if self._started is None:
            self._runs.clear()
            if self._started is None:  # looked at again: it may have begun just before
                self._runs.wait()


class Reader(Generic[W]):
    """The engine thread itself listens, between its steps and while it has none: a request that finds it idle passes
    through no other thread. While work takes it longer than LONG, and while it loads the model, a thread of the
    reader's own listens instead. So pings are always answered, and back-pressure reaches nobody.

    Ends the process when the gateway's end closes, in the middle of a step too: nobody is left to answer to.
    """

    def __init__(
        self,
        channel: WorkerChannel,
        requests: OpenRequests,
        pool: PreparePool[W],
        inbox: Inbox[W],
        clock: StepClock,
    ) -> None:
        self._channel = channel
        self._requests = requests
        self._pool = pool
        self._inbox = inbox
        self._clock = clock
        self._draining = False
        self._loaded = False
        self._listening = threading.Lock()  # held by the thread that listens
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(inbox, select.POLLIN)

    def start(self) -> None:
        threading.Thread(target=self._listen_meanwhile, name="reader", daemon=True).start()

    def listen(self, timeout: float | None) -> None:
        """For the engine thread: handle what has come. Where nothing has, and the inbox is empty, wait for one or the
        other: up to `timeout` seconds, 0: not at all, None: for ever."""
        self._loaded = True
        if not self._listening.acquire(blocking=False):
            if timeout == 0:
                return  # the other thread is at it
            self._inbox.wake()  # it lets go
            self._listening.acquire()
        try:
            self._listen(timeout if self._inbox.wait() else 0)
        finally:
            self._inbox.waited()
            self._listening.release()

    def _listen_meanwhile(self) -> None:
        while True:
            if self._wanted:
                with self._listening:
                    while self._wanted:
                        self._listen(None)
            self._clock.wait()
            sleep(LONG)

    @property
    def _wanted(self) -> bool:
        """Whether the engine thread has been at something else for too long."""
        return not self._loaded or self._clock.age() >= LONG

    def _listen(self, timeout: float | None) -> None:
        try:
            ready = self._poll.poll(None if timeout is None else ceil(timeout * 1e3))
            for descriptor, _ in ready:
                if descriptor == self._inbox.fileno():
                    self._inbox.clear_wakeup()
                else:
                    for message in self._channel.receive():
                        self.handle(message)
        except EOFError:
            _leave(0)
        except (FrameError, OSError) as error:
            log.error("the connection to the gateway broke: %s", error)
            _leave(1)
        except Exception:
            log.exception("the reader failed")
            _leave(1)

    def handle(self, message: ToWorker | Malformed) -> None:
        match message:
            case Open():
                self._open(message)
            case Malformed(id=id, message=what, param=param):
                refused = self._opened(Ticket(id, "interactive", monotonic()))
                self._inbox.put(Refused(refused, "invalid_request", what, param))
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

    def _open(self, message: Open[Request]) -> None:
        received = monotonic()
        deadline = None if message.deadline is None else received + message.deadline
        request = self._opened(Ticket(message.id, message.priority, received, deadline, message.tenant))
        if self._draining:
            self._inbox.put(Refused(request, "worker_lost", "the worker is shutting down"))
        elif request.push(message.request):
            self._pool.put(request)

    def _opened(self, ticket: Ticket) -> OpenRequest:
        if ticket.id in self._requests:
            raise FrameError(f"request {ticket.id} is open already")
        request = self._requests[ticket.id] = OpenRequest(ticket)
        return request


def _leave(status: int) -> NoReturn:
    logging.shutdown()
    os._exit(status)
