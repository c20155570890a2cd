from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from models.embedder.embedder import EmbedderOptions, export_options, load_embedder, ready_made
from models.embedder.onnx import OnnxSession, SessionOptions
from models.embedder.onnx_export import ExportOptions
from models.errors import ModelLoadError
from pipelines.runtime.faults import device_is_lost
from tests.models.checkpoints import write

DIMENSIONS = 3


def states_graph(file: Path) -> Path:
    """A foreign graph that ends in token states [rows, length, 3]: each component is the token's id plus its number."""
    shape = ["rows", "length"]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, shape)
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, shape)
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, DIMENSIONS])
    offsets = helper.make_tensor("offsets", TensorProto.FLOAT, [DIMENSIONS], [0.0, 1.0, 2.0])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [2])
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "axes"], ["column"]),
        helper.make_node("Add", ["column", "offsets"], ["last_hidden_state"]),
    ]
    graph = helper.make_graph(nodes, "states", [ids, mask], [output], [offsets, axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, file)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ready-made graph with its description, as hub repositories have them."""
    (tmp_path / "onnx").mkdir()
    states_graph(tmp_path / "onnx" / "model.onnx")
    (tmp_path / "tokenizer.json").write_text("{}")
    config = {"model_type": "bert", "hidden_size": 7, "vocab_size": 100, "max_position_embeddings": 64}
    write(tmp_path / "config.json", config)
    return tmp_path


IDS = np.array([[1, 2, 3], [4, 9, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])


def test_buffers_that_stay_on_the_device_give_what_a_plain_run_gives(tmp_path: Path) -> None:
    session = OnnxSession(states_graph(tmp_path / "g.onnx"), SessionOptions(threads=1))
    for rows, length in ((2, 3), (1, 2), (4, 8), (1, 1)):  # smaller, larger, smaller again: one buffer for all
        ids = np.arange(rows * length).reshape(rows, length)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        (plain,) = session.run(inputs)
        (bound,) = session.run_bound(inputs, list(session.outputs), ort.RunOptions(), "cpu", 0)
        np.testing.assert_array_equal(plain, bound)


def test_a_lost_device_is_told_as_torch_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = OnnxSession(states_graph(tmp_path / "g.onnx"), SessionOptions(threads=1))

    class Lost:
        text = "CUDA failure 700: an illegal memory access was encountered"

        def run(self, *_: object) -> None:
            raise ort.capi.onnxruntime_pybind11_state.Fail(self.text)

    monkeypatch.setattr(session, "_session", Lost())
    with pytest.raises(RuntimeError) as lost:
        session.run({})
    assert device_is_lost(lost.value)
    monkeypatch.setattr(Lost, "text", "CUDA failure 2: out of memory")
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail) as full:
        session.run({})
    assert not device_is_lost(full.value)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("pooling_mode_mean_tokens", [[2, 3, 4], [6.5, 7.5, 8.5]]),
        ("pooling_mode_cls_token", [[1, 2, 3], [4, 5, 6]]),
        ("pooling_mode_max_tokens", [[3, 4, 5], [9, 10, 11]]),
        ("pooling_mode_lasttoken", [[3, 4, 5], [9, 10, 11]]),
        ("pooling_mode_mean_sqrt_len_tokens", [[2, 3, 4], [6.5, 7.5, 8.5]]),  # the same direction as the mean
    ],
)
def test_a_ready_made_graph_of_token_states_is_pooled_and_normalised(
    folder: Path, pooling: str, expected: list[list[float]]
) -> None:
    layout = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}]
    write(folder / "modules.json", layout)
    (folder / "1").mkdir()
    write(folder / "1" / "config.json", {pooling: True})
    embedder = load_embedder(folder, EmbedderOptions(device="cpu"))
    assert embedder.config.dimensions == DIMENSIONS
    found = embedder.texts(IDS, MASK)
    wanted = np.array(expected) / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_file_can_be_named_itself(folder: Path) -> None:
    file = folder / "onnx" / "model.onnx"
    assert ready_made(file) == (file, folder)
    assert load_embedder(file, EmbedderOptions(device="cpu")).texts(IDS, MASK).shape == (2, DIMENSIONS)
    with pytest.raises(ModelLoadError, match="as it is"):
        load_embedder(file, EmbedderOptions(device="cpu", quantization="int8"))
    with pytest.raises(ModelLoadError, match=r"\.onnx"):
        ready_made(folder / "tokenizer.json")


def test_a_broken_graph_is_named(folder: Path) -> None:
    (folder / "onnx" / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelLoadError, match=r"model\.onnx could not be loaded"):
        load_embedder(folder, EmbedderOptions(device="cpu"))


def test_weights_are_preferred_to_a_graph_beside_them(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    assert ready_made(folder) is None


def test_what_a_device_can_run() -> None:
    assert export_options(EmbedderOptions(), "cpu") == ExportOptions()
    assert export_options(EmbedderOptions(), "cuda") == ExportOptions(dtype="float16")
    assert export_options(EmbedderOptions(dtype="float32"), "cuda:1").dtype == "float32"
    assert (
        export_options(EmbedderOptions(dtype="bfloat16"), "cpu") == ExportOptions()
    )  # the products are, not the graph
    with pytest.raises(ModelLoadError, match="run on a CPU"):
        export_options(EmbedderOptions(dtype="bfloat16"), "cuda")
    with pytest.raises(ModelLoadError, match="int8 or in bfloat16"):
        export_options(EmbedderOptions(dtype="bfloat16", quantization="int8"), "cpu")
    with pytest.raises(ModelLoadError, match="run on a CPU"):
        export_options(EmbedderOptions(quantization="int8"), "cuda")
    with pytest.raises(ModelLoadError, match="run on a GPU"):
        export_options(EmbedderOptions(dtype="float16"), "cpu")


def test_a_gpu_that_is_not_there_is_an_error_and_no_fallback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.embedder.embedder.cuda_devices", lambda: 0)
    with pytest.raises(ModelLoadError, match="no GPU"):
        load_embedder(folder, EmbedderOptions(device="cuda"))
    assert load_embedder(folder, EmbedderOptions(device="auto")).details["device"] == "cpu"
