"""Sampling settings and their ranges: declared here for the wire, for frames, for the configuration and the sampler.

A setting that a model may have a default for is a line of `SamplingOptions`, and of `SamplingDefaults` what it is when
it is off. Any other is a line of `SamplingFields`, and of `SamplingValues` where it is resolved under the same name.
Every endpoint then takes it, every frame carries it, and `pipelines.text.sample` finds it resolved.
"""

from typing import Annotated

from msgspec import Meta, Struct

from pipelines.messages.grammar import Grammar

Temperature = Annotated[float, Meta(ge=0, le=2)]  # 0: greedy
TopP = Annotated[float, Meta(ge=0, le=1)]  # 1: off; 0: greedy
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # 0 or -1: off
MinP = Annotated[float, Meta(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=10)]  # logits are divided by it
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # the model's vocabulary is smaller, as its worker knows
Bias = Annotated[float, Meta(ge=-100, le=100)]
# A schema says of its keys that they are numbers.
LogitBias = Annotated[dict[TokenId, Bias], Meta(extra_json_schema={"propertyNames": {"pattern": "^[0-9]+$"}})]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
NewTokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]  # where an answer of none makes no sense
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stops = Annotated[list[StopString], Meta(max_length=16)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]  # alternatives to a token


class SamplingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that a model has defaults of; None takes them. By itself the `[models.text.sampling]` table."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """What a model takes where a request doesn't say. OpenAI's own, and off, where nobody says anything."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class SamplingFields(SamplingOptions, frozen=True, kw_only=True):
    """All settings that every text endpoint takes, by the names that they have everywhere. None: not said."""

    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    max_tokens: TokenCount | None = None  # None: the rest of the context
    min_tokens: TokenCount | None = None  # generated tokens before EOS or a stop id may be chosen
    stop: StopString | Stops | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None


class Sampling(SamplingFields, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asks for."""

    logprobs: TopLogprobs | None = None  # None: off; k: the chosen token's and the k most likely ones'
    grammar: Grammar | None = None  # what the text keeps to


class SamplingValues(SamplingDefaults, frozen=True, kw_only=True):
    """What holds for a request: a setting that is off has the value that changes nothing."""

    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    logprobs: int | None = None
