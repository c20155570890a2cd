"""What the messages of every kind of model are made of. A kind's own are beside this, and are named on its card."""

from collections.abc import Callable
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct

from metrics.timeline import Timeline

Count = Annotated[int, Meta(ge=1)]


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[models.KIND]` table of a model."""

    prepare_threads: Count = 2  # that validate, tokenise and decode beside the engine

    @property
    def sources(self) -> tuple[str, ...]:
        """Of further models that are loaded with it."""
        return ()

    def conflict(self) -> tuple[str, str] | None:
        """(option, what is wrong with it) where options do not go together."""
        return None


class Request(Struct, frozen=True):
    """What a model is asked."""


class Item(Struct, frozen=True):
    """More input of a stream that is open."""


class Event(Struct, frozen=True):
    """What a worker tells of one request."""

    ends: ClassVar[bool] = False  # whether it is the last one

    id: str  # the request's

    def stamp(self, timeline: Timeline, received: float) -> None:
        """Write down what it tells about its request, which the gateway has `received` now."""


class Said(Event, frozen=True):
    """What a model says to a request between `Accepted` and the end."""


encode_item: Callable[[Item], bytes] = msgspec.msgpack.Encoder().encode
