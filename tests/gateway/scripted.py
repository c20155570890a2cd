"""A backend in this process whose answers the test speaks itself, over the real session and mailbox."""

from collections.abc import Callable, Sequence
from time import monotonic

from gateway.backends.base import BackendError, Call, State
from gateway.backends.session import WorkerSession
from gateway.config.settings import ModelSettings
from gateway.requests.fleet import UnknownModel
from gateway.requests.routing import Route
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.messages.frames import (
    Abort,
    Accepted,
    Done,
    ErrorCode,
    Event,
    Failed,
    Feed,
    Ready,
    Timing,
    ToWorker,
    Usage,
)
from pipelines.messages.text import ChoiceDone, Delta, FinishReason
from tests.servers import until


class ScriptedCall:
    """One open call, from the worker's side."""

    def __init__(self, call: Call, timeline: Timeline) -> None:
        self.call = call
        self.timeline = timeline
        self.aborted = False
        self.fed: list[bytes] = []  # more input, of a live stream
        self.session = WorkerSession(call.id, timeline, self._sent, _writable)

    def say(self, *events: Event) -> None:
        """Events of one step."""
        received = monotonic()
        for event in events:
            self.session.receive(event, received)

    def accept(self, prompt_tokens: int = 3) -> None:
        self.say(Accepted(self.call.id, prompt_tokens, 0.0))

    def text(self, text: str, index: int = 0) -> None:
        self.say(self.delta(text, index))

    def delta(self, text: str, index: int = 0, tokens: int = 1) -> Delta:
        return Delta(self.call.id, index, text, tokens, 0.0)

    def end(self, reason: FinishReason = "stop", choices: int = 1) -> None:
        finished = [ChoiceDone(self.call.id, index, reason) for index in range(choices)]
        self.say(*finished, self.done())

    def done(self) -> Done:
        timing = Timing(prepare=0.001, queue=0.002, compute=0.003, total=0.006)
        return Done(self.call.id, Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1), timing)

    def fail(self, code: ErrorCode, message: str = "it broke", param: str | None = None) -> None:
        self.say(Failed(self.call.id, code, message, param))

    def _sent(self, frame: ToWorker) -> None:
        match frame:
            case Abort():
                self.aborted = True
            case Feed(data=data):
                self.fed.append(data)


async def _writable() -> None:
    return None


class ScriptedBackend:
    """See `gateway.backends.base.Backend`. `answer` is called with each call as it is opened."""

    model = "scripted"
    kind = "text"
    restarts = 0

    def __init__(
        self, slots: int = 4, answer: Callable[[ScriptedCall], None] | None = None, *, images: bool = False
    ) -> None:
        self.images = images
        self.calls: list[ScriptedCall] = []
        self.answer = answer
        self.state = State.READY
        self.reason: str | None = None
        self._slots = slots
        self._on_change: list[Callable[[], None]] = []

    @property
    def ready(self) -> Ready | None:
        if self.state is not State.READY:
            return None
        return Ready(slots=self._slots, streams=self._slots, load_seconds=1.2, images=self.images)

    def become(self, state: State, reason: str | None = None) -> None:
        self.state, self.reason = state, reason
        for on_change in self._on_change:
            on_change()

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._on_change.append(on_change)

    def launch(self) -> None: ...

    async def start(self) -> None: ...

    async def stop(self, grace: float) -> None: ...

    def open(self, call: Call, timeline: Timeline) -> WorkerSession:
        if self.state is not State.READY:
            raise BackendError("worker_lost", "not ready", retryable=True)
        opened = ScriptedCall(call, timeline)
        timeline.opened = monotonic()
        self.calls.append(opened)
        if self.answer is not None:
            self.answer(opened)
        return opened.session

    async def opened(self, number: int = 1) -> ScriptedCall:
        """The call with this number, once it has been opened."""
        await until(lambda: len(self.calls) >= number)
        return self.calls[number - 1]


SETTINGS = ModelSettings(name="scripted", source="scripted:", kind="text", pipeline="none:None")


class ScriptedFleet:
    """Stands in for `gateway.requests.fleet.Fleet`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.routes: list[Route] = []

    def serve(self, model: ModelSettings, backends: Sequence[ScriptedBackend]) -> Route:
        self.routes = [Route(model.name, model.kind or "text", model.aliases, model, backends, self._registry)]
        return self.routes[0]

    def route(self, name: str) -> Route:
        for route in self.routes:
            if name == route.name or name in route.aliases:
                return route
        raise UnknownModel(name, [route.name for route in self.routes])

    async def start(self) -> None: ...

    async def drain(self, grace: float) -> None: ...
