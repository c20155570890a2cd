"""A model in a child process of the gateway: opened calls, supervision, restarts."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import monotonic

from gateway.backends.base import BackendError, Call, State
from gateway.backends.process import WorkerProcess, describe_exit
from gateway.backends.session import WorkerSession
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.logs import LogOptions
from pipelines.messages.base import Options
from pipelines.messages.frames import Drain, FromWorker, LoadFailed, ModelSpec, Open, Ping, Pong, Ready, Stats, Step

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Supervision:
    """When a worker is given up, and how soon it is started again. Seconds."""

    ping: float = 2.5  # between pings
    silence: float = 10.0  # nothing heard for this long, pings unanswered: killed
    load: float = 3600.0  # loading may take this long: it may have to fetch the weights
    backoff: float = 0.5  # before the first restart; doubles each time
    backoff_max: float = 30.0
    healthy: float = 60.0  # a worker that was ready this long starts over with `backoff`
    loads: int = 4  # that may break one after the other before the model is taken for failed
    exit: float = 2.0  # from a closed socket to SIGKILL


class WorkerBackend:
    """See `gateway.backends.base.Backend`. `replica` tells the workers of one model apart."""

    def __init__(
        self,
        spec: ModelSpec[Options],
        *,
        registry: Registry,
        replica: str = "0",
        step_timeout_s: float = 120.0,
        supervision: Supervision | None = None,
        log: LogOptions | None = None,
    ) -> None:
        self.replica = replica
        self._spec = spec
        self._registry = registry
        self._step_timeout = step_timeout_s
        self._times = supervision or Supervision()
        self._log = log or LogOptions()
        self._state = State.STOPPED
        self._reason: str | None = None
        self._ready: Ready | None = None
        self._ready_since = 0.0
        self._on_change: list[Callable[[], None]] = []
        self._sessions: dict[str, WorkerSession] = {}
        self._numbers = count()
        self._process: WorkerProcess | None = None
        self._lives = 0
        self._broken_loads = 0  # since it was ready
        self._load_failed: LoadFailed | None = None
        self._given_up: str | None = None  # why the process was killed
        self._supervisor: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()  # the first process is started
        self._stopping = asyncio.Event()

    # --- what others see ----------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self._spec.name

    @property
    def kind(self) -> str:
        return self._spec.kind

    @property
    def state(self) -> State:
        return self._state

    @property
    def reason(self) -> str | None:
        return self._reason

    @property
    def ready(self) -> Ready | None:
        return self._ready if self._state is State.READY else None

    @property
    def pid(self) -> int | None:
        """The worker's process, while there is one."""
        return self._process.pid if self._process else None

    @property
    def restarts(self) -> int:
        return max(0, self._lives - 1)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._on_change.append(on_change)

    def open(self, call: Call, timeline: Timeline) -> WorkerSession:
        process = self._process
        if self._state is not State.READY or process is None:
            raise BackendError("worker_lost", self._reason or f"the model is {self._state}", retryable=True)
        # Clients choose the ids of calls, and may choose the same one twice.
        id = f"{call.id}/{next(self._numbers)}"
        session = WorkerSession(id, timeline, process.send, process.writable)
        self._sessions[id] = session
        timeline.opened = monotonic()
        process.send(Open(id, call.request, call.priority, call.deadline, call.tenant))
        return session

    def launch(self) -> None:
        """Begin to load, where that has not begun yet."""
        if self._supervisor is None:
            self._set_state(State.LOADING)
            self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name=f"worker {self.model}")

    async def start(self) -> None:
        self.launch()
        await self._begun.wait()

    async def stop(self, grace: float) -> None:
        self._stopping.set()
        supervisor, process = self._supervisor, self._process
        if supervisor is not None:
            if process is not None and self._state is State.READY:
                self._set_state(State.DRAINING)
                process.send(Drain())
                await asyncio.wait([supervisor], timeout=grace)
            if self._process is not None:
                self._process.close()
            await asyncio.wait([supervisor])
        if self._state is not State.STOPPED:
            self._set_state(State.STOPPED)

    # --- supervision --------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        backoff = self._times.backoff
        while not self._stopping.is_set():
            lived = await self._live()
            if self._stopping.is_set() or self._hopeless:
                return
            if lived >= self._times.healthy:
                backoff = self._times.backoff
            log.warning("model %s: %s; it is started again in %.1f s", self.model, self._reason, backoff)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff)
            backoff = min(backoff * 2, self._times.backoff_max)
            if not self._stopping.is_set():
                self._registry.worker_restart(self.model, self.kind)

    @property
    def _hopeless(self) -> bool:
        """Whether another try would end the same way: what has been loaded once may be again, when there is memory."""
        permanent = self._load_failed is not None and self._load_failed.permanent
        return self._state is State.FAILED and (permanent or self._ready_since == 0.0)

    async def _live(self) -> float:
        """One process, from start to exit; the seconds for which it was ready. Sets the state that follows."""
        self._load_failed = self._given_up = self._ready = None
        self._lives += 1
        try:
            process = await WorkerProcess.start(self._spec, self._receive, self._log)
        except OSError as error:
            self._broken_loads += 1
            self._lost(f"no process could be started: {error.strerror}")
            return 0.0
        finally:
            self._begun.set()
        self._process = process
        if not self._stopping.is_set():
            await self._watch(process)
        lived = monotonic() - self._ready_since if self._ready else 0.0
        self._process = None
        if self._ready is not None:
            self._lost("the worker was lost")
        else:
            self._broken_loads += 1  # it took no calls along, and why it ended is known in a moment
        process.close()
        status = await process.reap(self._times.exit)
        loading = "" if self._ready else " while it loaded the model"
        self._lost(self._given_up or f"the worker {describe_exit(status)}{loading}")
        return lived

    async def _watch(self, process: WorkerProcess) -> None:
        """Until the worker's end is closed: ping it, and kill it where it is silent or does not get loaded."""
        unanswered = heard = 0
        while not process.closed.done():
            await asyncio.wait([process.closed], timeout=self._times.ping)
            if self._ready is None:
                if monotonic() - process.started > self._times.load:
                    self._give_up(process, f"it was not loaded after {self._times.load:.0f} s")
                continue
            if process.heard != heard:
                heard, unanswered = process.heard, 0
            # Counted in pings, not read off the clock: where this loop itself stood still, the answers are only unread.
            elif unanswered * self._times.ping >= self._times.silence:
                self._give_up(process, f"the worker gave no sign of life for {self._times.silence:g} s")
            unanswered += 1
            process.send(Ping(unanswered))

    def _give_up(self, process: WorkerProcess, reason: str) -> None:
        self._given_up = self._given_up or reason
        process.kill()

    def _lost(self, reason: str) -> None:
        """The process is gone: first the state, so that nobody is sent here, then the calls that it took along."""
        permanent = False
        if self._load_failed is not None:
            reason, permanent = self._load_failed.message, self._load_failed.permanent
        if self._stopping.is_set():
            self._set_state(State.STOPPED)
        elif permanent or self._broken_loads >= self._times.loads:
            if self._state is not State.FAILED:
                log.error("model %s can't be served: %s", self.model, reason)
            self._set_state(State.FAILED, reason)
        else:
            self._set_state(State.RESTARTING, reason)
        self._registry.worker_gone(self.model, self.kind, self._worker_id)
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.lose()

    # --- what the worker says -----------------------------------------------------------------------------------------

    def _receive(self, message: FromWorker) -> None:
        match message:
            case Step(events=events, report=report):
                received = monotonic()
                sessions = self._sessions
                for event in events:
                    session = sessions.get(event.id)
                    if session is not None:
                        session.receive(event, received)
                        if session.ended.done():
                            del sessions[event.id]
                if report is not None:
                    # Behind the readers that were just woken: what they write is waited for.
                    asyncio.get_running_loop().call_soon(
                        self._registry.step,
                        self.model,
                        self.kind,
                        report.kind,
                        report.rows,
                        report.tokens,
                        report.seconds,
                    )
            case Stats(running=running, waiting=waiting, counters=counters, gauges=gauges):
                self._registry.stats(self.model, self.kind, running, waiting, counters, gauges, self._worker_id)
                self._measure_memory()
            case Pong(step_seconds=seconds):
                if seconds > self._step_timeout and self._process is not None:
                    self._give_up(self._process, f"a step took longer than {self._step_timeout:g} s")
            case Ready():
                self._became_ready(message)
            case LoadFailed():
                self._load_failed = message

    def _became_ready(self, ready: Ready) -> None:
        process = self._process
        if process is None or self._stopping.is_set():
            return
        seconds = monotonic() - process.started
        self._ready, self._ready_since = ready, monotonic()
        self._broken_loads = 0
        self._registry.load_seconds(self.model, self.kind, seconds)
        self._measure_memory()
        log.info("model %s is ready after %.1f s (worker %d)", self.model, seconds, process.pid)
        log.debug("model %s: %s", self.model, ", ".join(f"{name} {value}" for name, value in ready.details.items()))
        self._set_state(State.READY)

    def _measure_memory(self) -> None:
        resident = self._process.resident_bytes() if self._process else None
        if resident is not None:
            self._registry.memory(self.model, self.kind, resident, self._worker_id)

    @property
    def _worker_id(self) -> str:
        """Of this life of this worker."""
        return f"{self.replica}.{self._lives}"

    def _set_state(self, state: State, reason: str | None = None) -> None:
        self._state, self._reason = state, reason
        self._registry.worker_state(self.model, self.kind, self.replica, state.value)
        for on_change in self._on_change:
            on_change()
