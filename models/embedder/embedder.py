"""A loaded embedding model: ids or pixels in, unit vectors out. Runs ONNX graphs alone."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.embedder import openvino, reference_vectors
from models.embedder.embedder_config import EmbedderConfig, read_embedder
from models.embedder.onnx import OnnxSession, SessionOptions, cuda_devices
from models.embedder.onnx_export import ExportOptions, Quantization, cache_entry, exported
from models.embedder.openvino import OpenVinoSession
from models.embedder.session import Session
from models.errors import ModelLoadError

log = logging.getLogger(__name__)

Ids = NDArray[np.int64]
Vectors = NDArray[np.float32]

ONNX_FILES = ("model.onnx", "onnx/model.onnx")  # where a checkpoint folder has its ready-made graph
TEXT, IMAGE = "text.onnx", "image.onnx"


class Embedder:
    """One model on one device. `texts` and `images` may be called by `concurrency` threads at once."""

    def __init__(self, config: EmbedderConfig, text: Session, image: Session | None, details: dict[str, str]) -> None:
        self.config = config
        self.details = details  # for people
        self._text = text
        self._image = image
        self._output = _vector_output(text)
        self._pooled = len(text.outputs[self._output]) == 2  # False: a foreign graph that ends in token states
        self.streams = text.streams  # calls at once that are faster than one after the other
        self.concurrency = text.concurrency
        self.multiple = text.multiple  # texts come padded to a length that is a multiple of it

    def texts(self, ids: Ids, mask: Ids, types: Ids | None = None) -> Vectors:
        """[rows, length] -> unit vectors [rows, dimensions]; of a cross-encoder, scores [rows, 1].

        `mask` is 1 for tokens and 0 for padding; `types` tells the texts of a pair apart, None is all zeros.
        """
        inputs: dict[str, NDArray[np.generic]] = {"input_ids": ids}
        if "attention_mask" in self._text.inputs:
            inputs["attention_mask"] = mask
        if "token_type_ids" in self._text.inputs:
            inputs["token_type_ids"] = np.zeros_like(ids) if types is None else types
        (found,) = self._text.run(inputs, [self._output])
        if self._pooled:
            return found
        return unit(pooled(found.astype(np.float32), mask, self.config))

    def images(self, pixels: NDArray[np.float32]) -> Vectors:
        """[rows, 3, height, width] -> unit vectors [rows, dimensions]."""
        assert self._image is not None
        (found,) = self._image.run({"pixel_values": pixels})
        return found


def pooled(states: Vectors, mask: Ids, config: EmbedderConfig) -> Vectors:
    """[rows, length, hidden] -> [rows, hidden], as `torch_modules.pooled` does inside our own graphs."""
    weights = mask[:, :, None].astype(np.float32)
    count = np.maximum(weights.sum(1), 1e-9)
    found: Vectors
    match config.pooling:
        case "mean":
            found = (states * weights).sum(1) / count
        case "mean_sqrt_len_tokens":
            found = (states * weights).sum(1) / np.sqrt(count)
        case "max":
            found = np.where(weights == 0, np.finfo(np.float32).min, states).max(1)
        case "cls":
            found = states[:, 0]
        case "lasttoken":
            found = states[np.arange(len(states)), np.maximum(mask.sum(1) - 1, 0)]
    return found.astype(np.float32, copy=False)


def unit(vectors: Vectors) -> Vectors:
    """Rows brought to length 1; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class EmbedderOptions:
    """How to load. `quantization` int8: weights in blocks; int8_dynamic: activations too, per batch.

    `dtype` None: float16 on a GPU; on a CPU bfloat16 for texts where that is fast and holds, else float32.
    """

    device: str = "auto"
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    quantization: Quantization = "none"
    threads: int = 1
    memory_limit: int | None = None  # bytes of device memory


def load_embedder(path: Path, options: EmbedderOptions) -> Embedder:
    """Load a checkpoint folder or a ready-made `.onnx` file. Raises ModelLoadError."""
    device = _device(options.device)
    session = SessionOptions(threads=options.threads, device=device, memory_limit=options.memory_limit)
    if (ready := ready_made(path)) is not None:
        return _load_ready_made(*ready, options, session)
    config = read_embedder(path)
    export = export_options(options, device)
    folder = exported(path, export, threads=options.threads)
    coarse = _bfloat16_session(folder, config, options) if device == "cpu" else None
    text = coarse or OnnxSession(folder / TEXT, session)
    image = OnnxSession(folder / IMAGE, session) if config.image is not None else None
    details = {
        "device": device,
        "provider": text.provider,
        "dtype": "bfloat16" if coarse else export.dtype,
        "quantization": export.quantization,
    }
    return Embedder(config, text, image, details)


