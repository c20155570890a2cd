"""From a model's spec to an encoder and its tokenizer, or only to the export that both start from."""

from dataclasses import replace

from models.device import available_cpus
from models.embedder.embedder import Embedder, EmbedderOptions, load_embedder, prepare_embedder, ready_made
from models.embedder.onnx_export import Quantization
from models.errors import ModelLoadError
from models.files.source import resolve
from pipelines.embedding.input_tokens import InputTokenizer
from pipelines.messages.embedding import EmbeddingOptions
from pipelines.messages.frames import ModelSpec

GPU_MEMORY = 8 * 2**30  # bytes that the arena of one encoder may grow to


def load(spec: ModelSpec[EmbeddingOptions]) -> tuple[Embedder, InputTokenizer]:
    """Raises ModelLoadError."""
    path = resolve(spec.source)
    embedder = load_embedder(path, embedder_options(spec))
    ready = ready_made(path)
    return embedder, InputTokenizer(path if ready is None else ready[1], embedder.config)


def prepare(spec: ModelSpec[EmbeddingOptions]) -> bool:
    """Export the model now, if it has to be and has not been. False: there was nothing to do. Raises ModelLoadError."""
    return prepare_embedder(resolve(spec.source), embedder_options(spec))


def embedder_options(spec: ModelSpec[EmbeddingOptions]) -> EmbedderOptions:
    """Raises ModelLoadError for what embedding models have not."""
    quantization: Quantization = "none"
    match spec.quantization:
        case None | "none":
            if spec.options.dynamic_int8:
                raise ModelLoadError('embedding.dynamic_int8 needs quantization = "int8"')
        case "int8":
            quantization = "int8_dynamic" if spec.options.dynamic_int8 else "int8"
        case other:
            raise ModelLoadError(f'quantization {other!r} loses too much of an embedding model; use "int8"')
    options = EmbedderOptions(
        device=spec.device,
        quantization=quantization,
        threads=spec.threads or available_cpus(),
        memory_limit=GPU_MEMORY,
    )
    match spec.dtype:
        case None:
            return options
        case "bfloat16" | "float32" | "float16":
            return replace(options, dtype=spec.dtype)
        case other:
            raise ModelLoadError(f"embedding models run in bfloat16, float32 or, on a GPU, float16; not in {other}")
