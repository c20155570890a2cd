"""Settings that the types of a request allow and the sampler does not. Each refusal names the field on the wire."""

import math

from pipelines.base import InvalidRequest
from pipelines.messages.text import Sampling, TextRequest
from pipelines.text.sample.sampler import TOP_LOGPROBS

MAX_CHOICES = 128  # of one prompt
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024


def validate(request: TextRequest, vocab_size: int) -> None:
    """Raises InvalidRequest."""
    sampling = request.sampling
    if not request.prompts:
        raise InvalidRequest("there is no prompt", "prompt")
    if not 1 <= request.n <= MAX_CHOICES:
        raise InvalidRequest(f"n is {request.n}, must be from 1 to {MAX_CHOICES}", "n")
    _validate_numbers(sampling)
    _validate_lengths(sampling, request.echo)
    _validate_stops(sampling, vocab_size)
    for id, bias in sampling.logit_bias.items():
        if not 0 <= id < vocab_size:
            raise InvalidRequest(f"token id {id} is out of range: the vocabulary has {vocab_size}", "logit_bias")
        _require("logit_bias", bias, -100, 100)


def _validate_numbers(sampling: Sampling) -> None:
    _require("temperature", sampling.temperature, 0, 100)
    _require("top_p", sampling.top_p, 0, 1)
    _require("min_p", sampling.min_p, 0, 1)
    _require("presence_penalty", sampling.presence_penalty, -2, 2)
    _require("frequency_penalty", sampling.frequency_penalty, -2, 2)
    _require("repetition_penalty", sampling.repetition_penalty, 0.01, 100)
    _require("logprobs", sampling.logprobs, 0, TOP_LOGPROBS)
    if sampling.top_k is not None and sampling.top_k < -1:
        raise InvalidRequest(f"top_k is {sampling.top_k}, must be positive, or 0 or -1 for off", "top_k")


def _validate_lengths(sampling: Sampling, echo: bool) -> None:
    if sampling.max_tokens is not None and sampling.max_tokens < (0 if echo else 1):
        at_least = "at least 1, or 0 with echo" if not echo else "at least 0"
        raise InvalidRequest(f"max_tokens is {sampling.max_tokens}, must be {at_least}", "max_tokens")
    if sampling.min_tokens < 0:
        raise InvalidRequest(f"min_tokens is {sampling.min_tokens}, must be at least 0", "min_tokens")
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"min_tokens {sampling.min_tokens} is above max_tokens {sampling.max_tokens}", "min_tokens"
        )


def _validate_stops(sampling: Sampling, vocab_size: int) -> None:
    if len(sampling.stop) > MAX_STOPS:
        raise InvalidRequest(f"there are {len(sampling.stop)} stop strings, at most {MAX_STOPS} are taken", "stop")
    for stop in sampling.stop:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"a stop string has {len(stop)} characters, must have 1 to {MAX_STOP_CHARACTERS}", "stop"
            )
    for id in sampling.stop_token_ids:
        if not 0 <= id < vocab_size:
            raise InvalidRequest(f"token id {id} is out of range: the vocabulary has {vocab_size}", "stop_token_ids")


def _require(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{name} is {value}, must be from {low} to {high}", name)
