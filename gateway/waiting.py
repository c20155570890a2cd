"""Requests that wait for slots: whose turn it is."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.admission import Lease


class Waiter:
    __slots__ = ("future", "large", "number", "tenant", "units")

    def __init__(self, units: int, tenant: str, large: bool, number: int, future: "asyncio.Future[Lease]") -> None:
        self.units = units
        self.tenant = tenant
        self.large = large
        self.number = number  # in the order of arrival
        self.future = future


class Queue:
    """Those that wait in one priority class."""

    def __init__(self) -> None:
        # Ordered sets: the next is the first, and one that leaves is found at once.
        self._waiters: dict[tuple[str, bool], dict[Waiter, None]] = {}  # by tenant, and whether they are large
        self._served: dict[str, int] = {}  # the turn in which each tenant that waits was served last
        self._turns = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiter]:
        for waiters in self._waiters.values():
            yield from waiters

    def add(self, waiter: Waiter) -> None:
        self._waiters.setdefault((waiter.tenant, waiter.large), {})[waiter] = None
        self._size += 1

    def discard(self, waiter: Waiter) -> bool:
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

    def serve(self, waiter: Waiter) -> None:
        """It has its turn."""
        self._turns += 1
        self._served[waiter.tenant] = self._turns
        self.discard(waiter)

    def heads(self, held: Mapping[str, int]) -> list[Waiter]:
        """The first small and the first large one of each tenant: tenants that hold least, and then those whose last
        turn is longest ago, come first; of one tenant, who came first."""
        heads = [next(iter(waiters)) for waiters in self._waiters.values()]
        if len(heads) > 1:
            heads.sort(key=lambda each: (held.get(each.tenant, 0), self._served.get(each.tenant, 0), each.number))
        return heads
