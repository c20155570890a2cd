"""Frames between the gateway and a worker, both ways, and the typed requests that they carry.

Times in frames are durations in seconds since the worker received the request: nothing assumes one clock or one host.
Every request that was opened ends with exactly one terminal event, `Done` or `Failed`; an `Abort` ends it with
`Failed(code="cancelled")` unless another terminal event was already on its way.
"""

from typing import Literal

from msgspec import Struct

from pipelines.audio.messages import AudioEvent, AudioOptions, StreamRequest, TranscriptionRequest
from pipelines.image.messages import ImageEvent, ImageOptions, ImageRequest
from pipelines.logs import LogOptions
from pipelines.text.fields import SamplingDefaults, SamplingOptions

Priority = Literal["interactive", "batch"]
FinishReason = Literal["stop", "length"]
ProposerKind = Literal["ngram", "draft"]  # of drafts: what followed the last tokens before, or a small model's words
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


class TextOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[models.text]` table of a text model. None: chosen at start from the model and the machine."""

    max_model_len: int | None = None  # tokens a sequence may hold, prompt and output
    max_num_seqs: int = 16  # sequences in one step
    max_num_batched_tokens: int = 512  # tokens in one step: the cap on a prefill beside running decodes
    kv_cache_tokens: int | None = None  # tokens in the KV pool, over all sequences
    gpu_memory_fraction: float | None = None  # of a GPU's memory, for all that the model needs there; None: 0.9
    cuda_graphs: bool | None = None  # decode steps as captured graphs; None: where they work
    prefix_cache: bool = True
    speculation: ProposerKind | None = None  # drafts of requests that don't say
    draft: str | None = None  # source of a small model with the same vocabulary, whose drafts can be asked for then
    max_draft: int = 8  # tokens of one draft
    dense_prefill: bool | None = None  # keep a dense copy of quantised weights (None: without native kernels)
    prepare_threads: int = 2
    sampling: SamplingOptions = SamplingOptions()


class EmbeddingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[models.embedding]` table of an embedding model."""

    max_batch_tokens: int | None = None  # in one step, padding included; None: 1024, on a GPU 16384
    max_wait_ms: float = 0.0  # what a step that is not full may wait for more inputs
    dynamic_int8: bool = False  # with quantization = "int8": activations too, by one scale for the whole batch


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


class TextPart(Struct, frozen=True, tag="text"):
    text: str


class MediaPart(Struct, frozen=True, tag="media"):
    """A file in the spool; the gateway alone unlinks it."""

    media: Literal["image", "audio"]
    path: str
    mime: str


class FunctionCall(Struct, frozen=True):
    name: str
    arguments: str  # JSON text, as the model wrote it


class ToolCall(Struct, frozen=True):
    id: str
    function: FunctionCall
    type: str = "function"


class Message(Struct, frozen=True, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: list[TextPart | MediaPart] = []  # empty where the client sent null or ""
    name: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None


class ChatPrompt(Struct, frozen=True, tag="chat"):
    messages: list[Message]


class StringPrompt(Struct, frozen=True, tag="string"):
    text: str


class TokenPrompt(Struct, frozen=True, tag="tokens"):
    ids: list[int]


Prompt = ChatPrompt | StringPrompt | TokenPrompt


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters; None takes the model's default: `Ready.sampling`."""

    temperature: float | None = None  # 0: greedy
    top_p: float | None = None
    top_k: int | None = None  # 0 or -1: off
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int | None = None  # None: the rest of the context
    min_tokens: int = 0  # generated tokens before EOS or a stop id may be chosen
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = None  # None: off; k: the chosen token's and the k most likely ones'


class TextRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="text"):
    """`n` choices for each prompt; choice `i` belongs to prompt `i // n`."""

    prompts: list[Prompt]
    sampling: Sampling = Sampling()
    n: int = 1
    echo: bool = False  # completions only: the prompt's own text (and log-probabilities) come first
    proposer: ProposerKind | None = None  # of drafts; None: as the model is configured, else ngram
    max_draft: int | None = None  # tokens of one draft; None: as the model is configured, 0: no drafts
    salt: str = ""  # the tenant's: prefix blocks are shared only between equal salts. Set by the server


class ImageBytes(Struct, frozen=True, tag="image"):
    """An encoded picture (PNG, JPEG, …), as the caller sent it."""

    data: bytes


EmbeddingInput = StringPrompt | TokenPrompt | ImageBytes
Truncate = Literal["none", "start", "end"]  # which side of an over-long text is cut off; none: it is refused


class EmbeddingRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="embedding"):
    """A vector for each input. Answered by `Vectors`, in any order of the inputs."""

    inputs: list[EmbeddingInput]
    truncate: Truncate = "none"
    dimensions: int | None = None  # the first so many components, brought to unit length again
    kind: str | None = None  # query, document, …: which of the model's prompts comes before each text
    kind_param: str = "input_type"  # what the caller calls that
    max_tokens: int | None = None  # of an input, special ones included; None: what the model takes


class RerankRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="rerank"):
    """How well each document answers the query. Answered by one `Scores`."""

    query: str
    documents: list[str]
    truncate: Truncate = "end"  # of documents; the query is never cut
    max_tokens_per_document: int | None = None
    param: str = "documents"  # what the caller calls them


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


class TopLogprob(Struct, frozen=True, array_like=True):
    id: int
    text: str  # the token's text; U+FFFD where its bytes are no UTF-8 of their own
    logprob: float
    raw: bytes  # the token as it is


class TokenLogprob(Struct, frozen=True, array_like=True):
    """The model's own log-softmax, before penalties, bias and temperature."""

    id: int
    text: str
    logprob: float | None  # None for the first token of a prompt (echo)
    raw: bytes  # the token as it is
    top: list[TopLogprob] = []


class Accepted(Struct, frozen=True, tag="accepted"):
    """Prepared and valid; it will be run."""

    id: str
    prompt_tokens: int
    at: float


class Delta(Struct, frozen=True, tag="delta"):
    """New text of one choice. `text` may be empty: the token is counted, its text is still held back."""

    id: str
    index: int
    text: str
    tokens: int  # generated tokens that this delta counts for
    at: float  # when the step that made them ended
    logprobs: list[TokenLogprob] = []


class ChoiceDone(Struct, frozen=True, tag="choice_done"):
    id: str
    index: int
    reason: FinishReason
    stop: str | int | None = None  # the stop string or stop id that ended it


class Vectors(Struct, frozen=True, tag="vectors"):
    """The vectors of some inputs of a request, as one step made them: `len(indices)` rows of little-endian float32."""

    id: str
    indices: list[int]
    data: bytes


class Scores(Struct, frozen=True, tag="scores"):
    """Of all documents, in their order. Cross-encoders score in 0…1, cosines are in -1…1."""

    id: str
    method: Literal["cross_encoder", "cosine"]
    scores: list[float]


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
