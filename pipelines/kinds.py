"""The kinds of models that can be served: one card each. Whoever has to know what a kind is asks its card.

A card names modules that only one side imports: its pipeline is the worker's, its endpoints are the gateway's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from metrics.definitions import audio, embedding, image, text
from metrics.metric import Metric
from models.files.signs import ANY, Signs
from pipelines.messages.audio import AudioEvent, AudioOptions, StreamRequest, TranscriptionRequest
from pipelines.messages.base import Options
from pipelines.messages.embedding import EmbeddingOptions, EmbeddingRequest, RerankRequest, Scores, Vectors
from pipelines.messages.image import ImageEvent, ImageOptions, ImageRequest
from pipelines.messages.text import ChoiceDone, Delta, TextOptions, TextRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """The card of one kind. References are "module:NAME"."""

    name: str  # in the configuration, the metrics and the API
    card: str  # where this declaration is: how a worker process finds it
    pipeline: str  # its class; see `pipelines.base.Pipeline`
    options: type[Options]  # the `[models.NAME]` table
    requests: object  # the type of what a model is asked: one Request, or a union of some
    events: object  # and of what it says: one Said, or a union of some
    endpoints: Sequence[str]  # Litestar's controllers
    signs: Signs  # by which a model's files are known; where there are none, `kind` has to be configured
    metrics: Sequence[Metric] = ()  # that its models have beside the common ones
    inputs: Sequence[str] = ("text",)  # what all its models take; some take images, too (`Ready.images`)
    first: bool = False  # loaded before the other kinds, with all cores to itself
    prepare: str | None = None  # does before the first start what can be; a function of the spec -> whether it had to


TEXT = Kind(
    name="text",
    card="pipelines.kinds:TEXT",
    pipeline="pipelines.text.pipeline:TextPipeline",
    options=TextOptions,
    requests=TextRequest,
    events=Delta | ChoiceDone,
    endpoints=("gateway.api.text.chat:ChatController", "gateway.api.text.completions:CompletionsController"),
    signs=Signs(architectures=("ForCausalLM", "ForConditionalGeneration"), gguf_architectures=(ANY,)),
    metrics=text.METRICS,
    first=True,  # what a chat waits for
)

EMBEDDING = Kind(
    name="embedding",
    card="pipelines.kinds:EMBEDDING",
    pipeline="pipelines.embedding.pipeline:EmbeddingPipeline",
    options=EmbeddingOptions,
    requests=EmbeddingRequest | RerankRequest,
    events=Vectors | Scores | ChoiceDone,
    endpoints=("gateway.api.embeddings.routes:EmbeddingsController",),
    signs=Signs(
        members=("modules.json", "1_Pooling"),
        architectures=("Model", "ForMaskedLM", "ForSequenceClassification"),
        gguf_architectures=("bert", "nomic-bert", "jina-bert-v2"),
        suffixes=(".onnx",),
    ),
    metrics=embedding.METRICS,
    prepare="pipelines.embedding.loading:prepare",
)

AUDIO = Kind(
    name="audio",
    card="pipelines.kinds:AUDIO",
    pipeline="pipelines.audio.pipeline:AudioPipeline",
    options=AudioOptions,
    requests=TranscriptionRequest | StreamRequest,
    events=AudioEvent,
    endpoints=("gateway.api.audio.routes:AudioController", "gateway.api.live.routes:RealtimeController"),
    signs=Signs(config_keys=("alignment_heads",), model_types=("whisper",)),
    metrics=audio.METRICS,
    inputs=("audio",),
)

IMAGE = Kind(
    name="image",
    card="pipelines.kinds:IMAGE",
    pipeline="pipelines.image.pipeline:ImagePipeline",
    options=ImageOptions,
    requests=ImageRequest,
    events=ImageEvent,
    endpoints=("gateway.api.images.routes:ImagesController",),
    signs=Signs(members=("model_index.json",)),
    metrics=image.METRICS,
    inputs=("text", "image"),
)

KINDS = {kind.name: kind for kind in (TEXT, EMBEDDING, AUDIO, IMAGE)}


def signs_by_kind() -> dict[str, Signs]:
    return {kind.name: kind.signs for kind in KINDS.values()}


def metrics_by_kind() -> dict[str, Sequence[Metric]]:
    return {kind.name: kind.metrics for kind in KINDS.values()}


def referenced(reference: str) -> Any:  # whatever it is that a card names
    """What a "module:NAME" names. Raises ImportError or AttributeError where there is nothing, ValueError where it is
    no such reference."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
