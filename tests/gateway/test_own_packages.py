"""The four packages are found together, or the command says whose it found instead."""

import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from gateway import own_packages
from gateway.own_packages import HOME, PACKAGES, foreign_package


def run(tmp_path: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    """`gateway --version`, with other folders before ours on the path."""
    code = f"import sys; sys.path[:0] = {[*map(str, paths), str(HOME)]!r}; from gateway.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )


def test_ours_are_ours(tmp_path: Path) -> None:
    assert foreign_package() is None
    assert run(tmp_path).stdout.startswith("gateway, version ")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_of_another_is_refused_by_its_place(tmp_path: Path, name: str) -> None:
    other = tmp_path / "other" / name
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('was imported')\n")
    done = run(tmp_path, other.parent)
    assert done.returncode == 1
    assert done.stderr.startswith(f"gateway: '{name}' is not its own package here, but another's: {other}. ")
    assert "virtual environment" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_that_another_distribution_wrote_over_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, words in PACKAGES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(words)
    monkeypatch.setattr(own_packages, "HOME", tmp_path)
    monkeypatch.setattr(own_packages, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))
    assert foreign_package() is None
    (tmp_path / "models/__init__.py").write_text('"""Tables of a web site."""\n')
    assert "'models' is not its own package" in str(foreign_package())
    (tmp_path / "metrics/__init__.py").unlink()
    (tmp_path / "metrics").rmdir()
    monkeypatch.setattr(own_packages, "PACKAGES", {"metrics": "x"})
    assert "'metrics' is missing" in str(foreign_package())
