from pathlib import Path

import pytest

from gateway.backends.base import State
from tests.gateway.idle_fleet import make_app, make_client, make_settings


async def test_ready_once_every_required_model_was(tmp_path: Path) -> None:
    app, fleet = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        loading = await client.get("/ready")
        assert loading.status_code == 503
        assert [model["name"] for model in loading.json()["models"]] == ["first", "org/second"]

        fleet.become("first", State.READY)
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/ready/first")).status_code == 200
        assert (await client.get("/ready/org/second")).status_code == 503

        fleet.become("org/second", State.READY)
        assert (await client.get("/ready")).json()["ready"] is True

        fleet.become("first", State.RESTARTING, "it crashed")
        still = await client.get("/ready")
        assert still.status_code == 200
        first = still.json()["models"][0]
        assert (first["ready"], first["replicas"][0]["state"]) == (False, "restarting")
        assert first["replicas"][0]["reason"] == "it crashed"
        assert (await client.get("/ready/first")).status_code == 503
        assert (await client.get("/ready/gpt-4o")).status_code == 200


async def test_an_unknown_model_is_not_ready_but_not_found(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        response = await client.get("/ready/nope")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_models_are_listed_in_openais_form(tmp_path: Path) -> None:
    app, fleet = make_app(make_settings(tmp_path))
    fleet.become("first", State.READY)
    async with make_client(app) as client:
        listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    first, second = listed["data"]
    assert (first["id"], first["object"], first["owned_by"]) == ("first", "model", "gateway")
    assert isinstance(first["created"], int)
    assert (first["ready"], first["max_model_len"]) == (True, 2048)
    assert (second["ready"], second["aliases"], second["kind"]) == (False, ["gpt-4o"], "text")


async def test_models_say_how_they_run(tmp_path: Path) -> None:
    app, fleet = make_app(make_settings(tmp_path))
    fleet.become("first", State.READY)
    fleet.become("org/second", State.FAILED, "no such file")
    async with make_client(app) as client:
        first, second = (await client.get("/v1/models")).json()["data"]
    assert (first["state"], first["slots"], first["load_seconds"]) == ("ready", 4, 1.5)
    assert first["details"] == {"device": "cpu"}
    assert first["default_sampling"]["temperature"] == 0.6
    assert (second["state"], second["slots"], second["reason"]) == ("failed", 0, "no such file")


@pytest.mark.parametrize(
    ("path", "name", "root"),
    [
        ("first", "first", "first"),
        ("first/", "first", "first"),
        ("org/second", "org/second", "org/second"),
        ("org%2Fsecond", "org/second", "org/second"),
        ("gpt-4o", "gpt-4o", "org/second"),
    ],
)
async def test_each_model_by_its_name_or_alias(tmp_path: Path, path: str, name: str, root: str) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        found = await client.get(f"/v1/models/{path}")
        assert found.status_code == 200
        assert (found.json()["id"], found.json()["root"]) == (name, root)


@pytest.mark.parametrize("path", ["nope", "org", "second", "org/second/more", "FIRST"])
async def test_no_other_model(tmp_path: Path, path: str) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        response = await client.get(f"/v1/models/{path}")
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'first', 'org/second'" in error["message"]
