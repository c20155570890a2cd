"""A served model's name, and the replicas behind it."""

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from gateway.backends.base import Backend, State
from gateway.config.settings import ModelSettings
from gateway.requests.admission import Admission, Slots
from metrics.registry import Registry

_STATES = tuple(State)  # in the order in which a model that is asked for should have them


class Route:
    """One model as callers name it: its settings, its replicas, and who may start on them."""

    def __init__(
        self,
        name: str,
        kind: str,
        aliases: Sequence[str],
        settings: ModelSettings,
        replicas: Sequence[Backend],
        registry: Registry,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` begins to load the model, where that has not begun yet."""
        self.name = name
        self.kind = kind
        self.aliases = tuple(aliases)
        self.settings = settings
        self.replicas = tuple(replicas)
        self.fingerprint = _fingerprint(settings)
        self._slots = tuple(Slots(replica, settings.max_inflight) for replica in self.replicas)
        self.admission = Admission(self._slots, self.pick, max_queue=settings.max_queue)
        registry.admission(name, kind, self.admission.state)
        self.wake = wake
        # Nobody speaks into a queue: a live stream has a place as soon as the model is there, or is refused.
        places = tuple(Slots(replica, streams=True) for replica in self.replicas)
        self.streams = Admission(
            places, lambda large: _freest(places, large), max_queue=0, max_loading=settings.max_queue
        )

    @property
    def ready(self) -> bool:
        """Whether at least one replica takes requests."""
        return any(replica.state is State.READY for replica in self.replicas)

    @property
    def takes_images(self) -> bool | None:
        """None: that is not known while no replica is ready."""
        return next((each.ready.images for each in self.replicas if each.ready is not None), None)

    @property
    def foremost(self) -> Backend:
        """The replica that is furthest on its way to being ready: ready, loading, restarting, …"""
        return min(self.replicas, key=lambda replica: _STATES.index(replica.state))

    def pick(self, large: bool = False) -> Slots | None:
        """The replica to start a request on now: of those that have room for it, the one with most."""
        return _freest(self._slots, large)


def _freest(replicas: Sequence[Slots], large: bool) -> Slots | None:
    best: Slots | None = None
    most = 0
    for slots in replicas:
        if (room := slots.room(large=large)) > most:
            best, most = slots, room
    return best


def _fingerprint(settings: ModelSettings) -> str:
    """OpenAI's `system_fingerprint`: equal where the same seed may be expected to give the same answer."""
    spec = msgspec.json.encode(settings.spec())
    return f"fp_{hashlib.sha256(spec).hexdigest()[:10]}"
