"""An OpenVINO session for text encoders: matrix products in bfloat16, on processors with tiles for them.

It is faster than ONNX Runtime in float32 where many texts come, and slower for a short text that comes alone, which has
one core. Without AMX nothing is known of it, so it is not used there.
"""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.embedder.session import Array
from models.errors import ModelLoadError

CPUINFO = Path("/proc/cpuinfo")
AMX = "amx_bf16"  # the processor's flag

# Runs at once, each with its share of the threads: on small matrices threads wait for each other more than they work.
# Batches of what 32 clients have waiting: 410 texts a second, with both threads on one run 360.
STREAMS = 2

# Texts are padded to multiples of this. At those lengths what is behind a text adds exact zeros, and its vector is the
# same to the last bit at each of them; at others a softmax (16 lanes of float32) sums in another order, and vectors
# differ.
MULTIPLE = 16

# What `import openvino` must not find. Its conversion tools report their import to Google Analytics from a thread, and
# write an id into the home directory, unasked; the package itself goes on where they are absent.
UNWANTED = ("openvino.tools.ovc", "openvino_telemetry")


def missing() -> str | None:
    """Why texts can't run in bfloat16 on this machine; None: they can."""
    if AMX not in _processor_flags():
        return "the processor has no AMX for it"
    if importlib.util.find_spec("openvino") is None:
        return "OpenVINO is not installed"
    return None


class OpenVinoSession:
    """One text graph on the CPU, its products in bfloat16. Two threads may run it at once.

    Threads are ours to count; they block when idle and are pinned to no core, since other workers share these.
    """

    provider = "OpenVINO"
    multiple = MULTIPLE

    def __init__(self, file: Path, threads: int) -> None:
        """Raises ModelLoadError."""
        self.streams = self.concurrency = STREAMS if threads % STREAMS == 0 else 1
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": self.streams,
            "ENABLE_CPU_PINNING": False,
        }
        try:
            core = _runtime().Core()
            model = core.compile_model(core.read_model(file), "CPU", settings)
        except Exception as error:  # the runtime's exceptions have no common base but this; ImportError too
            raise ModelLoadError(f"{file.name} could not be loaded by OpenVINO: {error}") from error
        self.inputs = frozenset(port.any_name for port in model.inputs)
        self.outputs: dict[str, tuple[int | str | None, ...]] = {
            port.any_name: tuple(None if axis.is_dynamic else axis.get_length() for axis in port.partial_shape)
            for port in model.outputs
        }
        self._free: SimpleQueue[Any] = SimpleQueue()  # infer requests, one a stream
        for _ in range(self.streams):
            self._free.put(model.create_infer_request())

    def run(self, inputs: Mapping[str, Array], outputs: list[str] | None = None) -> list[NDArray[np.float32]]:
        """All outputs, or the named ones, on the host. Raises what the runtime raises."""
        request = self._free.get()
        try:
            request.infer(dict(inputs))
            return [request.get_tensor(name).data.copy() for name in outputs or self.outputs]
        finally:
            self._free.put(request)


def _runtime() -> ModuleType:
    for name in UNWANTED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: an import of it fails
    import openvino

    found: ModuleType = openvino
    return found


def _processor_flags() -> frozenset[str]:
    """Empty where the system doesn't tell."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
