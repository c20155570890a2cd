"""The other libraries' own environment: `.venv-bench`, made when it is missing."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

from tests.benchmarks.processes import ROOT, MeasurementFailed

DIRECTORY = ROOT / ".venv-bench"
PYTHON = DIRECTORY / "bin" / "python"
PACKAGES = ("sentence-transformers[onnx]", "fastembed")

_PROBE = "import sentence_transformers, fastembed, optimum.onnxruntime"


def prepare(say: Callable[[str], None]) -> str:
    """The environment's python; torch in it is of our own version. Raises MeasurementFailed."""
    if not _works():
        say(f"installing {', '.join(PACKAGES)} in {DIRECTORY.name} (minutes, once)")
        subprocess.run([sys.executable, "-m", "venv", str(DIRECTORY)], check=True)
        torch = f"torch=={version('torch').partition('+')[0]}"
        install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-cache-dir", torch, *PACKAGES]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode or not _works():
            raise MeasurementFailed(f"{', '.join(PACKAGES)} could not be installed: {done.stderr.strip()[-500:]}")
    return str(PYTHON)


def _works() -> bool:
    return PYTHON.exists() and not subprocess.run([PYTHON, "-c", _PROBE], capture_output=True).returncode
