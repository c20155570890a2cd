"""Does all of it work on this GPU, and how fast: `python scripts/gpu_check.py RESULT.json`, in under five minutes.

Needs no weights and no network. Every check stands for itself: one that fails is recorded with its error, and after a
CUDA error, which leaves a process useless, the others run in a process of their own. Exit status 1: something failed.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from models.privacy import silence  # noqa: E402
from scripts.gpu_checks import others, parity, speed  # noqa: E402
from scripts.gpu_checks.context import Context, Result  # noqa: E402

SECONDS = 270  # after which no further check begins
CHILD_GRACE_S = 120

CHECKS: Mapping[str, Callable[[Context], Result]] = {
    "memory": speed.memory,
    "attention": parity.attention,
    "linears": parity.linears,
    "families": parity.families,
    "llama-1b bfloat16": speed.text(speed.LLAMA_1B, None),
    "qwen-3b bfloat16": speed.text(speed.QWEN_3B, None),
    "llama-1b int4": speed.text(speed.LLAMA_1B, "int4"),
    "qwen-3b int4": speed.text(speed.QWEN_3B, "int4"),
    "image": others.image,
    "whisper": others.whisper,
    "embedding": others.embedding,
}


def facts(device: torch.device) -> Result:
    found: Result = {"torch": torch.__version__, "python": platform.python_version(), "device": str(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "cuda": torch.version.cuda,
            "name": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
        }
    return found


def run(names: Sequence[str], device: torch.device, budget: float) -> dict[str, Result]:
    """Results by name, each with a `status`: ok, failed (with what it found), error, skipped."""
    began = perf_counter()
    results: dict[str, Result] = {}
    for index, name in enumerate(names):
        left = budget - (perf_counter() - began)
        if left <= 0:
            results[name] = {"status": "skipped", "error": f"{budget:.0f} s were over"}
            continue
        results[name] = _one(name, device)
        if results[name].get("lost") and index + 1 < len(names):
            results |= _in_another_process(names[index + 1 :], device, left - results[name]["seconds"])
            break
    return results


def _one(name: str, device: torch.device) -> Result:
    began = perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = CHECKS[name](Context(device, Path(folder), reduced=device.type == "cpu"))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is recorded
        lost = "CUDA error" in str(error)
        found = {"status": "error", "error": f"{type(error).__name__}: {error}", "lost": lost}
        found["traceback"] = traceback.format_exc()
    else:
        found = {"status": "ok" if found.pop("ok") else "failed", **found}
        if device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
    return {**found, "seconds": round(perf_counter() - began, 2)}


def _in_another_process(names: Sequence[str], device: torch.device, budget: float) -> dict[str, Result]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rest.json"
        command = [sys.executable, __file__, str(output), "--device", str(device), "--seconds", str(max(0.0, budget))]
        for name in names:
            command += ["--only", name]
        try:
            subprocess.run(command, timeout=max(0.0, budget) + CHILD_GRACE_S, check=False, stdout=subprocess.DEVNULL)
            rest: dict[str, Result] = json.loads(output.read_text())["checks"]
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            return {name: {"status": "error", "error": f"its process: {error}"} for name in names}
        return rest


def table(results: Mapping[str, Result]) -> str:
    lines = []
    for name, found in results.items():
        lines.append(f"{name:20} {found['status']:8} {found.get('seconds', 0):6.1f} s  {_headline(found)}")
    return "\n".join(lines)


def _headline(found: Result) -> str:
    """What matters most of it, in a few words."""
    if "error" in found and found["status"] in ("error", "skipped"):
        return str(found["error"]).splitlines()[0][:100]
    said = [f"{found['copy_gb_s']:.0f} GB/s"] if "copy_gb_s" in found else []
    for key, value in found.items():
        if key.startswith("decode, "):
            best: dict[str, Any] = value.get("graphs") or value["eager"]
            share = f"{best['share_of_bandwidth']:.0%}"
            said.append(f"{key.removeprefix('decode, ')} {best['tokens_s']:.0f} tokens/s ({share} of bandwidth)")
    if "prefill_tokens_s" in found:
        said.append(f"prefill {found['prefill_tokens_s']:.0f} tokens/s")
    if "families" in found:
        each = found["families"].items()
        said += [f"{name} {'skipped' if 'skipped' in one else 'ok' if one['ok'] else 'FAILED'}" for name, one in each]
    return ", ".join(said)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="where the JSON goes")
    parser.add_argument("--device", default="cuda", help="cpu: a reduced version, which measures nothing")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", action="append", choices=[*CHECKS], help="one of the checks; may be repeated")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; --device cpu tries the script itself")
    if device.type == "cpu":
        torch.set_num_threads(1)  # shapes are too small for more
    results = run(given.only or list(CHECKS), device, given.seconds)
    report = {"device": facts(device), "checks": results}
    given.output.write_text(json.dumps(report, indent=2, default=str) + "\n")
    print(json.dumps(report["device"]))
    print(table(results))
    return int(any(each["status"] in ("failed", "error") for each in results.values()))


if __name__ == "__main__":
    silence(os.environ)
    sys.exit(main())
