"""One choice of one request, from its prompt to its last token."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto

from pipelines.base import Ticket
from pipelines.messages.text import ProposerKind, TokenLogprob
from pipelines.text.cache.prefix import PrefixKey
from pipelines.text.drafting import Drafting
from pipelines.text.output.choice_text import Output
from pipelines.text.sample.rules import Rules
from pipelines.text.sample.sampling import SamplingParams
from pipelines.text.vision.prompt_images import PromptImages


class State(Enum):
    WAITING = auto()  # holds no blocks
    RUNNING = auto()
    FINISHED = auto()


class Rank(IntEnum):
    """A lower one is served first, and put back last."""

    SMALL = 0  # the first choice of an interactive request with a prompt that fits one step
    LONG = 1  # with a longer prompt
    FURTHER = 2  # further choices of an interactive request, and all of its further prompts
    BATCH = 3


@dataclass(slots=True)
class Group:
    """What the sequences of one request share. Times are of `time.monotonic()`."""

    ticket: Ticket
    echo: bool = False
    proposer: ProposerKind = "ngram"  # of the drafts, where there are any
    prepared: float = 0.0
    encoded: float | None = None  # when the images that it shows were all encoded
    first_step: float | None = None  # the first that had one of its sequences
    first_token: float | None = None
    last_token: float | None = None
    unfinished: int = 0
    prompt_tokens: int = 0  # of each prompt once, however many choices it has
    cached_tokens: int = 0  # those of them that the prefix cache had
    drafted: int = 0  # tokens proposed and verified
    accepted: int = 0  # those of them that the output has
    completion_tokens: int = 0  # generated; the EOS or stop token that ended a choice is one of them


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, the blocks that hold their keys and values, and how far the model has come.

    The first `prompt_length` of `tokens` are the prompt, the others were generated. Keys and values of the positions
    before `computed` are in the cache; those of the prompt were written by prefill, those of the output by decode, at
    first and after every preemption.
    """

    group: Group
    index: int  # of the choice in its request
    tokens: list[int]
    params: SamplingParams
    output: Output
    prompt_text: str = ""  # echoed before the output
    keys: list[PrefixKey] = field(
        default_factory=list
    )  # of the prompt's full blocks; empty: no part in the prefix cache
    leader: "Sequence | None" = (
        None  # the first choice of the same prompt: it computes the blocks that the others reuse
    )
    rules: Rules = field(default_factory=Rules)  # of its logits; they have accepted what was generated
    images: PromptImages | None = None  # that the prompt shows
    drafting: Drafting | None = None  # where drafts are wanted
    prompt_logprobs: list[TokenLogprob] | None = None  # wanted; of the prompt's first positions, as far as computed

    prompt_length: int = field(init=False)
    table: list[int] = field(default_factory=list)
    computed: int = 0
    state: State = State.WAITING
    rank: Rank = Rank.SMALL  # it rises where a sequence has been put back too often
    reserved: bool = True  # whether it may take the places that are kept for small ones
    brief: bool = False  # next to nothing of its prompt is left to compute, and someone waits for it
    order: int = 0  # of arrival, among all sequences
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def ticket(self) -> Ticket:
        return self.group.ticket

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens that this choice adds to its request's: a prompt counts once."""
        return self.prompt_length if self.leads else 0

    @property
    def leads(self) -> bool:
        """Whether it is the first choice of its prompt."""
        return self.leader is None

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prompt_length

    @property
    def wants_prompt_logits(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be computed."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length

    def append(self, token: int) -> None:
        """One more generated token."""
        self.tokens.append(token)
        self.rules.accept(token)