def prepare_embedder(path: Path, options: EmbedderOptions) -> bool:
    """Export a checkpoint as `load_embedder` would; False where there was nothing to do. Raises ModelLoadError."""
    if ready_made(path) is not None:
        return False
    export = export_options(options, _device(options.device))
    if cache_entry(path, export).is_dir():
        return False
    exported(path, export, threads=options.threads)
    return True


def export_options(options: EmbedderOptions, device: str) -> ExportOptions:
    """What a checkpoint is exported as for a device. Raises ModelLoadError where the two don't go together."""
    gpu = device != "cpu"
    if gpu and options.quantization != "none":
        raise ModelLoadError("int8 embedding models run on a CPU; on a GPU leave quantization out")
    if gpu and options.dtype == "bfloat16":
        raise ModelLoadError("bfloat16 embedding models run on a CPU; on a GPU use float16 or float32")
    if options.quantization != "none" and options.dtype == "bfloat16":
        raise ModelLoadError("an embedding model runs in int8 or in bfloat16: leave quantization or dtype out")
    if not gpu and options.dtype == "float16":
        raise ModelLoadError('float16 embedding models run on a GPU; on a CPU use float32, or quantization = "int8"')
    half = options.dtype == "float16" or (gpu and options.dtype is None)
    return ExportOptions(dtype="float16" if half else "float32", quantization=options.quantization)


def _bfloat16_session(folder: Path, config: EmbedderConfig, options: EmbedderOptions) -> OpenVinoSession | None:
    """The text graph with products in bfloat16, where that is not ruled out, can be had, and agrees with float32.

    Raises ModelLoadError where it is demanded and can't be had.
    """
    if options.quantization != "none" or options.dtype == "float32":
        return None
    why_not = _unsuited(config) or openvino.missing()
    tried = why_not is None
    if tried:
        try:
            session = OpenVinoSession(folder / TEXT, options.threads)
            why_not = reference_vectors.disagreement(session, reference_vectors.load(folder), config.pad_id)
        except ModelLoadError as error:
            why_not = str(error)
        if why_not is None:
            return session
    if options.dtype == "bfloat16":
        raise ModelLoadError(f"this model can't run in bfloat16: {why_not}")
    log.log(logging.WARNING if tried else logging.INFO, "texts run in float32, not in bfloat16: %s", why_not)
    return None


def _unsuited(config: EmbedderConfig) -> str | None:
    """Why a kind of model stays in float32. Scores, and spaces that texts share with images, have not been measured
    against a checkpoint that people use."""
    if config.family != "text":
        return "it is for encoders of texts alone"
    if config.max_tokens % openvino.MULTIPLE:
        return f"texts of up to {config.max_tokens} tokens can't be padded to a multiple of {openvino.MULTIPLE}"
    return None


def ready_made(path: Path) -> tuple[Path, Path] | None:
    """(graph, folder of its tokenizer and configuration) where the source is an exported graph already."""
    if path.is_file():
        if path.suffix != ".onnx":
            raise ModelLoadError(f"{path.name} is no embedding model: a checkpoint folder or an .onnx file is needed")
        folder = path.parent if (path.parent / "tokenizer.json").is_file() else path.parent.parent
        return path, folder
    if any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin")):
        return None
    for name in ONNX_FILES:
        if (path / name).is_file():
            return path / name, path
    return None


def _load_ready_made(file: Path, folder: Path, options: EmbedderOptions, session: SessionOptions) -> Embedder:
    if options.quantization != "none" or options.dtype is not None:
        raise ModelLoadError(f"{file.name} is served as it is: leave quantization and dtype out")
    config = read_embedder(folder)
    if config.image is not None:
        raise ModelLoadError(f"{file.name}: models of two towers are exported from their checkpoint folder")
    text = OnnxSession(file, session)
    shape = text.outputs[_vector_output(text)]
    if isinstance(shape[-1], int):
        config = replace(config, dimensions=shape[-1])
    details = {"device": session.device, "provider": text.provider, "dtype": "as in the file", "graph": file.name}
    return Embedder(config, text, None, details)


def _vector_output(session: Session) -> str:
    """The output that is a vector a row, else the token states. Raises ModelLoadError."""
    outputs: Mapping[str, tuple[object, ...]] = session.outputs
    for rank in (2, 3):
        for name, shape in outputs.items():
            if len(shape) == rank:
                return name
    raise ModelLoadError(f"the graph's outputs are {session.outputs}; [rows, dimensions] is needed")


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if cuda_devices() else "cpu"
    if wanted != "cpu" and not cuda_devices():
        raise ModelLoadError(f"device {wanted} was asked for, but there is no GPU that ONNX Runtime could use")
    return wanted
