"""Exports of tiny random checkpoints, against transformers."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers

from models.embedder.embedder import EmbedderOptions, load_embedder
from models.embedder.embedder_config import read_embedder
from models.embedder.onnx import OnnxSession, SessionOptions
from models.embedder.onnx_build import build_export, quantise, verify
from models.embedder.onnx_export import ExportOptions, cache_entry, exported, fingerprint
from models.embedder.torch_modules import build, pooled
from models.errors import ModelLoadError
from tests.models import checkpoints

LENGTHS = (9, 4, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The exporter's own warnings are not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    path.mkdir()
    return path


def texts(vocab_size: int, pad_id: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(4, vocab_size, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
        ids[row, length:] = pad_id
    return ids, mask


def test_two_that_start_at_once_share_one_export_that_equals_torch(folder: Path) -> None:
    """Through the process that does it for a worker, and with what an interrupted one left behind."""
    checkpoints.bert(folder)
    entry = cache_entry(folder, ExportOptions())
    left = entry.parent / f".{entry.name}.partial-1"
    left.mkdir(parents=True)
    (left / "text.onnx").write_bytes(b"half")
    start = (
        "import sys; from models.embedder.onnx_export import *; exported(Path(sys.argv[1]), ExportOptions(), threads=1)"
    )
    children = [subprocess.Popen([sys.executable, "-c", start, str(folder)], env=os.environ) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert [path.name for path in entry.parent.iterdir() if path.is_dir()] == [entry.name]

    ids, mask = texts(200)
    embedder = load_embedder(folder, EmbedderOptions(device="cpu", dtype="float32"))
    found = embedder.texts(ids.numpy(), mask.numpy())
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    wanted = torch.nn.functional.normalize(pooled(states, mask, "mean"), dim=-1)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)


def test_other_weights_other_options_another_export(folder: Path, tmp_path: Path) -> None:
    checkpoints.bert(folder)
    other = tmp_path / "other"
    other.mkdir()
    checkpoints.bert(other, seed=1)
    assert fingerprint(folder) == fingerprint(folder)
    assert fingerprint(folder) != fingerprint(other)
    options = [ExportOptions(), ExportOptions(dtype="float16"), ExportOptions(quantization="int8")]
    assert len({cache_entry(path, each) for path in (folder, other) for each in options}) == 6
    before = cache_entry(folder, ExportOptions())
    config = json.loads((folder / "config.json").read_text())
    checkpoints.write(folder / "config.json", {**config, "layer_norm_eps": 1e-3})
    assert cache_entry(folder, ExportOptions()) != before


def test_a_checkpoint_that_cannot_be_exported_says_why(folder: Path) -> None:
    checkpoints.bert(folder, labels=3)
    with pytest.raises(ModelLoadError, match="3 labels"):
        exported(folder, ExportOptions(), threads=1)
    assert not cache_entry(folder, ExportOptions()).exists()


def test_a_cross_encoder_a_graph_that_disagrees_and_one_in_int8(folder: Path, tmp_path: Path) -> None:
    checkpoints.bert(folder, labels=1)
    build_export(folder, ExportOptions(), tmp_path, 1)
    session = OnnxSession(tmp_path / "text.onnx", SessionOptions())
    ids, mask = texts(200)
    types = (torch.arange(max(LENGTHS)) >= 3).long() * mask
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    numpy_inputs = {name: value.numpy() for name, value in inputs.items()}
    (found,) = session.run(numpy_inputs)
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = torch.sigmoid(model(**inputs).logits)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)

    # The same graph beside another model: the check that every export has to pass.
    config = read_embedder(folder)
    reference = build(folder, config, dtype=torch.float32)["text"]
    verify(reference, config, "text", tmp_path / "text.onnx", ExportOptions())
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.5)
    with pytest.raises(ModelLoadError, match="differs from torch"):
        verify(reference, config, "text", tmp_path / "text.onnx", ExportOptions())

    # Weights in int8 stay near, and rows still don't touch one another.
    (tmp_path / "int8").mkdir()
    small = shutil.copy(tmp_path / "text.onnx", tmp_path / "int8" / "text.onnx")
    quantise(small, "int8")
    (coarse,) = OnnxSession(small, SessionOptions()).run(numpy_inputs)
    assert 0 < np.abs(coarse - found).max() < 5e-3
    (alone,) = OnnxSession(small, SessionOptions()).run({k: v[2:, : LENGTHS[2]] for k, v in numpy_inputs.items()})
    assert np.abs(alone - coarse[2:]).max() < 1e-4


def test_the_form_for_a_gpu_stays_near(folder: Path, tmp_path: Path) -> None:
    """float16, with one Attention operator a layer; pooling and the length of a vector are float32's."""
    options = ExportOptions(dtype="float16")
    checkpoints.bert(folder)
    build_export(folder, options, tmp_path, 1)
    operators = [node.op_type for node in onnx.load(tmp_path / "text.onnx").graph.node]
    assert operators.count("Attention") == 1
    ids, mask = texts(200)
    session = OnnxSession(tmp_path / "text.onnx", SessionOptions())
    (found,) = session.run({"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    reference = build(folder, read_embedder(folder), dtype=torch.float32)["text"]
    with torch.no_grad():
        wanted = reference(ids, mask).numpy()
    assert (found * wanted).sum(1).min() >= 0.999
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
