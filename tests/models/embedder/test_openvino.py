"""Which precision a text encoder gets, and what the runtime behind it must not do."""

import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.embedder import openvino, reference_vectors
from models.embedder.embedder import Embedder, EmbedderOptions, load_embedder
from models.embedder.onnx import OnnxSession, SessionOptions
from models.embedder.openvino import OpenVinoSession
from models.embedder.reference_vectors import ReferenceBatch
from models.errors import ModelLoadError
from tests.models.checkpoints import write

DIMENSIONS = 3
WEIGHTS = [1.0, 0.5, 0.25]  # exact in bfloat16, as small ids are


def vectors_graph(file: Path) -> Path:
    """[rows, length] ids -> [rows, 3]: their masked sum by three weights, through a product of matrices."""
    shape = ["rows", "length"]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, shape)
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, shape)
    output = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["rows", DIMENSIONS])
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [1, DIMENSIONS], WEIGHTS)
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["masked"]),
        helper.make_node("Cast", ["masked"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axes"], ["sums"], keepdims=1),
        helper.make_node("MatMul", ["sums", "weights"], ["vectors"]),
    ]
    graph = helper.make_graph(nodes, "vectors", [ids, mask], [output], [weights, axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), file)
    return file


def some_inputs(rows: int, length: int = 16) -> dict[str, NDArray[np.int64]]:
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 3
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


# --- which precision --------------------------------------------------------------------------------------------------


class Coarse(OnnxSession):
    """Stands for OpenVINO's session, where that is not to be had. `factor`: what it gets wrong."""

    streams = 2
    multiple = 16
    factor: ClassVar = np.array([1, 1, 1])

    def __init__(self, file: Path, threads: int) -> None:
        super().__init__(file, SessionOptions(threads=threads))
        self.provider = "coarse"

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: list[str] | None = None) -> list[NDArray[np.float32]]:
        return [found * self.factor for found in super().run(inputs, outputs)]


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that has been exported, on a machine that has what bfloat16 needs."""
    export = tmp_path / "export"
    export.mkdir()
    session = OnnxSession(vectors_graph(export / "text.onnx"), SessionOptions())
    inputs = some_inputs(3)
    (vectors,) = session.run(inputs)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    reference_vectors.save(export, [ReferenceBatch(inputs["input_ids"], inputs["attention_mask"], vectors)])
    config = {"model_type": "bert", "hidden_size": DIMENSIONS, "vocab_size": 9, "max_position_embeddings": 64}
    write(tmp_path / "config.json", config)
    monkeypatch.setattr("models.embedder.embedder.exported", lambda path, options, threads: export)
    monkeypatch.setattr("models.embedder.openvino.missing", lambda: None)
    monkeypatch.setattr("models.embedder.embedder.OpenVinoSession", Coarse)
    return tmp_path


def load(checkpoint: Path, **options: Any) -> Embedder:
    return load_embedder(checkpoint, EmbedderOptions(device="cpu", **options))


def precision(embedder: Embedder) -> tuple[str, str, int, int]:
    return embedder.details["dtype"], embedder.details["provider"], embedder.multiple, embedder.streams


FLOAT32 = ("float32", "CPUExecutionProvider", 1, 1)
BFLOAT16 = ("bfloat16", "coarse", 16, 2)


def test_bfloat16_is_taken_where_it_agrees(checkpoint: Path) -> None:
    assert precision(load(checkpoint)) == BFLOAT16
    assert precision(load(checkpoint, dtype="bfloat16")) == BFLOAT16
    assert precision(load(checkpoint, dtype="float32")) == FLOAT32
    assert precision(load(checkpoint, quantization="int8")) == FLOAT32


def test_where_it_does_not_agree_float32_is_served_with_one_warning(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Coarse, "factor", np.array([1, 1, 1.1]))
    with caplog.at_level(logging.INFO):
        assert precision(load(checkpoint)) == FLOAT32
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "float32, not in bfloat16: cosine 0.99" in record.getMessage()
    with pytest.raises(ModelLoadError, match=r"can't run in bfloat16: cosine 0\.99"):
        load(checkpoint, dtype="bfloat16")


def test_a_graph_that_the_runtime_does_not_read_is_served_in_float32(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(file: Path, threads: int) -> OpenVinoSession:
        raise ModelLoadError(f"{file.name} has an operator of tomorrow")

    monkeypatch.setattr("models.embedder.embedder.OpenVinoSession", unreadable)
    assert precision(load(checkpoint)) == FLOAT32
    assert "operator of tomorrow" in caplog.text


@pytest.mark.parametrize("reason", ["the processor has no AMX for it", "OpenVINO is not installed"])
def test_a_machine_without_it_serves_float32_and_says_so(
    checkpoint: Path, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("models.embedder.openvino.missing", lambda: reason)
    with caplog.at_level(logging.INFO):
        assert precision(load(checkpoint)) == FLOAT32
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert reason in record.getMessage()
    with pytest.raises(ModelLoadError, match=reason):
        load(checkpoint, dtype="bfloat16")


def test_kinds_that_it_is_not_for(checkpoint: Path) -> None:
    config = {"model_type": "bert", "hidden_size": DIMENSIONS, "vocab_size": 9, "max_position_embeddings": 50}
    write(checkpoint / "config.json", config)
    assert precision(load(checkpoint)) == FLOAT32  # a text of 50 tokens has no room for padding
    with pytest.raises(ModelLoadError, match="50 tokens"):
        load(checkpoint, dtype="bfloat16")
    scorer = {**config, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "relevant"}}
    write(checkpoint / "config.json", scorer)
    with pytest.raises(ModelLoadError, match="encoders of texts alone"):
        load(checkpoint, dtype="bfloat16")


def test_what_a_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr("models.embedder.openvino.CPUINFO", cpuinfo)
    assert "AMX" in str(openvino.missing())  # the system does not tell
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_int8\n")
    assert "AMX" in str(openvino.missing())
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu amx_bf16 amx_tile\n\nprocessor\t: 1\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert openvino.missing() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert openvino.missing() == "OpenVINO is not installed"


# --- the runtime ------------------------------------------------------------------------------------------------------


requires_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")


@requires_openvino
def test_a_session_gives_what_onnx_runtime_gives_to_two_threads_at_once(tmp_path: Path) -> None:
    file = vectors_graph(tmp_path / "graph.onnx")
    session, plain = OpenVinoSession(file, 2), OnnxSession(file, SessionOptions())
    assert session.inputs == plain.inputs
    assert {name: len(shape) for name, shape in session.outputs.items()} == {"vectors": 2}
    assert session.outputs["vectors"][-1] == DIMENSIONS
    asked = [some_inputs(rows) for rows in range(1, 30)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(session.run, asked))
    for inputs, (rows,) in zip(asked, found, strict=True):
        np.testing.assert_array_equal(rows, plain.run(inputs)[0])


@requires_openvino
def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    (tmp_path / "graph.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelLoadError, match=r"graph\.onnx could not be loaded by OpenVINO"):
        OpenVinoSession(tmp_path / "graph.onnx", 2)


@requires_openvino
def test_importing_the_runtime_tells_nobody(tmp_path: Path) -> None:
    """Its conversion tools would: by a thread that sends, and by an id in the home directory."""
    graph = vectors_graph(tmp_path / "graph.onnx")
    home = tmp_path / "home"
    home.mkdir()
    code = f"""
        import sys, threading
        from pathlib import Path
        events = []
        watched = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen")
        sys.addaudithook(lambda name, arguments: events.append(name) if name in watched else None)
        import numpy as np
        from models.embedder.openvino import OpenVinoSession
        session = OpenVinoSession(Path({str(graph)!r}), 2)
        ids = np.ones((2, 16), np.int64)
        session.run({{"input_ids": ids, "attention_mask": ids}})
        assert not events, events
        assert threading.active_count() == 1, threading.enumerate()
        assert not any(sys.modules.get(name) for name in ("openvino_telemetry", "openvino.tools.ovc"))
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "CI"
    }  # in which it keeps quiet by itself
    environment |= {"HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True, timeout=60)
    assert list(home.rglob("*")) == []
