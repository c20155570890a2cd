"""A draft model through the configuration file, its worker, and the requests that ask for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.settings import load_settings
from pipelines.base import ModelError
from pipelines.messages.frames import ModelSpec
from pipelines.messages.text import TextOptions
from pipelines.text.pipeline import TextPipeline
from tests.integration.conftest import wait_until
from tests.models.checkpoints import llama
from tests.servers import gateway_thread

FILE = """
[server]
port = 0
spool_dir = "{folder}/spool"

[[models]]
name = "drafted"
source = "{folder}/model"
threads = 1

[models.text]
speculation = "draft"
draft = "{folder}/draft"
max_draft = 4
kv_cache_tokens = 1024

[[models]]
name = "alone"
source = "{folder}/draft"
threads = 1

[models.text]
kv_cache_tokens = 1024
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`draft` takes a small part of the time that `model` takes, so that its drafts are tried."""
    folder = tmp_path_factory.mktemp("drafts")
    llama(folder / "model", layers=24)
    llama(folder / "draft", layers=1)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    file = folder / "gateway.toml"
    file.write_text(FILE.format(folder=folder))
    with gateway_thread(load_settings(file)) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


def complete(client: httpx.Client, model: str = "drafted", **fields: Any) -> httpx.Response:
    asked = {"model": model, "prompt": "w1 w2 w3 w1 w2", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    return client.post("/v1/completions", json={**asked, **fields})


def test_the_text_is_the_same_whoever_drafts(client: httpx.Client) -> None:
    plain = complete(client, speculation=False).json()
    assert "completion_tokens_details" not in plain["usage"]
    for asked in (None, {"kind": "draft", "max_draft": 2}, {"max_draft": 3}):
        drafted = complete(client, speculation=asked).json()
        assert drafted["choices"] == plain["choices"]
        details = drafted["usage"]["completion_tokens_details"]
        assert details["speculation"] == "draft"
        assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0
    assert complete(client, speculation={"kind": "ngram"}).json()["choices"] == plain["choices"]


def test_drafts_are_counted_by_proposer(client: httpx.Client) -> None:
    complete(client)

    def counters() -> dict[str, float]:
        models = client.get("/v1/metrics").json()["models"]
        found: dict[str, float] = next(model["counters"] for model in models if model["model"] == "drafted")
        return found

    wait_until(lambda: counters().get("drafts:draft", 0) > 0)
    found = counters()
    assert found["drafted_tokens:draft"] >= found["drafts:draft"] > 0
    assert found["draft_seconds:draft"] > 0
    assert 'gateway_drafts_total{model="drafted",pipeline="text",proposer="draft"}' in client.get("/metrics").text


def test_a_model_without_a_draft_model_refuses_to_use_one(client: httpx.Client) -> None:
    refused = complete(client, "alone", speculation={"kind": "draft"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "speculation.kind"
    assert complete(client, "alone", speculation={"kind": "ngram"}).status_code == 200


@pytest.mark.parametrize(("draft", "reason"), [("other", "another vocabulary"), ("nowhere", "does not exist")])
def test_a_draft_model_that_can_not_be_one_stops_the_start(folder: Path, draft: str, reason: str) -> None:
    if not (folder / "other").exists():
        llama(folder / "other", layers=1, words=100)
    spec = ModelSpec(
        name="m",
        kind="text",
        pipeline="pipelines.text.pipeline:TextPipeline",
        source=str(folder / "model"),
        threads=1,
        options=TextOptions(speculation="draft", draft=str(folder / draft), kv_cache_tokens=1024),
    )
    with pytest.raises(ModelError, match=rf"text\.draft.*{reason}"):
        TextPipeline.load(spec)
