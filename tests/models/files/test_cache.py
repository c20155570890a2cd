import multiprocessing
import os
import time
from pathlib import Path

import pytest

from models.files.cache import build_once, cache_root


def build_slowly(entry: Path, log: Path) -> None:
    """Write half of it, wait, write the other half."""

    def build(folder: Path) -> None:
        with open(log, "a") as file:
            file.write("built\n")
        (folder / "first").write_text("1")
        time.sleep(0.2)
        (folder / "second").write_text("2")

    build_once(entry, build)
    assert (entry / "first").exists()
    assert (entry / "second").exists()


def test_of_several_that_start_at_once_one_builds_and_all_find_it_whole(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    entry, log = tmp_path / "cache" / "entry", tmp_path / "log"
    processes = [spawn.Process(target=build_slowly, args=(entry, log)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert log.read_text() == "built\n"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    entry = tmp_path / "entry"

    def fail(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError, match="no disk"):
        build_once(entry, fail)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert build_once(entry, lambda folder: (folder / "whole").write_text("1") and None) == entry
    assert [path.name for path in entry.iterdir()] == ["whole"]


def test_what_a_killed_build_left_is_removed_and_never_taken(tmp_path: Path) -> None:
    left = tmp_path / ".entry.partial-1"
    left.mkdir()
    (left / "half").write_text("1")
    entry = build_once(tmp_path / "entry", lambda folder: (folder / "whole").write_text("1") and None)
    assert [path.name for path in entry.iterdir()] == ["whole"]
    assert not left.exists()


def test_an_entry_has_the_usual_rights(tmp_path: Path) -> None:
    """A package built as root is served by somebody else."""
    mask = os.umask(0o022)
    try:
        entry = build_once(tmp_path / "entry", lambda folder: None)
    finally:
        os.umask(mask)
    assert entry.stat().st_mode & 0o777 == 0o755


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "multimodal-gateway"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "multimodal-gateway"
