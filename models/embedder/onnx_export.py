"""A checkpoint's ONNX graphs: exported once into the cache, checked against torch, and only then used.

The export runs in a process of its own (`models.embedder.onnx_exporter`), so that a worker never has torch in its
memory and starts in the time that ONNX Runtime needs. Two that want the same export wait for one another; one that was
interrupted leaves nothing that is taken for whole (`models.files.cache`).
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from models.errors import ModelLoadError
from models.files.cache import cache_root

# Of this exporter: raise it whenever the same checkpoint would give another graph.
VERSION = 3

Quantization = Literal["none", "int8", "int8_dynamic"]

ROOT = str(Path(__file__).parents[2])  # where the child finds this code, whatever its working directory is
REFUSED = 3  # exit status of a child whose standard output says why, for the operator


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What makes two exports of one checkpoint different."""

    dtype: Literal["float32", "float16"] = "float32"
    quantization: Quantization = "none"


def exported(path: Path, options: ExportOptions, *, threads: int) -> Path:
    """The folder of a checkpoint's graphs, `text.onnx` and perhaps `image.onnx`; exported now if it has not been.

    Raises ModelLoadError where the checkpoint can't be exported, or the graph does not agree with torch.
    """
    entry = cache_entry(path, options)
    if not entry.is_dir():
        _run_child(path, options, threads)
    return entry


def cache_entry(path: Path, options: ExportOptions) -> Path:
    """Where the export is or will be: other weights, another exporter or other options make another folder."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name)[:64]
    key = hashlib.sha256(fingerprint(path).encode())
    key.update(json.dumps([VERSION, asdict(options)], sort_keys=True).encode())
    return cache_root() / "onnx" / f"{name}-{key.hexdigest()[:16]}"


def fingerprint(path: Path) -> str:
    """Of all that a graph is made from: weights and configuration, by content."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and (file.suffix in (".safetensors", ".bin") or file.name.endswith("config.json")):
            digest.update(f"{file.relative_to(path)}\0".encode())
            with open(file, "rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def _run_child(path: Path, options: ExportOptions, threads: int) -> None:
    argument = json.dumps({"path": str(path.resolve()), "options": asdict(options), "threads": threads})
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",  # a model folder is whole
    }
    command = [sys.executable, "-P", "-m", "models.embedder.onnx_exporter", argument]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if child.returncode == REFUSED:
        raise ModelLoadError(child.stdout.strip())
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise ModelLoadError(f"{path.name} could not be exported to ONNX: {last}")
