"""Texts and images in one space: tiny CLIP and SigLIP checkpoints, from file to vector, against transformers."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from models.embedder.onnx_build import build_export
from models.embedder.onnx_export import ExportOptions, cache_entry
from models.files.cache import build_once
from pipelines.base import InvalidRequest, Ticket
from pipelines.embedding.pipeline import EmbeddingPipeline
from pipelines.messages.embedding import EmbeddingOptions, EmbeddingRequest, ImageBytes, Vectors
from pipelines.messages.frames import Done, ModelSpec
from pipelines.messages.text import StringPrompt
from tests.models import checkpoints
from tests.pipelines.embedding.test_images import encoded, picture

Rows = NDArray[np.float32]

TEXTS = ["w1 w2 w3", "w4"]
IMAGES = [picture(40, 50), picture(64, 33)]


def served(folder: Path) -> tuple[Rows, Rows]:
    """(texts, images), asked for in one request, mixed."""
    spec = ModelSpec(
        name="c", kind="embedding", pipeline="", source=str(folder), options=EmbeddingOptions(), device="cpu", threads=1
    )
    pipeline, _ = EmbeddingPipeline.load(spec)
    inputs = [
        StringPrompt(TEXTS[0]),
        ImageBytes(encoded(IMAGES[0])),
        StringPrompt(TEXTS[1]),
        ImageBytes(encoded(IMAGES[1])),
    ]
    pipeline.admit(pipeline.prepare(Ticket("r", "interactive", 0.0), EmbeddingRequest(inputs=inputs)))
    rows: dict[int, Rows] = {}
    usage = None
    while pipeline.busy:
        for event in pipeline.step().events:
            if isinstance(event, Vectors):
                vectors = np.frombuffer(event.data, "<f4").reshape(len(event.indices), -1)
                rows |= dict(zip(event.indices, vectors, strict=True))
            elif isinstance(event, Done):
                usage = event.usage
    assert usage is not None
    assert usage.prompt_tokens == (3 + 1) + 2 * (2 if "clip" in folder.name else 1)  # real ones, no padding
    with pytest.raises(InvalidRequest):
        pipeline.prepare(Ticket("b", "interactive", 0.0), EmbeddingRequest(inputs=[ImageBytes(b"no picture")]))
    return np.stack([rows[0], rows[2]]), np.stack([rows[1], rows[3]])


def export(folder: Path) -> None:
    """As the worker has it done, but in this process, which has imported torch already."""
    options = ExportOptions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build_once(cache_entry(folder, options), lambda entry: build_export(folder, options, entry, 1))


def unit(features: Any) -> Rows:
    tensor = features if isinstance(features, torch.Tensor) else features.pooler_output
    normalised: Rows = torch.nn.functional.normalize(tensor, dim=-1).numpy()
    return normalised


def reference(folder: Path, ids: list[list[int]], pixels: Any) -> tuple[Rows, Rows]:
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        texts = np.concatenate([unit(model.get_text_features(input_ids=torch.tensor([row]))) for row in ids])
        return texts, unit(model.get_image_features(pixel_values=torch.tensor(np.stack(pixels))))


def clip(folder: Path) -> tuple[Rows, Rows]:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    vocabulary = checkpoints.vocabulary(folder)
    start, end = vocabulary["<|start|>"], vocabulary["<|end|>"]
    ids = [[start, *(vocabulary[word] for word in text.split()), end] for text in TEXTS]
    processor = CLIPImageProcessorPil.from_pretrained(folder)
    return reference(folder, ids, processor(IMAGES, return_tensors="np")["pixel_values"])


def siglip(folder: Path) -> tuple[Rows, Rows]:
    """padding="max_length": it was trained so, and without it the vectors are others."""
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    vocabulary = checkpoints.vocabulary(folder)
    ids = [[*(vocabulary[word] for word in text.split()), vocabulary["</s>"]] for text in TEXTS]
    ids = [row + [vocabulary["<pad>"]] * (64 - len(row)) for row in ids]
    processor = SiglipImageProcessorPil.from_pretrained(folder)
    return reference(folder, ids, processor(IMAGES, return_tensors="np")["pixel_values"])


@pytest.mark.parametrize(("make", "wanted"), [(checkpoints.clip, clip), (checkpoints.siglip, siglip)])
def test_texts_and_images_are_those_of_transformers(
    make: Callable[[Path], Path],
    wanted: Callable[[Path], tuple[Rows, Rows]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / make.__name__
    folder.mkdir()
    make(folder)
    export(folder)
    for found, expected in zip(served(folder), wanted(folder), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
