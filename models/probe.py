"""What torch finds on this machine, as one line of JSON. A process of its own: `python -m models.probe`."""

import sys

import msgspec
import torch
from msgspec import Struct

from models.linear import packs_bf16
from models.native.library import missing


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
    return Probe(
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        cuda_build=torch.version.cuda,
        gpus=gpus,
        cuda_error=error,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        int8_cpu=_has("_weight_int8pack_mm"),
        int4_cpu=_has("_weight_int4pack_mm_for_cpu"),
        bf16_cpu=packs_bf16(),
        native_missing=missing(),
    )


def _has(operator: str) -> bool:
    return hasattr(torch.ops.aten, operator)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(probe()).decode() + "\n")
