"""Frames between the gateway and a worker, both ways, and the typed requests that they carry.

Times in frames are durations in seconds since the worker received the request: nothing assumes one clock or one host.
Every request that was opened ends with exactly one terminal event, `Done` or `Failed`; an `Abort` ends it with
`Failed(code="cancelled")` unless another terminal event was already on its way.
"""

from typing import Literal

from msgspec import Struct

from pipelines.logs import LogOptions
from pipelines.messages.audio import AudioEvent, AudioOptions, StreamRequest, TranscriptionRequest
from pipelines.messages.embedding import EmbeddingOptions, EmbeddingRequest, RerankRequest, Scores, Vectors
from pipelines.messages.image import ImageEvent, ImageOptions, ImageRequest
from pipelines.messages.sampling import SamplingDefaults
from pipelines.messages.text import ChoiceDone, Delta, ProposerKind, TextOptions, TextRequest

Priority = Literal["interactive", "batch"]
ErrorCode = Literal[
    "invalid_request",  # the caller's fault: `param` names the field
    "context_length_exceeded",  # the prompt can never fit
    "cancelled",  # the answer to an Abort
    "deadline_exceeded",
    "worker_lost",  # the process that ran it is gone; set by the gateway
    "invalid_output",  # the model's result is no number: another try gives the same
    "internal_error",
]

# --- what a model is asked to run -------------------------------------------------------------------------------------


class ModelSpec(Struct, frozen=True, kw_only=True):
    """All that a worker needs to load its model."""

    name: str
    kind: str  # text | embedding | audio | image
    pipeline: str  # "module:Class", imported in the worker only
    source: str  # "embedded:NAME" | a local path | "hf:repo@revision"
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    threads: int | None = None
    quantization: str | None = None  # None: as the files have it
    dtype: str | None = None
    text: TextOptions = TextOptions()
    embedding: EmbeddingOptions = EmbeddingOptions()
    audio: AudioOptions = AudioOptions()
    image: ImageOptions = ImageOptions()

    @property
    def prepare_threads(self) -> int:
        if self.kind == "audio":
            return self.audio.prepare_threads
        return self.image.prepare_threads if self.kind == "image" else self.text.prepare_threads


# --- requests ---------------------------------------------------------------------------------------------------------


Request = TextRequest | EmbeddingRequest | RerankRequest | TranscriptionRequest | StreamRequest | ImageRequest


# --- gateway to worker ------------------------------------------------------------------------------------------------


class Load(Struct, frozen=True, tag="load"):
    """The first frame: what to load, and how to log."""

    spec: ModelSpec
    log: LogOptions = LogOptions()


class Open(Struct, frozen=True, tag="open"):
    id: str
    request: Request
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


ToWorker = Load | Open | Feed | Abort | Ping | Drain

# --- worker to gateway ------------------------------------------------------------------------------------------------


class Accepted(Struct, frozen=True, tag="accepted"):
    """Prepared and valid; it will be run."""

    id: str
    prompt_tokens: int
    at: float


class Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    drafted_tokens: int = 0  # verified
    accepted_tokens: int = 0  # those of them that were right
    proposer: ProposerKind | None = None  # whose drafts they were


class Timing(Struct, frozen=True):
    """Seconds inside the worker. `queue`: prepared -> first step that has it."""

    prepare: float = 0.0
    queue: float = 0.0
    compute: float = 0.0  # first step that has it -> end
    total: float = 0.0  # received -> end
    prefill: float = 0.0  # first step that has it -> first token
    decode: float = 0.0  # first token -> last token


class Done(Struct, frozen=True, tag="done"):
    id: str
    usage: Usage
    timing: Timing


class Failed(Struct, frozen=True, tag="failed"):
    id: str
    code: ErrorCode
    message: str
    param: str | None = None


Said = Delta | ChoiceDone | Vectors | Scores | AudioEvent | ImageEvent  # between Accepted and the end
Event = Accepted | Said | Done | Failed


class StepReport(Struct, frozen=True):
    """One step of a pipeline, for its step-time histogram."""

    kind: str  # decode | prefill | mixed | encode | denoise | …
    rows: int
    tokens: int
    seconds: float


class Stats(Struct, frozen=True, tag="stats"):
    """Once a second. `counters` are cumulative over this worker's life; names as in metrics/definitions.py."""

    running: int
    waiting: int
    counters: dict[str, float] = {}
    gauges: dict[str, float] = {}


class Step(Struct, frozen=True, tag="step"):
    """All that one step (or one prepared request) has to say, in one write."""

    events: list[Event]
    report: StepReport | None = None


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded and warm."""

    slots: int  # schedulable units that the gateway may have open: what a step batches + a small prefetch
    streams: int = 0  # live streams that may be open beside them
    context_length: int | None = None
    load_seconds: float = 0.0
    details: dict[str, str] = {}  # for people: device, dtype, attention path, …
    sampling: SamplingDefaults | None = None  # of a text model


class LoadFailed(Struct, frozen=True, tag="load_failed"):
    """The model can't be served; `permanent`: a restart would end the same way."""

    message: str
    permanent: bool = False


class Pong(Struct, frozen=True, tag="pong"):
    nonce: int
    step_seconds: float  # age of the step that is running; 0 when none is


FromWorker = Ready | LoadFailed | Step | Stats | Pong
