"""A route: its replicas, its fingerprint, what it tells the registry."""

import msgspec

from gateway.backends.base import State
from gateway.requests.routing import Route
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from tests.gateway.scripted import SETTINGS, ScriptedBackend


def route(*backends: ScriptedBackend, **model: object) -> Route:
    settings = msgspec.structs.replace(SETTINGS, **model)
    return Route(settings.name, "text", settings.aliases, settings, backends, registry=Registry(metrics_by_kind()))


async def test_the_emptiest_ready_replica_is_picked() -> None:
    small, large, gone = ScriptedBackend(2), ScriptedBackend(3), ScriptedBackend(9)
    gone.state = State.RESTARTING
    it = route(small, large, gone)
    leases = [await it.admission.acquire() for _ in range(5)]
    assert [lease.replica for lease in leases].count(large) == 3
    assert leases[0].replica is large
    assert it.pick(1) is None
    leases[0].release()
    picked = it.pick(1)
    assert picked is not None
    assert picked.backend is large


async def test_a_request_goes_where_there_is_most_room_for_it() -> None:
    few, many = ScriptedBackend(2), ScriptedBackend(10)
    it = route(few, many)
    leases = [await it.admission.acquire(large=True) for _ in range(10)]
    assert [lease.replica for lease in leases].count(many) == 8  # where the others are a reserve
    picked = it.pick(large=False)
    assert picked is not None
    assert picked.backend is many
    wide = await it.admission.acquire(units=3)
    assert (wide.replica, wide.units) == (many, 2)


async def test_ready_is_one_ready_replica() -> None:
    first, second = ScriptedBackend(), ScriptedBackend()
    it = route(first, second)
    first.become(State.FAILED)
    assert it.ready
    second.become(State.RESTARTING)
    assert not it.ready


async def test_the_fingerprint_follows_what_is_served() -> None:
    assert route(ScriptedBackend()).fingerprint == route(ScriptedBackend()).fingerprint
    assert route(ScriptedBackend()).fingerprint != route(ScriptedBackend(), quantization="int8").fingerprint
    assert route(ScriptedBackend()).fingerprint == route(ScriptedBackend(), max_queue=1).fingerprint


async def test_slots_reach_the_metrics() -> None:
    registry = Registry(metrics_by_kind())
    it = Route("m", "text", (), SETTINGS, [ScriptedBackend(2)], registry)
    lease = await it.admission.acquire()
    text = registry.render()[0].decode()
    assert 'gateway_slots{model="m",pipeline="text"} 2.0' in text
    assert 'gateway_slots_used{model="m",pipeline="text"} 1.0' in text
    lease.release()
    assert 'gateway_slots_used{model="m",pipeline="text"} 0.0' in registry.render()[0].decode()
