"""`gateway transcribe` on a terminal: bars on stderr, transcripts on stdout or in files."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gateway.settings import ModelSettings
from gateway.transcribe import Progress as FileProgress
from gateway.transcribe import Wishes, transcribe

SUFFIXES = {"text": ".txt", "srt": ".srt", "vtt": ".vtt", "json": ".json", "verbose_json": ".json"}


def run(model: ModelSettings, wishes: Wishes, files: Sequence[Path], output: Path | None, *, follow: bool) -> bool:
    """Transcribe and print, in the order of `files`. Whether all of them went well."""
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    printer = _Printer(bars, wishes, output, follow=follow)
    progress = [FileProgress(path, printer.changed) for path in files]
    printer.begin(progress)
    with bars:
        asyncio.run(transcribe(model, wishes, progress))
    return not any(file.error for file in progress)


class _Printer:
    """Writes what is finished once all before it is; with `follow`, the first unfinished file's text as it comes."""

    def __init__(self, bars: Progress, wishes: Wishes, output: Path | None, *, follow: bool) -> None:
        self._bars = bars
        self._wishes = wishes
        self._output = output
        self._follow = follow
        self._files: list[FileProgress] = []
        self._tasks: dict[Path, TaskID] = {}
        self._waiting: dict[Path, list[str]] = {}  # text of files behind the one that is printed
        self._next = 0
        self._begun = False

    def begin(self, files: Sequence[FileProgress]) -> None:
        self._files = list(files)
        self._tasks = {file.path: self._bars.add_task(file.path.name, total=None) for file in files}
        self._waiting = {file.path: [] for file in files}

    def changed(self, file: FileProgress, fresh: str) -> None:
        self._bars.update(self._tasks[file.path], total=file.seconds or None, completed=file.until)
        if fresh:
            self._waiting[file.path].append(fresh)
        while self._next < len(self._files):
            current = self._files[self._next]
            if self._follow:
                self._write_fresh(current)
            if not current.ended:
                return
            self._end(current)
            self._next += 1
            self._begun = False

    def _write_fresh(self, file: FileProgress) -> None:
        text = "".join(self._waiting[file.path])
        self._waiting[file.path].clear()
        if text:
            if not self._begun:
                self._title(file)
            sys.stdout.write(text if self._begun else text.lstrip())
            sys.stdout.flush()
            self._begun = True

    def _end(self, file: FileProgress) -> None:
        if file.error is not None:
            self._bars.console.print(f"[red]{file.path}: {file.error}", highlight=False)
        elif self._output is not None:
            (self._output / f"{file.path.stem}{SUFFIXES[self._wishes.format]}").write_text(file.output or "")
        elif self._follow:
            sys.stdout.write("\n")
        else:
            self._title(file)
            text = file.output or ""
            sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()

    def _title(self, file: FileProgress) -> None:
        if len(self._files) > 1 and self._wishes.format == "text":
            sys.stdout.write(f"# {file.path}\n")
