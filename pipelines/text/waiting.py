"""Sequences that wait to be run: whose turn it is."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import chain

from pipelines.text.sequence import Rank, Sequence

BATCH_SHARE = 8  # of so many admissions, one is of the batch class while any of it waits

# Seconds that a prompt's token is worth in the order of prefills: a prompt is passed by shorter ones, until it has
# waited for so much longer than they have.
PATIENCE_S = 0.005


def due(sequence: Sequence) -> float:
    """In the order of this, prompts are computed within a priority class. It is never more than on arrival, also when
    the sequence is put back, so nothing starves."""
    return sequence.ticket.received + (sequence.prompt_length - sequence.computed) * PATIENCE_S


class Waiting:
    """Interactive before batch, but for every `BATCH_SHARE`-th turn. Within a class those go on first that were put
    back for lack of blocks; then the tenant is next that runs least, then its request that runs least: one of many
    choices has no more than its share while others wait. Then who is due."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Sequence]] = {}  # by request; those that were put back stand in front
        self._size = 0
        self._interactive_admitted = 0  # since the last of the batch class, while that one waited

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._queues.values())

    def add(self, sequence: Sequence) -> None:
        self._queues.setdefault(sequence.ticket.id, deque()).append(sequence)
        self._size += 1

    def put_back(self, sequence: Sequence) -> None:
        """It has run, and is to go on before others of its request begin."""
        self._queues.setdefault(sequence.ticket.id, deque()).appendleft(sequence)
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        """It ends, or leaves without a turn."""
        queue = self._queues[sequence.ticket.id]
        queue.remove(sequence)
        self._size -= 1
        if not queue:
            del self._queues[sequence.ticket.id]

    def admit(self, sequence: Sequence) -> None:
        """It has its turn."""
        self.remove(sequence)
        overtaking = sequence.rank != Rank.BATCH and any(head.rank == Rank.BATCH for head in self._heads())
        self._interactive_admitted = self._interactive_admitted + 1 if overtaking else 0

    def in_turn(self, running: Iterable[Sequence]) -> list[Sequence]:
        """The first of each request, in the order in which they are to be admitted."""
        heads = list(self._heads())
        if len(heads) < 2:
            return heads
        tenants: Counter[str] = Counter()
        requests: Counter[str] = Counter()
        for sequence in running:
            tenants[sequence.ticket.tenant] += 1
            requests[sequence.ticket.id] += 1
        batch_first = self.batch_turn
        heads.sort(
            key=lambda each: (
                (each.rank == Rank.BATCH) != batch_first,
                each.rank >= Rank.FURTHER or each.preemptions == 0,
                tenants[each.ticket.tenant],
                requests[each.ticket.id],
                due(each),
                each.order,
            )
        )
        return heads

    @property
    def batch_turn(self) -> bool:
        """Whether one of the batch class waits, and is next."""
        return self._interactive_admitted >= BATCH_SHARE - 1 and any(head.rank == Rank.BATCH for head in self._heads())

    def _heads(self) -> Iterator[Sequence]:
        return (queue[0] for queue in self._queues.values())
