"""Frames between the gateway and a worker, both ways. What they carry of requests and events is of the worker's kind.

Times in frames are durations in seconds since the worker received the request: nothing assumes one clock or one host.
Every request that was opened ends with exactly one terminal event, `Done` or `Failed`; an `Abort` ends it with
`Failed(code="cancelled")` unless another terminal event was already on its way.
"""

from typing import ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

from metrics.metric import CounterSeries, GaugeSeries
from metrics.timeline import Timeline
from pipelines.logs import LogOptions
from pipelines.messages import base
from pipelines.messages.base import Options, Request, Said
from pipelines.messages.sampling import SamplingDefaults
from pipelines.messages.text import ProposerKind

O = TypeVar("O", bound=Options, covariant=True)  # noqa: E741 (options)
R = TypeVar("R", bound=Request, covariant=True)
S = TypeVar("S", bound=Said, covariant=True)

Priority = Literal["interactive", "batch"]
ErrorCode = Literal[
    "invalid_request",  # the caller's fault: `param` names the field
    "context_length_exceeded",  # the prompt can never fit
    "cancelled",  # the answer to an Abort
    "deadline_exceeded",
    "worker_lost",  # the process that ran it is gone; set by the gateway
    "invalid_output",  # the model's result is no number: another try gives the same
    "model_unavailable",  # a part of the model that the request needs can't be loaded
    "internal_error",
]

# --- what a model is asked to run -------------------------------------------------------------------------------------


class ModelSpec(Struct, Generic[O], frozen=True, kw_only=True):
    """All that a worker needs to load its model."""

    name: str
    kind: str  # the name on its card
    pipeline: str  # "module:Class", imported in the worker only
    source: str  # "embedded:NAME" | a local path | "hf:repo@revision"
    options: O
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    threads: int | None = None
    quantization: str | None = None  # None: as the files have it
    dtype: str | None = None


# --- gateway to worker ------------------------------------------------------------------------------------------------


class Load(Struct, Generic[O], frozen=True, tag="load"):
    """The first frame: what to load, and how to log."""

    card: str  # "module:NAME" of the kind's declaration: what the frames after this one are made of
    spec: ModelSpec[O]
    log: LogOptions = LogOptions()


class Open(Struct, Generic[R], frozen=True, tag="open"):
    id: str
    request: R
    priority: Priority = "interactive"
    deadline: float | None = None  # seconds left
    tenant: str = ""  # whose it is: what the engine has is shared fairly between tenants


class Malformed(Struct, frozen=True, tag="open"):
    """What is read of an Open whose request breaks a limit of its type: it alone is refused."""

    id: str
    message: str = ""
    param: str | None = None


class Feed(Struct, frozen=True, tag="feed"):
    """A chunk for an open stream. Items of one request are handled in order."""

    id: str
    data: bytes


class Abort(Struct, frozen=True, tag="abort"):
    id: str


class Ping(Struct, frozen=True, tag="ping"):
    nonce: int


class Drain(Struct, frozen=True, tag="drain"):
    """Finish what is open, then exit with status 0. Nothing is opened after it."""


ToWorker = Open[Request] | Feed | Abort | Ping | Drain  # after the Load; requests are of the worker's kind

# --- worker to gateway ------------------------------------------------------------------------------------------------


class Accepted(base.Event, frozen=True, tag="accepted"):
    """Prepared and valid; it will be run."""

    prompt_tokens: int
    at: float

    def stamp(self, timeline: Timeline, received: float) -> None:
        timeline.accepted = received
        timeline.prompt_tokens = self.prompt_tokens


class Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    drafted_tokens: int = 0  # verified
    accepted_tokens: int = 0  # those of them that were right
    proposer: ProposerKind | None = None  # whose drafts they were


class Timing(Struct, frozen=True):
    """Seconds inside the worker. `queue`: prepared, or all images encoded -> first step that has it."""

    prepare: float = 0.0
    queue: float = 0.0
    compute: float = 0.0  # first step that has it -> end
    total: float = 0.0  # received -> end
    prefill: float = 0.0  # first step that has it -> first token
    decode: float = 0.0  # first token -> last token
    encode: float = 0.0  # prepared -> all of its images are encoded; 0 without images


class Done(base.Event, frozen=True, tag="done"):
    ends: ClassVar[bool] = True

    usage: Usage
    timing: Timing

    def stamp(self, timeline: Timeline, received: float) -> None:
        usage, timing = self.usage, self.timing
        timeline.prompt_tokens = usage.prompt_tokens
        timeline.completion_tokens = usage.completion_tokens
        timeline.cached_tokens = usage.cached_tokens
        timeline.worker_prepare = timing.prepare
        timeline.worker_encode = timing.encode
        timeline.worker_queue = timing.queue
        timeline.worker_prefill = timing.prefill
        timeline.worker_decode = timing.decode
        timeline.worker_total = timing.total


class Failed(base.Event, frozen=True, tag="failed"):
    ends: ClassVar[bool] = True

    code: ErrorCode
    message: str
    param: str | None = None


Event = Accepted | Said | Done | Failed


class StepReport(Struct, frozen=True):
    """One step of a pipeline, for its step-time histogram."""

    kind: str  # decode | prefill | mixed | encode | denoise | …
    rows: int
    tokens: int
    seconds: float


class Stats(Struct, frozen=True, tag="stats"):
    """Once a second. `counters` are cumulative over this worker's life; both are named by the kind's metrics."""

    running: int
    waiting: int
    counters: dict[CounterSeries, float] = {}
    gauges: dict[GaugeSeries, float] = {}


class Step(Struct, Generic[S], frozen=True, tag="step"):
    """All that one step (or one prepared request) has to say, in one write."""

    events: list[Accepted | S | Done | Failed]
    report: StepReport | None = None


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded and warm."""

    slots: int  # schedulable units that the gateway may have open: what a step batches + a small prefetch
    streams: int = 0  # live streams that may be open beside them
    context_length: int | None = None
    load_seconds: float = 0.0
    details: dict[str, str] = {}  # for people: device, dtype, attention path, …
    sampling: SamplingDefaults | None = None  # of a text model
    images: bool = False  # whether a model for texts takes them, too


class LoadFailed(Struct, frozen=True, tag="load_failed"):
    """The model can't be served; `permanent`: a restart would end the same way."""

    message: str
    permanent: bool = False


class Pong(Struct, frozen=True, tag="pong"):
    nonce: int
    step_seconds: float  # age of the step that is running; 0 when none is


FromWorker = Ready | LoadFailed | Step[Said] | Stats | Pong  # what is said is of the worker's kind
