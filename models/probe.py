"""What torch finds on this machine, as one line of JSON. A process of its own: `python -m models.probe`."""

import os
import sys
from typing import TypedDict

import msgspec
import torch
from msgspec import Struct

from models.decoder import cuda_graphs
from models.decoder.attention import varlen
from models.decoder.decode_path import BATCHED, VARLEN
from models.decoder.native.library import has_matrix_unit, missing
from models.decoder.weights.linear import has_int4_kernel, packs_bf16
from models.decoder.weights.quantised import GROUP
from models.device import multiplies_bf16
from models.embedder import openvino
from models.privacy import silence

USUAL_HEADS = (8, 4, 128)  # KV heads, queries of each, components: what a model's own are is asked at its start


class Gpu(Struct, frozen=True):
    name: str
    memory_bytes: int
    capability: str  # "9.0"


class Probe(Struct, frozen=True):
    """`int8_cpu`, `int4_cpu`: this build has the weight-only kernels. `bf16_cpu`: the processor multiplies in it.

    `native_missing`: why quantised models decode on torch's kernels; None: they have the native ones.
    """

    torch: str
    threads: int  # what torch would take by itself
    cuda_build: str | None = None
    gpus: list[Gpu] = []
    cuda_error: str | None = None
    cpu_capability: str = ""
    int8_cpu: bool = False
    int4_cpu: bool = False
    bf16_cpu: bool = False
    native_missing: str | None = None
    native_matrix: bool = False  # prompts of such models run on a matrix unit
    gpu_attention: str | None = None  # of decodes, on the first GPU; this and what follows on GPUs is None without one
    varlen_missing: str | None = None  # why not by torch's paged kernel
    graphs_missing: str | None = None  # why decode steps can't be CUDA graphs
    int4_cuda: bool | None = None
    onnx_providers: list[str] = []  # that this ONNX Runtime was built with
    bf16_texts_missing: str | None = None  # why text encoders run in float32 on the CPU; None: they don't


def probe() -> Probe:
    gpus: list[Gpu] = []
    error = None
    try:
        if torch.cuda.is_available():
            for index in range(torch.cuda.device_count()):
                found = torch.cuda.get_device_properties(index)
                gpus.append(Gpu(found.name, found.total_memory, f"{found.major}.{found.minor}"))
    except RuntimeError as caught:  # a driver that does not fit, a device that is gone
        error = str(caught).splitlines()[0]
    on_gpu = {} if error or not gpus else _gpu(torch.device("cuda", 0))
    return Probe(
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        cuda_build=torch.version.cuda,
        gpus=gpus,
        cuda_error=error,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        int8_cpu=_has("_weight_int8pack_mm"),
        int4_cpu=_has("_weight_int4pack_mm_for_cpu"),
        bf16_cpu=packs_bf16() and multiplies_bf16(),
        native_missing=missing(),
        native_matrix=has_matrix_unit(),
        onnx_providers=_onnx_providers(),
        bf16_texts_missing=openvino.missing(),
        **on_gpu,
    )


class _Gpu(TypedDict, total=False):
    gpu_attention: str
    varlen_missing: str | None
    graphs_missing: str | None
    int4_cuda: bool


def _gpu(device: torch.device) -> _Gpu:
    """How text models run on it."""
    why_not = varlen.missing(*USUAL_HEADS, torch.bfloat16, device)
    return _Gpu(
        gpu_attention=(BATCHED if why_not else VARLEN).name,
        varlen_missing=why_not,
        graphs_missing=cuda_graphs.missing(device),
        int4_cuda=has_int4_kernel(GROUP, GROUP, device),
    )


def _onnx_providers() -> list[str]:
    try:
        import onnxruntime
    except ImportError:
        return []
    return list(onnxruntime.get_available_providers())


def _has(operator: str) -> bool:
    return hasattr(torch.ops.aten, operator)


if __name__ == "__main__":
    silence(os.environ)
    sys.stdout.write(msgspec.json.encode(probe()).decode() + "\n")
