"""`gateway transcribe` on a terminal: bars on stderr, transcripts on stdout or in files."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gateway.cli.transcribe import Progress as FileProgress
from gateway.cli.transcribe import TranscribeOptions, transcribe
from gateway.cli.transcripts import Captions, output_names
from gateway.config.settings import ModelSettings

TICK_S = 0.2


def run(
    model: ModelSettings, options: TranscribeOptions, files: Sequence[Path], output: Path | None, *, follow: bool
) -> bool:
    """Transcribe and print, in the order of `files`. Whether all of them went well."""
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    printer = _Printer(bars, options, output, files, follow=follow)
    with bars:
        asyncio.run(_transcribe(model, options, printer))
    return not any(file.error for file in printer.files)


async def _transcribe(model: ModelSettings, options: TranscribeOptions, printer: "_Printer") -> None:
    ticking = asyncio.create_task(printer.tick())
    try:
        await transcribe(model, options, printer.files)
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking


class ProgressEstimate:
    """How far a file is by now. Its text comes in leaps, of all windows that were decoded side by side: between them
    it goes on as fast as it was so far, for as long as the last leap took."""

    def __init__(self, now: float) -> None:
        self._began = self._last = now
        self._until = 0.0  # seconds of the file
        self._leap = 0.0  # seconds that the last one took
        self._shown = 0.0

    def reached(self, until: float, now: float) -> None:
        if until > self._until:
            if now - self._last > TICK_S:  # else it belongs to the same leap
                self._leap = now - self._last
            self._last, self._until = now, until

    def at(self, now: float) -> float:
        """Seconds of the file; never fewer than before."""
        if self._until and self._last > self._began:
            speed = self._until / (self._last - self._began)
            self._shown = max(self._shown, self._until + speed * min(now - self._last, self._leap))
        return self._shown


class _Printer:
    """Writes what is finished once all before it is; with `follow`, the first unfinished file's text as it comes."""

    def __init__(
        self, bars: Progress, options: TranscribeOptions, output: Path | None, files: Sequence[Path], *, follow: bool
    ) -> None:
        self.files = [FileProgress(path, self._changed, index) for index, path in enumerate(files)]
        self._bars = bars
        self._options = options
        self._output = output
        self._names = output_names(files, options.format)
        self._follow = follow
        self._captions = Captions(options.format)
        self._tasks = [bars.add_task(file.path.name, total=None) for file in self.files]  # it moves, to and fro
        self._estimates: dict[int, ProgressEstimate] = {}
        self._waiting: list[list[str]] = [[] for _ in files]  # text of files behind the one that is printed
        self._next = 0
        self._begun = False

    async def tick(self) -> None:
        while True:
            for file in self.files:
                self._move(file)
            await asyncio.sleep(TICK_S)

    def _move(self, file: FileProgress) -> None:
        now = monotonic()
        if file.ended:
            # One that failed before its length was known has a bar that stands at its end.
            self._bars.update(self._tasks[file.index], total=file.seconds or 1, completed=file.seconds or 1)
        elif file.until:
            pace = self._estimates[file.index]
            most = 0.99 * file.seconds
            self._bars.update(self._tasks[file.index], total=file.seconds, completed=min(pace.at(now), most))

    def _changed(self, file: FileProgress, fresh: str) -> None:
        self._estimates.setdefault(file.index, ProgressEstimate(monotonic())).reached(file.until, monotonic())
        self._move(file)
        if fresh:
            self._waiting[file.index].append(fresh)
        while self._next < len(self.files):
            current = self.files[self._next]
            if self._follow:
                self._write_fresh(current)
            if not current.ended:
                return
            self._end(current)
            self._next += 1
            self._begun = False

    def _write_fresh(self, file: FileProgress) -> None:
        text = "".join(self._waiting[file.index])
        self._waiting[file.index].clear()
        if text:
            if not self._begun:
                self._title(file)
            sys.stdout.write(text if self._begun else text.lstrip())
            sys.stdout.flush()
            self._begun = True

    def _end(self, file: FileProgress) -> None:
        if file.error is None and self._output is not None:
            self._save(file, self._output)
        elif file.error is None:
            sys.stdout.write(self._printed(file))
            sys.stdout.flush()
        else:
            self._captions.skip(file.seconds)
        if file.error is not None:
            self._tell(f"[red]{escape(f'{file.path}: {file.error}')}[/red]")

    def _save(self, file: FileProgress, folder: Path) -> None:
        path = folder / self._names[file.index]
        try:
            path.write_text(file.output or "", encoding="utf-8")
        except OSError as error:
            file.error = f"{path} can't be written: {error.strerror}"
        else:
            if path.stem != file.path.stem:
                self._tell(escape(f"{file.path}: written to {path}, another file has its name"))

    def _printed(self, file: FileProgress) -> str:
        if self._follow:
            return "\n"
        if self._options.format in ("srt", "vtt"):
            return self._captions.add(file.segments, file.seconds)
        self._title(file)
        text = file.output or ""
        return text if text.endswith("\n") else f"{text}\n"

    def _title(self, file: FileProgress) -> None:
        if len(self.files) > 1 and self._options.format == "text":
            sys.stdout.write(f"# {file.path}\n")

    def _tell(self, markup: str) -> None:
        self._bars.console.print(markup, highlight=False, soft_wrap=True)
