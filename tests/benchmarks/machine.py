"""What the figures were measured on, and with."""

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
from msgspec import Struct

from gateway import __version__
from models.device import available_cpus
from tests.benchmarks import llama_environment
from tests.benchmarks.harness import model_file

_CPUINFO = Path("/proc/cpuinfo")
PACKAGES = ("torch", "transformers", "litestar", "uvicorn", "uvloop", "msgspec")


class Machine(Struct, frozen=True):
    date: str
    processor: str
    cores: int
    memory_gib: float
    instructions: str
    system: str
    python: str
    model: str
    versions: dict[str, str]


def describe() -> Machine:
    info = _cpuinfo()
    flags = set(info.get("flags", "").split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        processor=info.get("model name", platform.processor()),
        cores=available_cpus(),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        instructions=" ".join(name for name in wanted if name in flags),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        model=model_file().name,
        versions={
            "multimodal-gateway": __version__,
            **{name: version(name) for name in PACKAGES},
            "llama-cpp-python": llama_environment.VERSION,
        },
    )


def _cpuinfo() -> dict[str, str]:
    """Of the first processor; empty where the system has no such file."""
    if not _CPUINFO.exists():
        return {}
    first = _CPUINFO.read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
