"""Child processes under test."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
START_S = 60.0


class MeasurementFailed(Exception):
    """What was to be measured did not happen; the text says what did."""


class ProcessFailed(MeasurementFailed):
    """A process under test ended or never answered; the text is the end of its log."""


class Process:
    """A child, its own children included."""

    def __init__(self, name: str, command: Sequence[str], logs: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = logs / f"{name}.log"
        with self._log.open("wb") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**_inherited(), "PYTHONPATH": str(ROOT), **(env or {})},
            )
        self._process = psutil.Process(self._popen.pid)

    def cpu_seconds(self) -> float:
        total = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def resident_bytes(self) -> int:
        """Now, its children included."""
        return sum(each.memory_info().rss for each in (self._process, *self._process.children(recursive=True)))

    def stop(self) -> None:
        """Idempotent. A process that does not end when asked to is killed."""
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                stream.close()
        self._popen.terminate()
        try:
            self._popen.wait(10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def failure(self) -> ProcessFailed:
        status = self._popen.poll()
        state = "is running" if status is None else f"ended with status {status}"
        tail = self._log.read_text(errors="replace")[-2000:]
        return ProcessFailed(f"{self.name} {state}:\n{tail}")


class Service(Process):
    """Answers lines, as in `services/loop.py`."""

    def ask(self, **request: object) -> Any:
        """Raises ProcessFailed where no answer comes."""
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self.failure() from None
        line = stdout.readline()
        if not line:
            self._popen.wait()
            raise self.failure()
        return json.loads(line)

    def generate(
        self, prompts: Sequence[Sequence[int]] | Sequence[str], tokens: int, **options: int | str
    ) -> list[list[float]]:
        """Seconds from the request to each token, for each prompt."""
        stamps: list[list[float]] = self.ask(prompts=prompts, tokens=tokens, **options)
        assert [len(each) for each in stamps] == [tokens] * len(prompts)
        return stamps


class Server(Process):
    """Listens on a port of this machine; ready when `GET /ready` says so."""

    def __init__(
        self, name: str, command: Sequence[str], logs: Path, port: int, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, command, logs, env)
        self.port = port

    def wait(self) -> None:
        """Raises ProcessFailed."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._popen.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)
        raise self.failure()


def _inherited() -> dict[str, str]:
    """Our environment but what would set the threads of one side or another."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_"))}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
