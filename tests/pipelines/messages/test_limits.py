"""The limits of requests and options: each is on a type, and whoever decodes that type keeps it."""

import math
from typing import Any

import msgspec
import pytest
from msgspec import Struct, ValidationError

from pipelines.messages.audio import StreamRequest, TranscriptionRequest, TurnDetection
from pipelines.messages.embedding import EmbeddingRequest, RerankRequest
from pipelines.messages.image import ImageRequest
from pipelines.messages.sampling import Sampling, SamplingDefaults, SamplingFields, SamplingOptions, SamplingValues
from pipelines.messages.text import TextOptions, TextRequest

TEXT = {"type": "string", "text": "a"}

# Type, what else it needs, field, legal borders, what is beyond them.
LIMITS: list[tuple[type[Struct], dict[str, Any], str, list[Any], list[Any]]] = [
    (SamplingOptions, {}, "temperature", [0, 2], [-0.1, 2.1, math.nan, math.inf]),
    (SamplingOptions, {}, "top_p", [0, 1], [-0.1, 1.1, math.nan]),
    (SamplingOptions, {}, "top_k", [-1, 0, 2**31 - 1], [-2, 2**31]),
    (SamplingOptions, {}, "min_p", [0, 1], [-0.1, 2.0]),
    (SamplingOptions, {}, "repetition_penalty", [0.01, 10], [0, -1, 1e-40, 10.1]),
    (SamplingOptions, {}, "presence_penalty", [-2, 2], [-2.5, 2.5]),
    (SamplingOptions, {}, "frequency_penalty", [-2, 2], [-2.5, math.inf]),
    (Sampling, {}, "logit_bias", [{0: -100, 5: 100}], [{-1: 5.0}, {1: 1e9}, {1: math.nan}]),
    (Sampling, {}, "seed", [-(2**63), 2**63 - 1], [2**63]),
    (Sampling, {}, "max_tokens", [0, 2**31 - 1], [-1, 2**31]),
    (Sampling, {}, "min_tokens", [0], [-1]),
    (Sampling, {}, "stop", ["a", ["x" * 1024] * 16, []], ["", [""], "x" * 1025, ["x" * 1025], ["x"] * 17]),
    (Sampling, {}, "stop_token_ids", [[0]], [[-1], [2**31]]),
    (Sampling, {}, "logprobs", [0, 20], [-1, 21]),
    (TextRequest, {"prompts": [TEXT]}, "n", [1, 128], [0, 129]),
    (TextRequest, {"prompts": [TEXT]}, "max_draft", [0, 32], [-1, 33]),
    (TextRequest, {}, "prompts", [[TEXT] * 2048, [{"type": "tokens", "ids": [0]}]], [[], [TEXT] * 2049]),
    (TextRequest, {}, "prompts", [], [[{"type": "tokens", "ids": each}] for each in ([], [-1])]),
    (TextRequest, {}, "prompts", [], [[{"type": "chat", "messages": []}]]),
    (TextOptions, {}, "max_draft", [1, 32], [0, 33]),
    (EmbeddingRequest, {}, "inputs", [[TEXT] * 2048], [[], [TEXT] * 2049]),
    (EmbeddingRequest, {"inputs": [TEXT]}, "dimensions", [1], [0]),
    (EmbeddingRequest, {"inputs": [TEXT]}, "max_tokens", [1], [0, -1]),
    (EmbeddingRequest, {"inputs": [TEXT]}, "kind", ["a", "a" * 64], ["", "a" * 65]),
    (RerankRequest, {"query": "a"}, "documents", [["a"] * 2048], [[], ["a"] * 2049]),
    (RerankRequest, {"query": "a", "documents": ["a"]}, "max_tokens_per_document", [1], [0]),
    (TranscriptionRequest, {"path": "a"}, "temperature", [0, 1], [-0.1, 1.1]),
    (TranscriptionRequest, {"path": "a"}, "vad_threshold", [0, 1], [-0.1, 1.1]),
    (TranscriptionRequest, {"path": "a"}, "vad_silence_ms", [32, 10_000], [31, 10_001]),
    (TranscriptionRequest, {"path": "a"}, "vad_padding_ms", [0, 5_000], [-1, 5_001]),
    (TurnDetection, {}, "threshold", [0, 1], [-0.1, 1.1, math.nan]),
    (TurnDetection, {}, "silence_duration_ms", [32, 10_000], [31, 10_001]),
    (TurnDetection, {}, "prefix_padding_ms", [0, 5_000], [-1, 5_001]),
    (StreamRequest, {}, "rate", [8_000, 96_000], [7_999, 96_001]),
    (ImageRequest, {}, "prompt", ["a" * 32_000], ["a" * 32_001]),
    (ImageRequest, {"prompt": "a"}, "negative_prompt", ["", "a" * 32_000], ["a" * 32_001]),
    (ImageRequest, {"prompt": "a"}, "n", [1, 10], [0, 11]),
    (ImageRequest, {"prompt": "a"}, "seed", [0, 2**53 - 10], [-1, 2**53 - 9]),
    (ImageRequest, {"prompt": "a"}, "steps", [1], [0, -1]),
    (ImageRequest, {"prompt": "a"}, "guidance_scale", [0, 100], [-0.1, 100.5, math.nan, math.inf]),
    (ImageRequest, {"prompt": "a"}, "scheduler", ["ddim"], ["ddpm"]),
    (ImageRequest, {"prompt": "a"}, "width", [1, 99_999], [0, -64, 100_000]),
    (ImageRequest, {"prompt": "a"}, "height", [1, 99_999], [0, -64, 100_000]),
    (ImageRequest, {"prompt": "a"}, "partial_images", [0, 3], [-1, 4]),
    (ImageRequest, {"prompt": "a"}, "output_compression", [0, 100], [-1, 101]),
    (ImageRequest, {"prompt": "a"}, "strength", [0.01, 1], [0, -0.5, 1.01, math.nan]),
]


@pytest.mark.parametrize(("of", "needed", "field", "legal", "beyond"), LIMITS)
def test_a_limit_and_what_is_beyond_it(
    of: type[Struct], needed: dict[str, Any], field: str, legal: list[Any], beyond: list[Any]
) -> None:
    def decode(value: Any) -> Any:
        tag = {} if (name := of.__struct_config__.tag) is None else {"type": name}
        return msgspec.msgpack.decode(msgspec.msgpack.encode(tag | needed | {field: value}), type=of)

    for value in legal:
        assert msgspec.to_builtins(getattr(decode(value), field)) == msgspec.to_builtins(value)
    for value in beyond:
        with pytest.raises(ValidationError, match=rf"\$\.{field}|`key` in `\$\.{field}`"):
            decode(value)


def test_a_sampling_setting_has_one_name_everywhere() -> None:
    """From the wire and the configuration to the sampler: nothing is lost between them."""
    assert SamplingOptions.__struct_fields__ == SamplingDefaults.__struct_fields__
    assert set(SamplingOptions.__struct_fields__) < set(SamplingFields.__struct_fields__)
    assert set(SamplingFields.__struct_fields__) < set(Sampling.__struct_fields__)
    assert set(SamplingValues.__struct_fields__) <= set(Sampling.__struct_fields__)
