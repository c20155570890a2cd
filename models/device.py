"""Which device, which type, how many threads. Torch is imported only by what needs it."""

import ctypes
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from models.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

CPU_LEVEL = "GATEWAY_CPU_LEVEL"  # of the environment
CpuLevel = Literal["float32", "bfloat16", "native"]
LEVELS: tuple[CpuLevel, ...] = get_args(CpuLevel)  # each has what those before it have


def cpu_level() -> CpuLevel:
    """How much of the processor text models may use: `native`, the native library and whatever else there is;
    `bfloat16`, torch's kernels alone; `float32`, these as on a processor that doesn't multiply in bfloat16.

    The highest, but where the environment says less, for tests and support. Raises ModelLoadError.
    """
    wanted = os.environ.get(CPU_LEVEL) or LEVELS[-1]
    for level in LEVELS:
        if level == wanted:
            return level
    raise ModelLoadError(f"{CPU_LEVEL} is {wanted!r}, not one of {', '.join(LEVELS)}")


def multiplies_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor has instructions for products in bfloat16, and may use them."""
    if cpu_level() == "float32":
        return False
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())


def available_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that this process may use at once: its affinity, capped by the control group's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(affinity, _cgroup_quota(cgroup) or affinity))


def _cgroup_quota(cgroup: Path) -> int | None:
    """CPUs by quota, rounded up (version 2, then 1); None: unlimited."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota == "max" or int(quota) <= 0:
        return None
    return math.ceil(int(quota) / int(period))


def cuda_driver_devices() -> int:
    """How many GPUs the driver shows; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def choose_device(wanted: str) -> "torch.device":
    """`auto`: CUDA where there is one, else the CPU. Raises ModelLoadError for a device that is not there."""
    import torch

    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ModelLoadError(f"device {wanted!r} is none that torch knows (auto, cpu, cuda, cuda:N)") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelLoadError(f"device {wanted!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type not in ("cpu", "cuda"):
        raise ModelLoadError(f"device {wanted!r} is not supported (auto, cpu, cuda, cuda:N)")
    return device


def choose_dtype(wanted: str | None) -> "torch.dtype":
    """The type of activations, KV cache and dense weights. None: bfloat16, in which the quantised kernels are fast."""
    import torch

    types = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    if wanted is not None and wanted not in types:
        raise ModelLoadError(f"dtype {wanted!r} is not supported ({', '.join(types)})")
    return types[wanted or "bfloat16"]
