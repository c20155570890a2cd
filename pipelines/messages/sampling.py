"""Sampling settings with their ranges: the same in a request and in the configuration. Imports nothing heavy."""

from typing import Annotated

from msgspec import Meta, Struct

Temperature = Annotated[float, Meta(ge=0, le=2)]  # 0: greedy
TopP = Annotated[float, Meta(ge=0, le=1)]  # 1: off; 0: greedy
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # 0 or -1: off
MinP = Annotated[float, Meta(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=10)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class SamplingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[models.text.sampling]` table: what holds where a request doesn't say. None: as the model's files say."""

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
