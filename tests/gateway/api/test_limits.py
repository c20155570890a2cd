"""What the wire takes is what the types of messages allow: no endpoint has a range of its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

import gateway.api
from gateway.api.audio.request import ChunkingStrategy, TranscriptionForm
from gateway.api.embeddings.request import EmbeddingsRequest
from gateway.api.embeddings.rerank import RerankBody
from gateway.api.images.request import EditForm, GenerationBody
from gateway.api.live.plain_query import StreamQuery
from gateway.api.live.realtime_messages import AudioFormat, TurnDetectionPatch
from gateway.api.text.chat_request import ChatRequest
from gateway.api.text.completion_request import CompletionRequest
from gateway.api.text.grammar import StructuredOutputs
from gateway.api.text.sampling import Speculation
from pipelines.messages.audio import StreamRequest, TranscriptionRequest, TurnDetection
from pipelines.messages.embedding import EmbeddingRequest, RerankRequest
from pipelines.messages.grammar import Grammar
from pipelines.messages.image import ImageRequest
from pipelines.messages.sampling import Sampling, SamplingFields
from pipelines.messages.text import TextOptions, TextRequest

# Field of the wire -> that of the message, where it has another name.
SAME: list[tuple[type[Struct], type[Struct], dict[str, str]]] = [
    (ChatRequest, Sampling, {"top_logprobs": "logprobs", **{name: name for name in SamplingFields.__struct_fields__}}),
    (ChatRequest, TextRequest, {"n": "n"}),
    (CompletionRequest, Sampling, {name: name for name in (*SamplingFields.__struct_fields__, "logprobs")}),
    (CompletionRequest, Grammar, {"guided_regex": "text"}),
    (StructuredOutputs, Grammar, {"regex": "text", "grammar": "text"}),
    (CompletionRequest, TextRequest, {"n": "n", "best_of": "n"}),
    (Speculation, TextOptions, {"max_draft": "max_draft"}),
    (EmbeddingsRequest, EmbeddingRequest, {"dimensions": "dimensions", "output_dimension": "dimensions"}),
    (EmbeddingsRequest, EmbeddingRequest, {"input_type": "kind", "task": "kind"}),
    (RerankBody, RerankRequest, {"max_tokens_per_doc": "max_tokens_per_document"}),
    (TranscriptionForm, TranscriptionRequest, {"temperature": "temperature"}),
    (
        ChunkingStrategy,
        TranscriptionRequest,
        {"threshold": "vad_threshold", "silence_duration_ms": "vad_silence_ms", "prefix_padding_ms": "vad_padding_ms"},
    ),
    (StreamQuery, StreamRequest, {"rate": "rate"}),
    (AudioFormat, StreamRequest, {"rate": "rate"}),
    (StreamQuery, TurnDetection, {name: name for name in TurnDetection.__struct_fields__}),
    (TurnDetectionPatch, TurnDetection, {name: name for name in TurnDetection.__struct_fields__}),
    (
        GenerationBody,
        ImageRequest,
        {
            "negative_prompt": "negative_prompt",
            "n": "n",
            "seed": "seed",
            "num_inference_steps": "steps",
            "guidance_scale": "guidance_scale",
            "scheduler": "scheduler",
            "partial_images": "partial_images",
            "output_format": "output_format",
            "output_compression": "output_compression",
        },
    ),
    (EditForm, ImageRequest, {"strength": "strength"}),
]


def schema(of: type[Struct], field: str) -> list[dict[str, object]]:
    """Of a field's type, without null and default."""
    (found,) = (each for each in msgspec.structs.fields(of) if each.encode_name == field)
    described = msgspec.json.schema(found.type)
    options = described.get("anyOf", [described])
    return [option for option in options if option != {"type": "null"}]


@pytest.mark.parametrize(("wire", "message", "fields"), SAME)
def test_a_field_of_the_wire_has_the_limits_of_its_message(
    wire: type[Struct], message: type[Struct], fields: dict[str, str]
) -> None:
    for ours, theirs in fields.items():
        assert schema(wire, ours) == schema(message, theirs), ours


# Where the wire has a value that no message has: -1, for what the model takes.
ITS_OWN = {"truncate_prompt_tokens"}


def test_no_endpoint_has_a_range_of_its_own() -> None:
    for path in sorted(Path(gateway.api.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in ITS_OWN:
                continue
            for bound in _bounds(node):
                assert isinstance(bound.value, ast.Name), f"{path.name}:{bound.value.lineno}: {bound.arg}"


def _bounds(node: ast.AST) -> Iterator[ast.keyword]:
    """Of `Meta(…)` in an annotation or an alias: a bound belongs beside the message's."""
    if isinstance(node, ast.AnnAssign | ast.Assign):
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Meta":
                yield from (each for each in call.keywords if each.arg in ("ge", "gt", "le", "lt", "max_length"))
