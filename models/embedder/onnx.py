"""An ONNX Runtime session: providers, threads, memory, and runs of numpy arrays."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.device import cuda_driver_devices
from models.embedder.session import Array
from models.errors import ModelLoadError

log = logging.getLogger(__name__)

# Runs between two at which unused memory of the arena is given back: freeing at every run costs what it saves.
SHRINK_EVERY = 256
# On a CPU the fused operator takes longer than the addition and the normalisation that it stands for.
SLOW_ON_CPU = ["SkipLayerNormFusion"]
CPU_CONCURRENCY = 2
QUIET = 3  # errors; what a provider can't place is told by `provider`


@dataclass(frozen=True, slots=True)
class SessionOptions:
    threads: int = 1
    device: str = "cpu"  # cpu | cuda | cuda:N
    memory_limit: int | None = None  # bytes that the device's arena may grow to; None: no limit of ours


class OnnxSession:
    """One graph on one device. On a GPU not to be run by two threads at once: buffers are reused. On a CPU two may:
    both have the session's threads, so together they are no faster, but a short run need not wait for a long one.

    Threads are ours to count (ONNX Runtime would take the host's cores, not the container's), they block when idle
    instead of spinning, and the memory pattern planner is off: it plans for one set of shapes, and these change at
    every run.
    """

    streams = 1
    multiple = 1

    def __init__(self, file: Path, options: SessionOptions) -> None:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = options.threads
        settings.inter_op_num_threads = 1
        settings.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        settings.enable_mem_pattern = False
        settings.log_severity_level = QUIET
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings.add_session_config_entry("session.inter_op.allow_spinning", "0")
        try:
            self._session = ort.InferenceSession(
                file,
                settings,
                providers=_providers(options),
                disabled_optimizers=SLOW_ON_CPU if options.device == "cpu" else None,
            )
        except Exception as error:  # the runtime's exceptions have no common base but this
            raise ModelLoadError(f"{file.name} could not be loaded by ONNX Runtime: {error}") from error
        self.provider: str = self._session.get_providers()[0]
        self.inputs: frozenset[str] = frozenset(node.name for node in self._session.get_inputs())
        # Name -> shape; an axis of any size has a name, or None.
        self.outputs: dict[str, tuple[int | str | None, ...]] = {
            node.name: tuple(node.shape) for node in self._session.get_outputs()
        }
        self._device, _, index = options.device.partition(":")
        self.concurrency = CPU_CONCURRENCY if self._device == "cpu" else 1
        self._index = int(index or 0)
        if self._device == "cuda" and self.provider != "CUDAExecutionProvider":
            raise ModelLoadError(f"ONNX Runtime has no CUDA here (it took {self.provider}); its log has the reason")
        self._buffers: dict[str, ort.OrtValue] = {}
        self._runs = 0

    def run(self, inputs: Mapping[str, Array], outputs: list[str] | None = None) -> list[NDArray[np.float32]]:
        """All outputs, or the named ones, on the host.

        Raises RuntimeError("CUDA error: …") where the device is lost, and what else the runtime raises.
        """
        self._runs += 1
        options = ort.RunOptions()
        if self._runs % SHRINK_EVERY == 0:
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", f"{self._device}:{self._index}")
        names = outputs or list(self.outputs)
        try:
            if self._device == "cpu":
                found: list[NDArray[np.float32]] = self._session.run(names, dict(inputs), options)
                return found
            return self.run_bound(inputs, names, options, self._device, self._index)
        except Exception as error:
            # The runtime's text for a sticky CUDA error, put as torch puts it, by which a lost device is known.
            if "CUDA failure" in str(error) and "out of memory" not in str(error):
                raise RuntimeError(f"CUDA error: {error}") from error
            raise

    def run_bound(
        self, inputs: Mapping[str, Array], outputs: list[str], options: ort.RunOptions, device: str, index: int
    ) -> list[NDArray[np.float32]]:
        """A run whose inputs are copied into buffers that stay on the device, and whose outputs come to the host."""
        binding = self._session.io_binding()
        for name, array in inputs.items():
            buffer = self._buffer(name, array, device, index)
            binding.bind_input(name, device, index, array.dtype, array.shape, buffer.data_ptr())
        for name in outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, options)
        found: list[NDArray[np.float32]] = binding.copy_outputs_to_cpu()
        return found

    def _buffer(self, name: str, array: Array, device: str, index: int) -> ort.OrtValue:
        """A flat device buffer that begins with the array's values; it grows by doubling and is never given back."""
        buffer = self._buffers.get(name)
        size = array.size if buffer is None else buffer.shape()[0]
        if buffer is None or size < array.size:
            size = max(array.size, 2 * size if buffer is not None else 0)
            buffer = ort.OrtValue.ortvalue_from_shape_and_type([size], array.dtype, device, index)
            self._buffers[name] = buffer
        flat = np.zeros(size, array.dtype)
        flat[: array.size] = array.reshape(-1)
        buffer.update_inplace(flat)
        return buffer


def _providers(options: SessionOptions) -> list[str | tuple[str, dict[str, str]]]:
    kind, _, index = options.device.partition(":")
    if kind != "cuda":
        return ["CPUExecutionProvider"]
    settings = {
        "device_id": index or "0",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    if options.memory_limit is not None:
        settings["gpu_mem_limit"] = str(options.memory_limit)
    ort.preload_dlls()  # CUDA and cuDNN as the nvidia-* packages carry them
    return [("CUDAExecutionProvider", settings), "CPUExecutionProvider"]


def cuda_devices() -> int:
    """How many GPUs the driver shows; 0 without a driver, or with a runtime that was built without CUDA."""
    return cuda_driver_devices() if "CUDAExecutionProvider" in ort.get_available_providers() else 0
