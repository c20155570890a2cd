"""What the export process does: trace, save, quantise, and compare with torch. Imports torch and onnx."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

from models.embedder import reference_vectors
from models.embedder.embedder_config import EmbedderConfig, read_embedder
from models.embedder.onnx import OnnxSession, SessionOptions
from models.embedder.onnx_export import ExportOptions
from models.embedder.reference_vectors import ReferenceBatch
from models.embedder.torch_modules import build
from models.errors import ModelLoadError

OUTPUT = "vectors"
OPSET = 23  # the first with an Attention operator: one a layer, in place of products and a softmax
BLOCK = 32  # weights that share a scale
ACCURACY_LEVEL = 4  # int8 products, activations quantised for each block of a row: rows don't touch one another

# The largest difference between a component of torch's float32 unit vector and the graph's, and the smallest cosine.
TOLERANCES = {"float32": (1e-4, 0.99999), "float16": (2e-2, 0.999), "int8": (5e-2, 0.995), "int8_dynamic": (0.2, 0.95)}


def build_export(path: Path, options: ExportOptions, folder: Path, threads: int) -> None:
    """Write `text.onnx` and, for two towers, `image.onnx` into `folder`; of a text encoder, vectors to compare with.

    Raises ModelLoadError.
    """
    torch.set_num_threads(threads)
    config = read_embedder(path)
    dtype = torch.float16 if options.dtype == "float16" else torch.float32
    modules = build(path, config, dtype=dtype)
    references = modules if dtype is torch.float32 else build(path, config, dtype=torch.float32)
    for name, module in modules.items():
        file = folder / f"{name}.onnx"
        export(module, traced_inputs(config, name), file)
        if options.quantization != "none":
            quantise(file, options.quantization)
        verify(references[name], config, name, file, options)
    if config.family == "text":
        reference_vectors.save(folder, reference_batches(references["text"], config))


def export(module: nn.Module, inputs: Mapping[str, Tensor], file: Path) -> None:
    """Trace with dynamic rows and, for text, dynamic length."""
    rows, length = Dim("rows", max=1 << 20), Dim("length", max=1 << 20)
    axes = {name: {0: rows, 1: length} if tensor.dim() == 2 else {0: rows} for name, tensor in inputs.items()}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            kwargs=dict(inputs),
            dynamo=True,
            dynamic_shapes=axes,
            input_names=list(inputs),
            output_names=[OUTPUT],
            opset_version=OPSET,
            verbose=False,
        )
    if program is None:
        raise ModelLoadError("torch gave no ONNX program")
    program.save(file)


def quantise(file: Path, quantization: str) -> None:
    """int8 weights in blocks of 32 (MatMulNBits), or int8 weights and activations (`int8_dynamic`).

    The dynamic form takes one activation scale from the whole batch: a text's vector then depends on its neighbours.
    """
    # Imported here: the module sets up the root logger.
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    if quantization == "int8_dynamic":
        whole = file.with_suffix(".float.onnx")
        file.rename(whole)
        quantize_dynamic(whole, file, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"])
        for left in whole.parent.glob(f"{whole.name}*"):
            left.unlink()
        return
    quantizer = MatMulNBitsQuantizer(
        onnx.load(file), bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=ACCURACY_LEVEL
    )
    quantizer.process()
    for left in file.parent.glob(f"{file.name}*"):
        left.unlink()
    quantizer.model.save_model_to_file(str(file), use_external_data_format=False)


def verify(reference: nn.Module, config: EmbedderConfig, name: str, file: Path, options: ExportOptions) -> None:
    """Compare with torch at shapes that the trace did not see. Raises ModelLoadError."""
    kind = options.dtype if options.quantization == "none" else options.quantization
    tolerance, least_cosine = TOLERANCES[kind]
    session = OnnxSession(file, SessionOptions(threads=torch.get_num_threads()))
    for inputs in verification_inputs(config, name):
        with torch.no_grad():
            expected = reference(**inputs).numpy()
        (found,) = session.run({key: value.numpy() for key, value in inputs.items()})
        shape = tuple(next(iter(inputs.values())).shape)
        if found.shape != expected.shape or not np.isfinite(found).all():
            raise ModelLoadError(f"the exported {name} graph is wrong at {shape}: {found.shape}, not all finite")
        difference = float(np.abs(found - expected).max())
        cosine = _least_cosine(found, expected) if expected.shape[1] > 1 else 1.0
        if difference > tolerance or cosine < least_cosine:
            raise ModelLoadError(
                f"the exported {name} graph differs from torch by {difference:.2g} (cosine {cosine:.5f}) at {shape}"
            )


def reference_batches(reference: nn.Module, config: EmbedderConfig) -> list[ReferenceBatch]:
    """torch's float32 vectors of what `verify` runs."""
    batches: list[ReferenceBatch] = []
    for inputs in verification_inputs(config, "text"):
        with torch.no_grad():
            vectors = reference(**inputs).numpy()
        batches.append(ReferenceBatch(inputs["input_ids"].numpy(), inputs["attention_mask"].numpy(), vectors))
    return batches


def _least_cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(1) / norms).min())


def traced_inputs(config: EmbedderConfig, name: str) -> dict[str, Tensor]:
    """Sizes that no special case of the tracer (0, 1) and no other axis of the graph has."""
    if name == "image":
        return image_inputs(config, 3)
    return text_inputs(config, 3, config.max_tokens if config.fixed_length else 7)


def verification_inputs(config: EmbedderConfig, name: str) -> Iterator[dict[str, Tensor]]:
    if name == "image":
        yield from (image_inputs(config, rows) for rows in (1, 2, 5))
        return
    longest = config.max_tokens
    if config.fixed_length:
        yield from (text_inputs(config, rows, longest) for rows in (1, 2, 5))
        return
    for rows, length in ((1, 3), (2, 6), (5, 41), (8, 160), (1, 128), (2, 300)):
        yield text_inputs(config, rows, min(length, longest))
    yield text_inputs(config, 1, min(longest, 2048))


def text_inputs(config: EmbedderConfig, rows: int, length: int) -> dict[str, Tensor]:
    """Random texts of different lengths in one batch, row 0 the longest; the last token is the highest id, which CLIP
    takes for the end."""
    generator = torch.Generator().manual_seed(rows * 1009 + length)
    ids = torch.randint(0, config.vocab_size - 1, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.int64)
    for row in range(rows):
        end = max(2, length - row * (length // rows)) if row else length
        ids[row, min(end, length) - 1] = config.vocab_size - 1
        if config.masked:
            ids[row, end:], mask[row, end:] = config.pad_id, 0
    inputs = {"input_ids": ids}
    if config.masked:
        inputs["attention_mask"] = mask
    if config.family == "cross_encoder" and config.token_types:
        inputs["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(rows, length).contiguous() * mask
    return inputs


def image_inputs(config: EmbedderConfig, rows: int) -> dict[str, Tensor]:
    assert config.image is not None
    generator = torch.Generator().manual_seed(rows)
    return {"pixel_values": torch.randn(rows, 3, config.image.height, config.image.width, generator=generator)}
