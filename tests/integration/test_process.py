"""The command itself, in a process of its own: idle, it does nothing; told to stop, it finishes what it began."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.conftest import wait_until

CONFIG = """
[server]
spool_dir = "{spool}"
drain_s = 20

[[models]]
name = "fake"
kind = "text"
source = "fake:"
pipeline = "tests.fakes:FakePipeline"
"""


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`gateway serve` over the fake pipeline, ready."""
    config = folder / "gateway.toml"
    config.write_text(CONFIG.format(spool=folder / "spool"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from gateway.cli.main import main; main()", "serve", "-c", str(config)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _ready(url), 30)
        yield process, url
    finally:
        process.kill()
        process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with serving(tmp_path_factory.mktemp("served")) as it:
        yield it


def test_idle_it_uses_under_a_hundredth_of_a_core(served: tuple[subprocess.Popen[bytes], str]) -> None:
    """Gateway and worker together, with the statistics and the signs of life that go between them."""
    gateway = psutil.Process(served[0].pid)
    processes = [gateway, *gateway.children(recursive=True)]
    assert len(processes) == 2

    def spent() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    time.sleep(0.5)
    before, began = spent(), time.monotonic()
    time.sleep(5)
    assert (spent() - before) / (time.monotonic() - began) < 0.01


def test_told_to_stop_it_finishes_what_it_began(served: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = served
    body = {"model": "fake", "messages": [{"role": "user", "content": "!tokens=50 !step-ms=20"}], "stream": True}
    found: list[str] = []
    begun = threading.Event()

    def ask() -> None:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as answer:
            for text in answer.iter_text():
                found.append(text)
                begun.set()

    client = threading.Thread(target=ask)
    client.start()
    assert begun.wait(10)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    client.join(20)
    assert "".join(found).endswith("data: [DONE]\n\n")
    assert process.wait(10) == 0
    wait_until(lambda: not any(child.is_running() for child in children))
