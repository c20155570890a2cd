"""The script's own logic, over a CPU: what it measures there means nothing."""

import json
from pathlib import Path

import pytest
import torch

from scripts import gpu_check
from scripts.gpu_checks.context import Context, Result

TEXT = ["memory", "attention", "linears", "families", "llama-1b bfloat16"]


def test_the_checks_of_text_models_pass_and_say_what_they_measured(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    only = [word for name in TEXT for word in ("--only", name)]
    assert gpu_check.main([str(output), "--device", "cpu", *only]) == 0
    report = json.loads(output.read_text())
    assert report["device"]["device"] == "cpu"
    checks = report["checks"]
    assert list(checks) == TEXT
    assert {name: each["status"] for name, each in checks.items()} == dict.fromkeys(TEXT, "ok")
    assert checks["families"]["families"]["Llama"]["float32"]["error"] <= 1e-3
    assert checks["attention"]["float32"]["varlen_missing"] == "there is no CUDA device"
    for rows in (1, 3):
        measured = checks["llama-1b bfloat16"][f"decode, {rows} rows"]
        assert measured["graphs_error"] <= 0.05
        assert measured["eager"]["tokens_s"] > 0
        assert measured["graphs"]["share_of_bandwidth"] > 0


def test_a_check_that_breaks_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(context: Context) -> Result:
        raise RuntimeError("no kernel for that")

    checks = {"breaks": breaks, "fails": lambda context: {"ok": False, "x": 1}, "works": lambda context: {"ok": True}}
    monkeypatch.setattr(gpu_check, "CHECKS", checks)
    results = gpu_check.run(list(checks), torch.device("cpu"), 60)
    assert [each["status"] for each in results.values()] == ["error", "failed", "ok"]
    assert "no kernel for that" in results["breaks"]["traceback"]
    told = gpu_check.table(results).splitlines()
    assert len(told) == 3
    assert "RuntimeError: no kernel for that" in told[0]


def test_no_check_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "CHECKS", {"late": lambda context: {"ok": True}})
    assert gpu_check.run(["late"], torch.device("cpu"), 0)["late"]["status"] == "skipped"


def test_after_a_lost_device_the_others_run_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(context: Context) -> Result:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    asked: list[tuple[str, ...]] = []

    def elsewhere(names: list[str], device: torch.device, budget: float) -> dict[str, Result]:
        asked.append(tuple(names))
        return {name: {"status": "ok", "seconds": 1.0} for name in names}

    monkeypatch.setattr(gpu_check, "CHECKS", {"lost": lost, "second": lost, "third": lost})
    monkeypatch.setattr(gpu_check, "_in_another_process", elsewhere)
    results = gpu_check.run(["lost", "second", "third"], torch.device("cpu"), 60)
    assert asked == [("second", "third")]
    assert [each["status"] for each in results.values()] == ["error", "ok", "ok"]


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        gpu_check.main([str(tmp_path / "result.json")])
    assert "torch finds no CUDA device" in capsys.readouterr().err
