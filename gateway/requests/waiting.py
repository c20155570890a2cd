"""Requests that wait for slots: whose turn it is."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")  # what is granted


@dataclass(frozen=True, slots=True, eq=False)
class Waiter(Generic[T]):
    units: int
    tenant: str
    large: bool
    number: int  # in the order of arrival
    future: "asyncio.Future[T]"


class Queue(Generic[T]):
    """Those that wait in one priority class."""

    def __init__(self) -> None:
        # Ordered sets: the next is the first, and one that leaves is found at once.
        self._waiters: dict[tuple[str, bool], dict[Waiter[T], None]] = {}  # by tenant, and whether they are large
        self._served: dict[str, int] = {}  # the count of grants at which each tenant that waits was served last
        self._granted = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiter[T]]:
        for waiters in self._waiters.values():
            yield from waiters

    def add(self, waiter: Waiter[T]) -> None:
        self._waiters.setdefault((waiter.tenant, waiter.large), {})[waiter] = None
        self._size += 1

    def discard(self, waiter: Waiter[T]) -> bool:
        """Whether it was there."""
        key = waiter.tenant, waiter.large
        waiters = self._waiters.get(key, {})
        if waiter not in waiters:
            return False
        del waiters[waiter]
        self._size -= 1
        if not waiters:
            del self._waiters[key]
            if (waiter.tenant, not waiter.large) not in self._waiters:
                self._served.pop(waiter.tenant, None)
        return True

    def serve(self, waiter: Waiter[T]) -> None:
        """It has its turn."""
        self._granted += 1
        self._served[waiter.tenant] = self._granted
        self.discard(waiter)

    def heads(self, held: Mapping[str, int]) -> list[Waiter[T]]:
        """The first small and the first large one of each tenant: tenants that hold least, and then those whose last
        turn is longest ago, come first; of one tenant, who came first."""
        heads = [next(iter(waiters)) for waiters in self._waiters.values()]
        if len(heads) > 1:
            heads.sort(key=lambda each: (held.get(each.tenant, 0), self._served.get(each.tenant, 0), each.number))
        return heads
