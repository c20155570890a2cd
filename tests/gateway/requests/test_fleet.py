import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.backends.base import Call, State
from gateway.config.settings import ModelSettings, Settings
from gateway.errors import ApiError
from gateway.requests.exchange import Exchange, Job, Terms
from gateway.requests.fleet import Fleet, UnknownModel
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.kinds import metrics_by_kind
from pipelines.messages.frames import Done
from pipelines.messages.text import Delta, StringPrompt, TextRequest
from tests.gateway.backends.workers import IMPATIENT, PATIENCE, read, until, workers

IMAGES = "tests.fake_images:FakeImagePipeline"


def fake_model(name: str, **options: Any) -> ModelSettings:
    settings = {"source": "fake:", "kind": "text", "pipeline": "tests.fakes:FakePipeline", **options}
    return ModelSettings(name=name, **settings)


@asynccontextmanager
async def fleet_of(*models: ModelSettings, **options: Any) -> AsyncIterator[Fleet]:
    fleet = Fleet(Settings(models=list(models)), Registry(metrics_by_kind()), IMPATIENT, **options)
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.drain(0.0)


def states(fleet: Fleet, name: str) -> list[State]:
    return [replica.state for replica in fleet.status(name).replicas]


async def test_names_and_aliases_lead_to_one_route_and_others_are_refused() -> None:
    fleet = Fleet(
        Settings(models=[fake_model("org/a", aliases=["a", "default"]), fake_model("b")]), Registry(metrics_by_kind())
    )
    assert fleet.route("a") is fleet.route("default") is fleet.route("org/a") is fleet.routes[0]
    with pytest.raises(UnknownModel, match="org/a, b") as unknown:
        fleet.route("c")
    assert unknown.value.known == ("org/a", "b")
    with pytest.raises(UnknownModel):
        fleet.status("c")


async def test_the_fleet_is_ready_once_every_required_model_was() -> None:
    async with fleet_of(fake_model("a"), fake_model("b", required=False, source="fake:missing")) as fleet:
        assert not fleet.readiness().ready
        await until(lambda: fleet.readiness().ready)
        await until(lambda: states(fleet, "b") == [State.FAILED])
        assert fleet.status("b").replicas[0].reason == "the fake model is missing"
        assert not fleet.status("b").ready
        worker = fleet.route("a").replicas[0]
        worker.open(Call("x", TextRequest(prompts=[StringPrompt("!die=1 x")])), Timeline())
        await until(lambda: not fleet.status("a").ready)
        assert fleet.readiness().ready  # a restart does not take it back
        await until(lambda: fleet.status("a").ready)
        assert fleet.status("a").replicas[0].restarts == 1


async def test_a_required_model_that_fails_keeps_the_fleet_from_being_ready() -> None:
    async with fleet_of(fake_model("a"), fake_model("b", source="fake:missing")) as fleet:
        await until(lambda: states(fleet, "b") == [State.FAILED])
        await until(lambda: fleet.status("a").ready)
        assert not fleet.readiness().ready


async def test_text_models_are_loaded_before_the_others() -> None:
    models = (
        fake_model("image", kind="image", pipeline=IMAGES),
        fake_model("text", source="fake:slow:0.3"),
    )
    async with fleet_of(*models) as fleet:
        seen: set[tuple[State, State]] = set()
        for route in fleet.routes:
            route.replicas[0].subscribe(lambda: seen.add((states(fleet, "text")[0], states(fleet, "image")[0])))
        await until(lambda: fleet.readiness().ready)
        assert seen >= {(State.READY, State.LOADING), (State.READY, State.READY)}
        assert not any(image is not State.STOPPED for text, image in seen if text is State.LOADING)


async def test_a_slow_text_model_does_not_hold_up_the_others() -> None:
    models = (
        fake_model("image", kind="image", pipeline=IMAGES),
        fake_model("text", source="fake:slow:600"),
    )
    async with fleet_of(*models, head_start_s=0.05) as fleet:
        await until(lambda: fleet.status("image").ready)
        assert states(fleet, "text") == [State.LOADING]


async def ask(fleet: Fleet, model: str, timeout: float = PATIENCE) -> str:
    """The answer to a request as it arrives, or the code of its error."""
    request = TextRequest(prompts=[StringPrompt("one two")])
    job = Job("x", fleet.route(model), request, 1, Terms(timeout))
    exchange = Exchange(job, Timeline(), Registry(metrics_by_kind()))
    text = ""
    try:
        await exchange.open()
        while True:
            for event in await exchange.next():
                if isinstance(event, Delta):
                    text += event.text
                if isinstance(event, Done):
                    return text
    except ApiError as error:
        return f"{error.code}: {error.message}"
    finally:
        exchange.close()


async def test_the_first_requests_of_a_model_that_is_not_preloaded_wait_for_its_one_load() -> None:
    lazy = fake_model("lazy", source="fake:slow:0.3", preload=False)
    async with fleet_of(fake_model("a"), lazy) as fleet:
        await until(lambda: fleet.readiness().ready)  # nobody would ever send the request that it would wait for
        fleet.route("lazy")
        assert states(fleet, "lazy") == [State.STOPPED]
        asked = [ask(fleet, "lazy") for _ in range(5)]
        hasty, *answers = await asyncio.gather(ask(fleet, "lazy", timeout=0.05), *asked)
        assert hasty.startswith("deadline_exceeded")
        assert {answer.split() == ["one", "two"] for answer in answers} == {True}
        assert fleet.status("lazy").replicas[0].restarts == 0
        assert len(workers()) == 2


async def test_requests_that_wait_for_a_load_which_fails_are_told_why() -> None:
    async with fleet_of(fake_model("lazy", source="fake:missing", preload=False)) as fleet:
        answers = await asyncio.gather(*(ask(fleet, "lazy") for _ in range(3)))
    assert set(answers) == {"model_unavailable: Model 'lazy' is not available now: the fake model is missing."}


async def test_replicas_are_workers_of_their_own() -> None:
    async with fleet_of(fake_model("a", replicas=2)) as fleet:
        await until(lambda: states(fleet, "a") == [State.READY] * 2)
        assert len(workers()) == 2
        assert fleet.route("a").admission.total == 32


async def test_drain_lets_calls_finish_and_ends_every_worker() -> None:
    async with fleet_of(fake_model("a"), fake_model("b")) as fleet:
        await until(lambda: fleet.readiness().ready)
        call = Call("x", TextRequest(prompts=[StringPrompt("one two three !step-ms=30")]))
        session = fleet.route("a").replicas[0].open(call, Timeline())
        _, events = await asyncio.gather(fleet.drain(PATIENCE), read(session))
        assert isinstance(events[-1], Done)
        assert states(fleet, "a") == states(fleet, "b") == [State.STOPPED]
        assert not workers()
        fleet.route("a")  # starts nothing any more
        assert states(fleet, "a") == [State.STOPPED]
