"""What the text endpoints have in common: sampling parameters, streaming options, fields without effect."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Raw, Struct

from gateway.api.text.grammar import GrammarFields
from gateway.api.texts import NOT_EMPTY
from gateway.errors import ApiError, bad_request
from gateway.uploads.images import ImageUrl
from pipelines.messages.grammar import Grammar
from pipelines.messages.sampling import Sampling, SamplingFields
from pipelines.messages.text import Choices, DraftLength, ProposerKind

ABSENT = Raw()


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis: only false is served


class Speculation(Struct, frozen=True, forbid_unknown_fields=True):
    kind: ProposerKind | None = None  # absent: as the model is configured, else ngram
    max_draft: DraftLength = 8


class TextFields(GrammarFields, frozen=True, kw_only=True):
    """Fields of both endpoints. `null` is the same as absence, everywhere."""

    model: Annotated[str, NOT_EMPTY]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    speculation: bool | Speculation | None = None  # false: no drafts; absent: as the model is configured

    # Accepted, without effect here.
    user: Raw = ABSENT
    store: Raw = ABSENT
    metadata: Raw = ABSENT
    service_tier: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    prompt_cache_retention: Raw = ABSENT
    safety_identifier: Raw = ABSENT

    @property
    def streamed(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def images(self) -> Sequence[ImageUrl]:
        return ()

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n


def max_draft(body: TextFields) -> int | None:
    """Tokens of one draft, 0 for none, None where the request doesn't say. Raises ApiError."""
    match body.speculation:
        case Speculation(max_draft=most):
            return most
        case True:
            raise bad_request("speculation", "'speculation' must be false or an object with 'kind' and 'max_draft'.")
        case False:
            return 0
        case _:
            return None


def proposer(body: TextFields) -> ProposerKind | None:
    """Whose drafts are asked for; None where the request doesn't say. Whether the model has it, its worker knows."""
    return body.speculation.kind if isinstance(body.speculation, Speculation) else None


def present(raw: Raw) -> bool:
    """Whether a field that is taken as it came has a value."""
    return raw is not ABSENT and bytes(raw) not in (b"", b"null")


def check_stream_options(body: TextFields) -> None:
    """Raises ApiError."""
    if body.stream_options is None:
        return
    if not body.stream:
        raise bad_request("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    if body.stream_options.include_obfuscation:
        raise unsupported("stream_options.include_obfuscation", "it may be false")


def sampling(
    body: TextFields, *, max_tokens: int | None, logprobs: int | None, grammar: Grammar | None = None
) -> Sampling:
    """The parameters as a pipeline takes them. Raises ApiError where two fields contradict each other.

    Token ids are checked against the vocabulary by the worker, which knows it.
    """
    if max_tokens is not None and body.min_tokens is not None and body.min_tokens > max_tokens:
        raise bad_request("min_tokens", f"'min_tokens' must be between 0 and the token limit of {max_tokens}.")
    said = {name: getattr(body, name) for name in SamplingFields.__struct_fields__}
    return Sampling(**said | {"max_tokens": max_tokens}, logprobs=logprobs, grammar=grammar)


def unsupported(param: str, legal: str = "leave it out") -> ApiError:
    """A 400 for a field, or a value of it, that OpenAI's API has and this one has not."""
    return bad_request(param, f"{param!r} is not supported here; {legal}.", code="unsupported_parameter")
