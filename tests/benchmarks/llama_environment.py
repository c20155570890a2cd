"""The other engine's own environment: `.venv-llama`, made when it is missing."""

import os
import subprocess
import sys
from collections.abc import Callable

from tests.benchmarks.processes import ROOT, MeasurementFailed

VERSION = "0.3.36"
DIRECTORY = ROOT / ".venv-llama"
PYTHON = DIRECTORY / "bin" / "python"

# GCC 12 drops most of the AMX tile configuration as dead stores (its intrinsic claims to read 8 of the 64 bytes): on a
# machine with AMX the first prompt would end in an illegal instruction.
_FLAGS = "-fno-tree-dse -fno-dse"
_BUILD = {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF", "CFLAGS": _FLAGS, "CXXFLAGS": _FLAGS}
_PROBE = """
import sys, llama_cpp
assert llama_cpp.__version__ == sys.argv[1]
llama = llama_cpp.Llama(sys.argv[2], n_ctx=64, verbose=False)
llama.eval(list(range(1000, 1032)))
"""


class Unavailable(MeasurementFailed):
    """It can't be built or run here; the text says why."""


def prepare(model: str, say: Callable[[str], None]) -> str:
    """The environment's python, llama-cpp-python built for this machine in it (minutes, once). Raises Unavailable."""
    if not _works(model):
        say(f"building llama-cpp-python {VERSION} in {DIRECTORY.name} (several minutes, once)")
        subprocess.run([sys.executable, "-m", "venv", str(DIRECTORY)], check=True)
        install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-cache-dir"]
        built = subprocess.run(
            [*install, f"llama-cpp-python=={VERSION}"], env={**os.environ, **_BUILD}, capture_output=True, text=True
        )
        if built.returncode:
            raise Unavailable(f"llama-cpp-python {VERSION} was not built: {built.stderr.strip()[-500:]}")
        if not _works(model):
            raise Unavailable(f"llama-cpp-python {VERSION} was built, but does not run the model here")
    return str(PYTHON)


def _works(model: str) -> bool:
    return (
        PYTHON.exists() and not subprocess.run([PYTHON, "-c", _PROBE, VERSION, model], capture_output=True).returncode
    )
