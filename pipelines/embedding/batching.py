"""Which inputs the next step takes: those of all requests, batched by length, in fair turns.

Padding is what a batch of texts wastes, so a batch is made of inputs of about one length. It is built around its
*lead*: the next input of the request that has had the least service, counted in tokens. So a request of thousands of
inputs and one of a single short text take turns, and whoever comes waits for at most the step that is running; where
the encoder runs two steps at once, a small request waits for no large one.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

from pipelines.base import Ticket

Tower = Literal["text", "image"]

# A token of a batch-class request counts as so many: it is served a quarter as often while interactive ones wait.
WEIGHTS = {"interactive": 1.0, "batch": 4.0}

# Classes of requests: whether one step has room for all of it.
SMALL, LARGE = False, True

# Seconds after a small request during which large ones run in short steps: the next one is likely.
SMALL_WINDOW_S = 2.0


@dataclass(frozen=True, slots=True)
class Budget:
    """In tokens. `shared`: of a large request, while small ones come and go beside it."""

    full: int  # of a step, padding included
    shared: int  # `full` where they have a stream of their own
    slack: int  # padding that one input may cost: less than another step would


@dataclass(slots=True, eq=False)
class Input:
    """One input of a request: what batches are made of."""

    owner: "Request"
    index: int  # among the request's inputs
    tower: Tower
    size: int  # tokens, rounded up to what the encoder takes; or what an image counts as
    content: object  # what the tower reads
    prompt_tokens: int
    place: int = 0  # among the request's inputs, longest first
    taken: bool = False

    @property
    def ticket(self) -> Ticket:
        return self.owner.ticket


@dataclass(slots=True, eq=False)
class Request:
    """What the queue knows of a request."""

    ticket: Ticket
    inputs: list[Input] = field(default_factory=list)  # longest first, once it is queued
    service: float = 0.0  # tokens that it has had, weighted, on the scale of the queue's clock
    next: int = 0  # no input before this place waits
    waiting: int = 0  # inputs
    large: bool = False  # it does not fit one step
    gone: bool = False

    def head(self) -> Input | None:
        """The longest input that waits."""
        while self.next < len(self.inputs) and self.inputs[self.next].taken:
            self.next += 1
        return self.inputs[self.next] if self.next < len(self.inputs) else None


class _Lengths:
    """Inputs that wait, by length. What was taken or has gone stays until it is met."""

    def __init__(self) -> None:
        self._buckets: dict[int, deque[Input]] = {}
        self._lengths: list[int] = []  # of the buckets, ascending

    def add(self, each: Input) -> None:
        bucket = self._buckets.get(each.size)
        if bucket is None:
            bucket = self._buckets[each.size] = deque()
            insort(self._lengths, each.size)
        bucket.append(each)

    def at_most(self, length: int) -> Input | None:
        """The longest one that is no longer than `length`."""
        while (place := bisect_left(self._lengths, length + 1)) > 0:
            if (found := self._first(self._lengths[place - 1])) is not None:
                return found
        return None

    def above(self, length: int) -> Input | None:
        """The shortest one that is longer."""
        while (place := bisect_left(self._lengths, length + 1)) < len(self._lengths):
            if (found := self._first(self._lengths[place])) is not None:
                return found
        return None

    def _first(self, length: int) -> Input | None:
        """The oldest of a length; the bucket is dropped where none is left."""
        bucket = self._buckets[length]
        while bucket:
            if not (bucket[0].taken or bucket[0].owner.gone):
                return bucket[0]
            bucket.popleft()
        del self._buckets[length]
        del self._lengths[bisect_left(self._lengths, length)]
        return None


class BatchQueue:
    """Belongs to the engine thread. Times are seconds of one monotonic clock, given by the caller."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.inputs_waiting = 0
        self.tokens_waiting = 0
        self._requests: dict[str, Request] = {}
        # By class: a heap by service; a request may be in it with an older service.
        self._by_service: dict[bool, list[tuple[float, int, Request]]] = {False: [], True: []}
        self._pushes = 0
        # Where a newcomer begins. It moves on with every step, even while the least served gets none of them: else a
        # stream of newcomers would always be ahead of the rest.
        self._clock = 0.0
        self._lengths = {(tower, large): _Lengths() for tower in ("text", "image") for large in (SMALL, LARGE)}
        self._large = 0  # requests that are large and wait
        self._last_small = float("-inf")  # when a small request was last here

    def __bool__(self) -> bool:
        return self.inputs_waiting > 0

    def add(self, request: Request, now: float) -> None:
        """Queue a request that has at least one input."""
        request.inputs.sort(key=lambda each: each.size, reverse=True)
        request.large = sum(each.size for each in request.inputs) > self.budget.full
        lead = self._lead()
        request.service = self._clock if lead is None else max(self._clock, lead.owner.service)
        request.waiting = len(request.inputs)
        self._requests[request.ticket.id] = request
        for place, each in enumerate(request.inputs):
            each.place = place
            self.tokens_waiting += each.size
            self._lengths[each.tower, request.large].add(each)
        self.inputs_waiting += request.waiting
        if request.large:
            self._large += 1
        else:
            self._last_small = now
        self._push(request)

    def remove(self, request_id: str) -> None:
        """Forget a request: none of its inputs is taken any more. Idempotent."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        request.gone = True
        self.inputs_waiting -= request.waiting
        self.tokens_waiting -= sum(each.size for each in request.inputs if not each.taken)
        if request.large and request.waiting:
            self._large -= 1
        if not self._requests:
            for heap in self._by_service.values():
                heap.clear()

    def expects_small(self, now: float) -> bool:
        """Whether small requests come and go."""
        return now < self._last_small + SMALL_WINDOW_S

    def take(self, now: float, only: str | None = None, classes: Collection[bool] = (SMALL, LARGE)) -> list[Input]:
        """The next batch; empty where nothing waits that is of the `classes`. With `only`, of one request alone.

        An input that is larger than the budget is a batch by itself.
        """
        if only is not None:
            request = self._requests.get(only)
            head = None if request is None else request.head()
            return [] if head is None else self._taken(self._of_one(head), now)
        lead = self._lead(classes)
        if lead is None:
            return []
        if not (self._large > 0 and self.expects_small(now)):
            return self._taken(self._around(lead, self.budget.full, classes), now)
        budget = self.budget.shared if lead.owner.large else self.budget.full
        return self._taken(self._around(lead, budget, (lead.owner.large,)), now)

    def put_back(self, batch: Iterable[Input]) -> None:
        """Undo `take`: the step failed."""
        for each in batch:
            request = each.owner
            if request.gone:
                continue
            each.taken = False
            if request.waiting == 0:
                self._large += request.large
                self._push(request)
            request.waiting += 1
            request.next = min(request.next, each.place)
            self.inputs_waiting += 1
            self.tokens_waiting += each.size
            self._lengths[each.tower, request.large].add(each)

    def oldest(self) -> float | None:
        """When the request at the front was received."""
        lead = self._lead()
        return None if lead is None else lead.ticket.received

    # --- the order ----------------------------------------------------------------------------------------------------

    def _push(self, request: Request) -> None:
        self._pushes += 1
        heappush(self._by_service[request.large], (request.service, self._pushes, request))

    def _lead(self, classes: Collection[bool] = (SMALL, LARGE)) -> Input | None:
        """Of the least served request; of a small one where it is equal."""
        heads = (head for large in classes if (head := self._head(self._by_service[large])) is not None)
        return min(heads, key=lambda head: (head.owner.service, head.owner.large), default=None)

    def _head(self, heap: list[tuple[float, int, Request]]) -> Input | None:
        while heap:
            service, _, request = heap[0]
            head = None if request.gone else request.head()
            if head is not None and service >= request.service:
                return head
            heappop(heap)
            if head is not None:
                self._push(request)  # it was served since, in the batches of others
        return None

    # --- the batch ----------------------------------------------------------------------------------------------------

    def _around(self, lead: Input, budget: int, classes: Iterable[bool]) -> list[Input]:
        """Inputs of about the lead's length, the nearest first, while the padded batch fits the budget."""
        slack = self.budget.slack
        indices = [self._lengths[lead.tower, large] for large in classes]
        batch = [lead]
        lead.taken = True
        shortest = longest = lead.size
        while True:
            rows = len(batch)
            below = max((each for i in indices if (each := i.at_most(shortest))), key=_size, default=None)
            above = min((each for i in indices if (each := i.above(longest))), key=_size, default=None)
            cost_below = longest - below.size if below else slack + 1
            cost_above = rows * (above.size - longest) if above else slack + 1
            if below and cost_below <= min(cost_above, slack) and (rows + 1) * longest <= budget:
                chosen, shortest = below, below.size
            elif above and cost_above <= slack and (rows + 1) * above.size <= budget:
                chosen, longest = above, above.size
            else:
                return batch
            chosen.taken = True
            batch.append(chosen)

    def _of_one(self, head: Input) -> list[Input]:
        batch: list[Input] = []
        for each in head.owner.inputs[head.place :]:
            if each.taken or each.tower != head.tower:
                continue
            if head.size - each.size > self.budget.slack or (batch and (len(batch) + 1) * head.size > self.budget.full):
                break
            each.taken = True
            batch.append(each)
        return batch

    def _taken(self, batch: list[Input], now: float) -> list[Input]:
        """Account for it."""
        served = 0
        for each in batch:
            request = each.owner
            served += each.size
            request.service += each.size * WEIGHTS[request.ticket.priority]
            request.waiting -= 1
            if request.waiting == 0:
                self._large -= request.large
            if not request.large:
                self._last_small = now
        self.inputs_waiting -= len(batch)
        self.tokens_waiting -= served
        self._clock += served / max(1, len(self._requests))
        return batch


def _size(each: Input) -> int:
    return each.size
