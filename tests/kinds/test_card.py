"""A kind is what its card says: one that no module of ours knows is served like the others."""

from pathlib import Path

import httpx
import pytest

from gateway.config.settings import SettingsError, load_settings
from pipelines.kinds import KINDS, Kind, referenced
from tests.integration.conftest import sample
from tests.kinds.parrot import PARROT, ParrotOptions
from tests.servers import gateway_thread

CONFIG = """\
[server]
port = 0
spool_dir = "{spool}"

[[models]]
name = "polly"
source = "{cage}"

[models.parrot]
times = 2
"""


@pytest.fixture
def parrots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind exists."""
    monkeypatch.setitem(KINDS, PARROT.name, PARROT)


def configured(tmp_path: Path, text: str = CONFIG) -> Path:
    file = tmp_path / "gateway.toml"
    (tmp_path / "feathers.json").touch()
    file.write_text(text.format(spool=tmp_path / "spool", cage=tmp_path))
    return file


@pytest.mark.usefixtures("parrots")
def test_a_new_kind_is_configured_served_and_measured(tmp_path: Path) -> None:
    settings = load_settings(configured(tmp_path), {"GATEWAY_MODELS__POLLY__PARROT__PREPARE_THREADS": "1"})
    (model,) = settings.models
    assert model.pipeline == PARROT.pipeline
    assert model.options == ParrotOptions(times=2, prepare_threads=1)
    with gateway_thread(settings) as running, httpx.Client(base_url=running.url) as client:
        answer = client.post("/v1/parrot", json={"model": "polly", "words": ["hello", "you"]})
        assert (answer.status_code, answer.json()) == (200, {"words": ["hello", "you", "hello", "you"]})
        refused = client.post("/v1/parrot", json={"model": "polly", "words": []})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "words")
        other = client.post(
            "/v1/chat/completions", json={"model": "polly", "messages": [{"role": "user", "content": "a"}]}
        )
        assert "serves parrot" in other.json()["error"]["message"]
        assert client.get("/v1/models").json()["data"][0]["kind"] == "parrot"
        page = client.get("/metrics").text
        while not sample(page, "gateway_parrot_words_total", model="polly", letter="h"):  # told once a second
            page = client.get("/metrics").text
        assert sample(page, "gateway_parrot_words_total", letter="h") == 2
        assert sample(page, "gateway_parrot_cries_total", pipeline="parrot") == 1
        assert sample(page, "gateway_step_seconds_count", kind="cry") == 1
        assert "/v1/parrot" in client.get("/schema/openapi.json").json()["paths"]


@pytest.mark.usefixtures("parrots")
def test_its_options_are_for_its_models_alone(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"models\[0\]\.parrot: is for models of this kind alone, not for 'text'"):
        load_settings(configured(tmp_path, CONFIG.replace("source", 'kind = "text"\nsource')))
    with pytest.raises(SettingsError, match=r"models\[0\]\.parrot\.times: expected int >= 1"):
        load_settings(configured(tmp_path, CONFIG.replace("times = 2", "times = 0")))


def test_without_its_card_there_is_no_such_kind(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"models\[0\]\.parrot: is not known"):
        load_settings(configured(tmp_path))
    with pytest.raises(SettingsError, match=r"models\[0\]\.source: .*set `kind`"):
        load_settings(configured(tmp_path, CONFIG[: CONFIG.index("[models.parrot]")]))


@pytest.mark.parametrize("kind", [*KINDS.values(), PARROT], ids=lambda kind: kind.name)
def test_a_card_names_what_there_is(kind: Kind) -> None:
    assert referenced(kind.card) is kind
    assert kind.options() == kind.options()
    for endpoint in kind.endpoints:
        assert hasattr(referenced(endpoint), "path")
    if kind.prepare is not None:
        assert callable(referenced(kind.prepare))
    pipeline = referenced(kind.pipeline)
    assert all(callable(getattr(pipeline, name)) for name in ("load", "prepare", "brief", "effort", "feed", "step"))
