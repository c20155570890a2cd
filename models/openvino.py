"""An OpenVINO session for text encoders: matrix products in bfloat16, on processors with tiles for them. Free of torch.

Measured on two cores of a Xeon with AMX, MiniLM: 2.4 times the texts of ONNX Runtime in float32, a text alone as fast,
cosine to float32 at least 0.9999. Without AMX nothing is known of it, so it is not used there.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelLoadError
from models.session import Array

CPUINFO = Path("/proc/cpuinfo")
AMX = "amx_bf16"  # the processor's flag

# A run's rows go to so many streams, each with its share of the threads: on small matrices threads wait for each other
# more than they work. 32 requests of one text: 410 a second with two streams of a thread, 345 with one of two.
STREAMS = 2

# At lengths that are multiples of this, what is behind a text adds exact zeros: its vector is the same to the last bit
# in any batch. At others the sums of a softmax (16 lanes of float32) end in another order, and vectors differ by up to
# 8e-4.
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


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a batch that one stream runs."""

    rows: NDArray[np.intp]
    length: int  # that they are padded to

    @property
    def tokens(self) -> int:
        return len(self.rows) * self.length


class OpenVinoSession:
    """One text graph on the CPU, its products in bfloat16. Not to be run by two threads at once.

    Threads are ours to count; they block when idle and are pinned to no core, since other workers share these.
    """

    provider = "OpenVINO"
    multiple = MULTIPLE

    def __init__(self, file: Path, threads: int) -> None:
        """Raises ModelLoadError."""
        streams = STREAMS if threads % STREAMS == 0 else 1
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": streams,
            "ENABLE_CPU_PINNING": False,
            "ENABLE_HYPER_THREADING": True,  # cores are counted by whoever says `threads`
        }
        core = _runtime().Core()
        try:
            model = core.compile_model(core.read_model(file), "CPU", settings)
        except Exception as error:  # the runtime's exceptions have no common base but this
            raise ModelLoadError(f"{file.name} could not be loaded by OpenVINO: {error}") from error
        self.inputs = frozenset(port.any_name for port in model.inputs)
        self.outputs: dict[str, tuple[int | str | None, ...]] = {
            port.any_name: tuple(None if axis.is_dynamic else axis.get_length() for axis in port.partial_shape)
            for port in model.outputs
        }
        self._places = {name: index for index, name in enumerate(self.outputs)}
        self._requests = [model.create_infer_request() for _ in range(streams)]

    def run(self, inputs: Mapping[str, Array], outputs: list[str] | None = None) -> list[NDArray[np.float32]]:
        """All outputs, or the named ones: one row for each of the inputs. `attention_mask` is among the inputs, and
        is 1 from a text's first token to its last. Raises what the runtime raises."""
        parts = split(inputs["attention_mask"].sum(1), len(self._requests))
        running = list(zip(self._requests, parts, strict=False))
        for request, part in running:
            request.start_async({name: array[part.rows, : part.length] for name, array in inputs.items()})
        for request, _ in running:
            request.wait()
        found: list[NDArray[np.float32]] = []
        for name in outputs or self.outputs:
            pieces = [request.get_output_tensor(self._places[name]).data for request, _ in running]
            whole = np.empty((sum(map(len, pieces)), *pieces[0].shape[1:]), np.float32)
            for piece, (_, part) in zip(pieces, running, strict=True):
                whole[part.rows] = piece
            found.append(whole)
        return found

    def padded_tokens(self, lengths: Sequence[int]) -> int:
        return sum(part.tokens for part in split(np.asarray(lengths), len(self._requests)))


def split(lengths: NDArray[np.generic], streams: int) -> list[Part]:
    """Texts by length, in one part or two of about equal work: the longer part is as short as it can be."""
    order = np.argsort(lengths, kind="stable")
    padded = -(-np.asarray(lengths, np.int64)[order] // MULTIPLE) * MULTIPLE
    rows = len(order)
    if streams == 1 or rows == 1:
        return [Part(order, int(padded[-1]))]
    counts = np.arange(1, rows)  # of the first part's rows
    longer = np.maximum(counts * padded[:-1], (rows - counts) * padded[-1])
    cut = int(counts[np.argmin(longer)])
    return [Part(order[:cut], int(padded[cut - 1])), Part(order[cut:], int(padded[-1]))]


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
