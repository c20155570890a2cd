"""Files that are made once from a model's own and kept: `$XDG_CACHE_HOME/multimodal-gateway`, else below `~/.cache`."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

FOLDER = "multimodal-gateway"


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / FOLDER


def build_once(entry: Path, build: Callable[[Path], None]) -> Path:
    """The folder `entry`, made by `build(folder)` where it does not exist yet. Raises what `build` raises.

    It is made under another name and renamed when it is whole, so an entry that exists is complete: a build that was
    killed leaves only a folder that the next one removes. A lock, which ends with its process, lets one process build
    while the others wait for it.
    """
    if entry.is_dir():
        return entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with open(entry.parent / f".{entry.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if entry.is_dir():
            return entry
        prefix = f".{entry.name}.partial-"
        for left in entry.parent.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)  # nobody else builds it: the lock is ours
        partial = entry.parent / f"{prefix}{os.getpid()}"
        partial.mkdir()  # with the usual rights: whoever installs may not be who serves
        try:
            build(partial)
            _sync(partial)
            partial.rename(entry)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync_folder(entry.parent)
    return entry


def _sync(folder: Path) -> None:
    """On disk before the rename is: after a power cut, too, an entry is whole or absent."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
