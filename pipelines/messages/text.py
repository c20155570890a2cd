"""What a text model is asked, and what it says."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from metrics.timeline import Timeline
from pipelines.messages.base import Count, Options, Said
from pipelines.messages.names import Named
from pipelines.messages.sampling import Sampling, SamplingOptions, TokenId

FinishReason = Literal["stop", "length"]
# Prompts of a request, and choices of all of them together: each is a sequence with its own tokens.
MAX_SEQUENCES = 2048
Choices = Annotated[int, Meta(ge=1, le=128)]  # of each prompt
MAX_DRAFT = 32  # tokens of one draft
DraftLength = Annotated[int, Meta(ge=1, le=MAX_DRAFT)]
MAX_PROMPT_IDS = 2**20
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_PROMPT_IDS)]
Share = Annotated[float, Meta(gt=0, le=1)]
Detail = Literal["auto", "low", "high"]  # how closely an image is looked at
ProposerKind = Literal["ngram", "draft"]  # of drafts: what followed the last tokens before, or a small model's words


class TextOptions(Options, frozen=True, kw_only=True):
    """The `[models.text]` table of a text model. None: chosen at start from the model and the machine."""

    max_model_len: Count | None = None  # tokens a sequence may hold, prompt and output
    max_num_seqs: Count = 16  # sequences in one step
    max_num_batched_tokens: Count = 512  # tokens in one step: the cap on a prefill beside running decodes
    kv_cache_tokens: Count | None = None  # tokens in the KV pool, over all sequences
    gpu_memory_fraction: Share | None = None  # of a GPU's memory, for all that the model needs there; None: 0.9
    cuda_graphs: bool | None = None  # decode steps as captured graphs; None: where they work
    prefix_cache: bool = True
    speculation: ProposerKind | None = None  # drafts of requests that don't say
    draft: str | None = None  # source of a small model with the same vocabulary, whose drafts can be asked for then
    max_draft: DraftLength = 8
    dense_prefill: bool | None = None  # keep a dense copy of quantised weights (None: without native kernels)
    vision: str | None = None  # source of the half that sees, where the model's own files have none
    preload_vision: bool = False  # load that half at start, not at the first image
    max_images: Count = 16  # of one request
    max_image_pixels: Count | None = None  # of one image, by its header; None: what is decoded at all
    encoder_cache_bytes: Count = 256 << 20  # of encoded images that are kept for the next request with the same ones
    max_encoder_pixels: Count | None = None  # that one step encodes, or one image; None: by the measured time of steps
    sampling: SamplingOptions = SamplingOptions()

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(source for source in (self.draft, self.vision) if source)

    def conflict(self) -> tuple[str, str] | None:
        if self.speculation == "draft" and not self.draft:
            return "draft", 'speculation = "draft" needs the source of a draft model'
        if self.gpu_memory_fraction is not None and self.kv_cache_tokens is not None:
            return "gpu_memory_fraction", "kv_cache_tokens says already how large the cache is: set one of the two"
        return None


class TextPart(Struct, frozen=True, tag="text"):
    text: str


class ImagePart(Struct, frozen=True, tag="image"):
    data: bytes  # the encoded picture, as the caller sent it
    detail: Detail = "auto"
    field: str = ""  # what the caller calls it: messages[0].content[1].image_url.url


Part = TextPart | ImagePart


class FunctionCall(Struct, frozen=True):
    name: str
    arguments: str  # JSON text, as the model wrote it


class ToolCall(Struct, frozen=True):
    id: str
    function: FunctionCall
    type: str = "function"


class Message(Struct, frozen=True, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: list[Part] = []  # empty where the client sent null or ""
    name: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None


class ChatPrompt(Struct, frozen=True, tag="chat"):
    messages: Annotated[list[Message], Meta(min_length=1)]


class StringPrompt(Struct, frozen=True, tag="string"):
    text: str


class TokenPrompt(Struct, frozen=True, tag="tokens"):
    ids: TokenIds


Prompt = ChatPrompt | StringPrompt | TokenPrompt


class TextRequest(Named, frozen=True, kw_only=True, omit_defaults=True, tag="text"):
    """`n` choices for each prompt; choice `i` belongs to prompt `i // n`."""

    prompts: Annotated[list[Prompt], Meta(min_length=1, max_length=MAX_SEQUENCES)]
    sampling: Sampling = Sampling()
    n: Choices = 1
    echo: bool = False  # completions only: the prompt's own text (and log-probabilities) come first
    proposer: ProposerKind | None = None  # of drafts; None: as the model is configured, else ngram
    max_draft: Annotated[int, Meta(ge=0, le=MAX_DRAFT)] | None = None  # None: as the model is configured, 0: no drafts
    salt: str = ""  # the tenant's: prefix blocks are shared only between equal salts. Set by the server


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


class Delta(Said, frozen=True, tag="delta"):
    """New text of one choice. `text` may be empty: the token is counted, its text is still held back."""

    index: int
    text: str
    tokens: int  # generated tokens that this delta counts for
    at: float  # when the step that made them ended
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def stamp(self, timeline: Timeline, received: float) -> None:
        if self.tokens:
            timeline.tokens.append((received, self.index, self.tokens))


class ChoiceDone(Said, frozen=True, tag="choice_done"):
    index: int
    reason: FinishReason
    stop: str | int | None = None  # the stop string or stop id that ended it

    def stamp(self, timeline: Timeline, received: float) -> None:
        if timeline.closed is None:  # else it is told already how the request ended
            timeline.outcome = self.reason
