import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from gateway import __version__
from gateway.cli.main import main

ROOT = Path(__file__).parents[3]
SECRET = "sk-not-to-be-logged"

CONFIG = """\
[server]
port = 0
drain_s = 20

[[models]]
name = "org/fake"
aliases = ["gpt-4o"]
kind = "text"
pipeline = "tests.fakes:FakePipeline"
source = "fake:"
"""


class Running:
    """`gateway serve` as a process. Its output is read as it comes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []

    def read_until(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError("".join(self.lines))

    def finish(self) -> str:
        rest, _ = self.process.communicate(timeout=30)
        return "".join(self.lines) + rest


@contextmanager
def serving(tmp_path: Path, config: str = CONFIG, **environ: str) -> Iterator[Running]:
    path = tmp_path / "gateway.toml"
    path.write_text(config)
    spool = {"GATEWAY_SERVER__SPOOL_DIR": str(tmp_path / "spool")}
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", "--config", str(path)],
        cwd=ROOT,
        env={**os.environ, **spool, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def chat(url: str, text: str) -> httpx.Response:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}
    return httpx.post(
        f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {SECRET}"}, timeout=30
    )


def test_serve_says_what_it_serves_and_drains_on_sigterm(tmp_path: Path) -> None:
    with serving(tmp_path, GATEWAY_API_KEY=SECRET, GATEWAY_LOG_LEVEL="debug") as running:
        url = running.read_until(r"Listening on (http://\S+);")[1]
        curl = running.read_until(r"curl .*")[0]
        assert f"{url}/v1/chat/completions" in curl
        assert "$GATEWAY_API_KEY" in curl
        assert json.loads(curl.partition(" -d '")[2].removesuffix("'"))["model"] == "org/fake"
        told = "".join(running.lines)
        assert "Serving org/fake at" in told
        # No screen where there is no terminal: every line is a record of the log.
        assert all(re.match(r"\d{4}-\d\d-\d\d .* (INFO|DEBUG|WARNING) \S+: ", line) for line in running.lines), told
        assert "DEBUG gateway.backends.worker: model org/fake: " in told

        answers: list[httpx.Response] = []
        talk = threading.Thread(target=lambda: answers.append(chat(url, "!delay-ms=1500 SENSITIVE words")))
        talk.start()
        while not re.search(r"gateway_slots_used\{[^}]*\} 1", metrics(url)):
            assert talk.is_alive()
        running.process.send_signal(signal.SIGTERM)
        talk.join(timeout=30)
        output = running.finish()

    assert [answer.status_code for answer in answers] == [200]  # what ran has ended, and well
    assert answers[0].json()["choices"][0]["message"]["content"].endswith("SENSITIVE words")
    assert running.process.returncode == 0
    assert "SENSITIVE" not in output
    assert SECRET not in output
    assert "Traceback" not in output


def metrics(url: str) -> str:
    return httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {SECRET}"}).text


def test_sighup_drains_too_and_a_second_signal_cuts_it_short(tmp_path: Path) -> None:
    with serving(tmp_path, GATEWAY_API_KEY=SECRET) as running:
        url = running.read_until(r"Listening on (http://\S+);")[1]
        running.read_until(r"curl .*")

        outcomes: list[int] = []

        def endless() -> None:
            try:
                outcomes.append(chat(url, "!delay-ms=60000 words").status_code)
            except httpx.HTTPError:
                outcomes.append(0)

        talk = threading.Thread(target=endless)
        talk.start()
        while not re.search(r"gateway_slots_used\{[^}]*\} 1", metrics(url)):
            assert talk.is_alive()
        running.process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(timeout=0.5)
        running.process.send_signal(signal.SIGINT)
        running.finish()
        talk.join(timeout=10)
    assert outcomes in ([503], [0])  # an error or a closed connection, and no answer
    assert running.process.returncode == 0


def test_a_model_that_can_not_load_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG.replace('"fake:"', '"fake:missing"')) as running:
        url = running.read_until(r"Listening on (http://\S+);")[1]
        running.read_until("Serving no model")
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/ready").status_code == 503
        running.process.send_signal(signal.SIGTERM)
        output = running.finish()
    assert "can't be served: the fake model is missing" in output
    assert "curl" not in output  # there is nothing to try
    assert running.process.returncode == 0


def test_the_gateway_and_its_workers_write_json_where_asked(tmp_path: Path) -> None:
    with serving(tmp_path, GATEWAY_LOG_FORMAT="json") as running:
        url = running.read_until(r"Serving org/fake at (http://[^\s\"]+)")[1]
        chat(url, "!step-error some words")
        running.process.send_signal(signal.SIGTERM)
        told = running.finish()
    found = [json.loads(line) for line in told.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in found)
    assert any(line.get("worker") == "org/fake" and "exception" in line for line in found)
    (request,) = [line for line in found if line["logger"] == "gateway.request"]
    assert (request["message"], request["status"], request["model"]) == ("POST /v1/chat/completions", 503, "org/fake")
    assert "some words" not in told


# --- refusals ---------------------------------------------------------------------------------------------------------


def invoke(tmp_path: Path, *arguments: str, config: str = CONFIG, **environ: str) -> tuple[int, str]:
    path = tmp_path / "gateway.toml"
    path.write_text(config)
    result = CliRunner().invoke(main, [*arguments, "--config", str(path)], env=environ)
    return result.exit_code, result.output


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, output = invoke(tmp_path, "serve", "--port", str(port))
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in output


@pytest.mark.parametrize(
    ("arguments", "config", "says"),
    [
        (["serve", "--host", "0.0.0.0"], CONFIG, "an API key is needed"),
        (["serve"], CONFIG.replace("drain_s", "drains"), "gateway.toml:3: server.drains: is not known; did you mean"),
        (["models"], "[server", "not valid TOML"),
    ],
)
def test_a_bad_configuration_ends_with_its_reason(tmp_path: Path, arguments: list[str], config: str, says: str) -> None:
    code, output = invoke(tmp_path, *arguments, config=config)
    assert code == 2
    assert says in output
    assert "Traceback" not in output


def test_a_variable_that_nothing_reads_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, output = invoke(tmp_path, "serve", "--port", str(port), GATEWAY_UNRELATED="x")
    assert code == 2
    assert "GATEWAY_UNRELATED is not known and has no effect" in output


def test_version() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).output
