"""Which device, which type, how many threads. Torch is imported only by what needs it."""

import ctypes
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import ModelLoadError

if TYPE_CHECKING:
    import torch


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
