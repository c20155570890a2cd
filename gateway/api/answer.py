"""What the answers of the text endpoints have in common."""

import time
from random import getrandbits

from msgspec import UNSET, Struct, UnsetType

from metrics.timeline import Phases
from pipelines.messages import frames, text


class Head(Struct, frozen=True):
    """What every chunk of an answer repeats."""

    id: str
    created: int  # seconds since 1970
    model: str
    system_fingerprint: str


def new_head(prefix: str, model: str, fingerprint: str) -> Head:
    """`prefix` says which endpoint: chatcmpl, cmpl."""
    return Head(f"{prefix}-{getrandbits(96):024x}", int(time.time()), model, fingerprint)


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True):
    """Of speculation: drafted tokens that the model agreed with, and others; whose drafts they were."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    speculation: text.ProposerKind | None


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET  # where there were drafts


def usage(of: frames.Usage) -> Usage:
    total = of.prompt_tokens + of.completion_tokens
    drafts = CompletionTokensDetails(of.accepted_tokens, of.drafted_tokens - of.accepted_tokens, of.proposer)
    return Usage(
        of.prompt_tokens,
        of.completion_tokens,
        total,
        PromptTokensDetails(of.cached_tokens),
        drafts if of.drafted_tokens else UNSET,
    )


class Timing(Struct, frozen=True):
    """Milliseconds; the header `x-gateway-timing` of answers that are not streamed."""

    queue: float
    prepare: float
    compute: float
    total: float
    encode: float | UnsetType = UNSET  # where a chat shows images


def timing(spent: Phases) -> Timing:
    seconds = (spent.queue, spent.prepare, spent.compute, spent.total, *((spent.encode,) if spent.encode else ()))
    return Timing(*(round(each * 1e3, 3) for each in seconds))


# JSON has no infinity: a token that can't be chosen is shown as this unlikely.
LOWEST_LOGPROB = -9999.0


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
