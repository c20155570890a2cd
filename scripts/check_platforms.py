"""Are there wheels of everything for each platform: `python scripts/check_platforms.py`. Asks the package index.

Only metadata is fetched. Exit status 1: on some platform something can't be installed in its pinned version.
"""

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC = ("2_5", "2_12", "2_17", "2_24", "2_26", "2_27", "2_28")

# Name -> what markers see there, and the tags of wheels that run there.
PLATFORMS: Mapping[str, tuple[Mapping[str, str], list[str]]] = {
    "Linux x86-64": (
        {"sys_platform": "linux", "platform_machine": "x86_64"},
        [f"manylinux_{version}_x86_64" for version in GLIBC],
    ),
    "Linux ARM": (
        {"sys_platform": "linux", "platform_machine": "aarch64"},
        [f"manylinux_{version}_aarch64" for version in GLIBC],
    ),
    "macOS ARM": (
        {"sys_platform": "darwin", "platform_machine": "arm64"},
        [f"macosx_{version}_0_{kind}" for version in (11, 12, 13, 14) for kind in ("arm64", "universal2")]
        + ["macosx_10_9_universal2", "macosx_10_13_universal2"],
    ),
}


def requirements(markers: Mapping[str, str], python: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    seen = {**markers, "python_version": python, "extra": ""}
    found = [Requirement(text) for text in project["dependencies"]]
    return [f"{each.name}{each.specifier}" for each in found if each.marker is None or each.marker.evaluate(seen)]


def resolve(wanted: list[str], python: str, tags: list[str], *options: str) -> str | None:
    """Why pip finds no wheels; None: it does."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--target",
            folder,
        ]
        command += ["--only-binary=:all:", "--python-version", python, "--constraint", str(ROOT / "constraints.txt")]
        command += [option for tag in tags for option in ("--platform", tag)]
        done = subprocess.run([*command, *options, *wanted], capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return None if done.returncode == 0 else "\n".join(errors) or done.stderr


def main() -> int:
    failed = False
    for (name, (markers, tags)), python in product(PLATFORMS.items(), PYTHONS):
        wanted = requirements(markers, python)
        torch = [each for each in wanted if each.startswith("torch")]
        # pip reads the markers of what these need as this machine's: torch's own would then ask for CUDA everywhere.
        problem = resolve(torch, python, tags, "--no-deps") or resolve(sorted({*wanted} - {*torch}), python, tags)
        failed = failed or problem is not None
        print(f"{name}, Python {python}: {problem or f'{len(wanted)} requirements and what they need'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
