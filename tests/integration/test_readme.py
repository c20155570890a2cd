"""What a newcomer pastes: the README's examples and the start screen's line, and whether the answers make sense."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.cli.console import curl
from gateway.config.settings import ServerSettings, Settings, load_settings
from tests.integration.audio_gateway import KEY
from tests.integration.conftest import embedded
from tests.servers import Gateway, gateway_thread

pytestmark = [
    pytest.mark.requires_weights,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
HERE = "http://127.0.0.1:8000"

COLOURS = re.compile(r"\b(red|blue|green|yellow|orange|purple|black|white|pink|brown|gr[ae]y)\b", re.IGNORECASE)
GREETINGS = re.compile(r"\b(hello|hi|hey|welcome|help|meet)\b", re.IGNORECASE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """The README's calls of curl, each with its continuation lines."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("curl ")]


def path_of(command: str) -> str:
    found = re.search(rf"{HERE}(/\S+)", command)
    assert found is not None, command
    return found[1]


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with embedded("image", tmp_path_factory.mktemp("spool")) as running:
        yield running


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    model = next(model for model in load_settings(environ={}).models if model.name == "emoji-vision")
    server = ServerSettings(port=0, spool_dir=str(tmp_path_factory.mktemp("spool")))
    with gateway_thread(Settings(server=server, models=[model])) as running:
        yield running


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Gateway:
    """One that has the embedded model which the example asks."""
    command: str = request.node.callspec.params["command"]
    kind = "vision" if "image_url" in command else path_of(command).split("/")[2]
    fixtures = {
        "chat": "real",
        "vision": "seeing",
        "audio": "audio_gateway",
        "images": "drawing",
        "embeddings": "embedding",
        "rerank": "embedding",
    }
    found: Gateway = request.getfixturevalue(fixtures[kind])
    return found


def run(command: str, server: Gateway) -> Any:
    """What a shell in the project's folder prints."""
    command = command.replace(HERE, server.url)
    if server.settings.keys:
        command = command.replace("curl ", f"curl -H 'Authorization: Bearer {KEY}' ", 1)
    done = subprocess.run(
        ["bash", "-c", f"{command} --silent --fail-with-body"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", commands(), ids=path_of)
def test_each_example_of_the_readme_is_answered(command: str, server: Gateway) -> None:
    answer = run(command, server)
    match path_of(command):
        case "/v1/chat/completions":
            said = answer["choices"][0]["message"]["content"]
            assert "cat" in said if "image_url" in command else said.strip()
        case "/v1/audio/transcriptions":
            assert "Dashwood" in answer["text"]
        case "/v1/embeddings":
            cat, dog = (item["embedding"] for item in answer["data"])
            assert 0.4 < sum(a * b for a, b in zip(cat, dog, strict=True)) < 0.9
        case "/v1/images/generations":
            picture = httpx.get(answer["data"][0]["url"])
            assert picture.headers["content-type"] == "image/png"
        case "/v1/rerank":
            assert answer["results"][0]["index"] == 0  # the cat
            assert answer["results"][0]["relevance_score"] > 2 * answer["results"][1]["relevance_score"]
        case path:
            raise AssertionError(f"nothing is known about the answer of {path}")


def test_every_pipeline_has_an_example() -> None:
    kinds = {path_of(command).split("/")[2] for command in commands()}
    assert kinds == {"chat", "audio", "embeddings", "images", "rerank"}


def test_the_python_example_streams(real: Gateway) -> None:
    (program,) = blocks("python")
    program = program.replace(HERE, real.url)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 3


def test_the_start_screens_line_is_answered(real: Gateway) -> None:
    command = curl(real.fleet, real.endpoints, real.url, keyed=False)
    assert command is not None
    assert run(command, real)["choices"][0]["message"]["content"].strip()


def test_first_answers_make_sense(real: Gateway, http_real: httpx.Client) -> None:
    """As the README and the start screen ask, many times: one that was lucky would say nothing."""

    def asked(command: str) -> list[str]:
        body = json.loads(command.partition("-d '")[2].removesuffix("'"))
        answer = http_real.post("/v1/chat/completions", json={**body, "n": 16, "seed": 1, "max_tokens": 32})
        return [choice["message"]["content"] for choice in answer.json()["choices"]]

    chat = next(command for command in commands() if path_of(command) == "/v1/chat/completions")
    colours = asked(chat)
    assert sum(bool(COLOURS.search(text)) for text in colours) >= 13, colours
    greetings = asked(curl(real.fleet, real.endpoints, real.url, keyed=False) or "")
    assert sum(bool(GREETINGS.search(text)) for text in greetings) >= 13, greetings


def test_the_configuration_example_is_one() -> None:
    (example,) = blocks("toml")
    settings = msgspec.convert(tomllib.loads(example), Settings)
    assert [model.source.partition(":")[0] for model in settings.models] == ["/models/Qwen3-0.6B", "embedded"]
