"""The half that sees and that the project ships: what it sees, and that its card says what was measured."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from safetensors import safe_open

from gateway.config.settings import ModelSettings, ServerSettings, Settings
from models.files.catalog import EMBEDDED
from models.files.source import resolve
from pipelines.messages.text import TextOptions
from scripts.training.vision import NAME
from scripts.training.vision.evaluate import CARD, LABELS, RESULTS, table
from scripts.training.vision.export import PROCESSOR, TEMPLATE, describe
from tests.servers import Gateway, gateway_thread

pytestmark = pytest.mark.requires_weights
PICTURES = Path(__file__).parents[3] / "data" / "emoji"


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve(f"embedded:{NAME}")


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = ModelSettings(
        name="m",
        source="embedded:smollm2-135m-instruct",
        kind="text",
        pipeline="pipelines.text.pipeline:TextPipeline",
        device="cpu",
        options=TextOptions(vision=f"embedded:{NAME}"),
    )
    spool = str(tmp_path_factory.mktemp("spool"))
    running: Gateway
    with (
        gateway_thread(Settings(server=ServerSettings(port=0, spool_dir=spool), models=[model])) as running,
        httpx.Client(base_url=running.url, timeout=120) as client,
    ):
        yield client


def test_it_is_small_and_says_what_it_is(folder: Path) -> None:
    assert EMBEDDED[NAME].sees_for == "smollm2-135m-instruct"
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 12_000_000
    card = (folder / CARD).read_text()
    assert "license: apache-2.0" in card
    assert "Noto" in card
    assert "Twemoji" in card
    assert "CC BY 4.0" in card


def test_the_card_has_the_figures_that_were_measured(folder: Path) -> None:
    figures = json.loads((folder / RESULTS).read_text())
    assert figures.keys() == LABELS.keys()
    assert table(figures) in (folder / CARD).read_text()


def test_the_folder_is_what_the_training_exports(folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text()) == describe()
    assert json.loads((folder / "preprocessor_config.json").read_text()) == PROCESSOR
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE
    with safe_open(folder / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert "model.connector.modality_projection.proj.weight" in names


@pytest.mark.parametrize("file", sorted(PICTURES.glob("*.png")), ids=lambda file: file.stem)
def test_it_sees(http: httpx.Client, file: Path) -> None:
    """What each picture is asked, and what is to be in the answer, is beside it."""
    for question, said in json.loads(file.with_suffix(".json").read_text()).items():
        assert said in ask(http, file, question).lower()


def test_it_sees_the_picture_of_the_documentation(http: httpx.Client) -> None:
    assert "cat" in ask(http, Path(__file__).parents[4] / "docs" / "images" / "cat.png", "What is in this picture?")


def ask(http: httpx.Client, file: Path, question: str) -> str:
    url = "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()
    parts = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 24}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])
