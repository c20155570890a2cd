"""A scheduler without a model, requests for it, and steps whose tokens are made up."""

from math import inf

from pipelines.base import Ticket
from pipelines.text.cache.block_manager import BlockManager
from pipelines.text.cache.prefix import prefix_keys
from pipelines.text.output.choice_text import Output
from pipelines.text.plan import Plan
from pipelines.text.sample.sampling import SamplingParams
from pipelines.text.scheduler import Scheduler
from pipelines.text.sequence import Group, Sequence

BLOCK, TILE = 4, 8


def create_scheduler(*, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64) -> Scheduler:
    return Scheduler(
        BlockManager(num_blocks, BLOCK),
        tile=TILE,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )


def create_request(
    id: str, length: int, *, priority="interactive", n=1, max_tokens=20, token=1, received=0.0, tenant=""
) -> list[Sequence]:
    group = Group(Ticket(id, priority, received, tenant=tenant))
    tokens = [token] * length
    keys = prefix_keys(tokens, BLOCK, "")
    sequences: list[Sequence] = []
    for index in range(n):
        leader = sequences[0] if sequences else None
        params = SamplingParams(max_tokens=max_tokens)
        sequences.append(Sequence(group, index, list(tokens), params, Output(), keys=keys, leader=leader))
    return sequences


def add(scheduler: Scheduler, id: str, length: int, **options) -> Sequence:
    sequences = create_request(id, length, token=1 + scheduler._arrivals, **options)
    for sequence in sequences:
        scheduler.add(sequence)
    return sequences[0]


def step(scheduler: Scheduler, now: float = inf) -> Plan:
    """Schedule, long after any brief prompt, and give each drawing sequence a token."""
    plan = scheduler.schedule(now)
    scheduler.commit(plan, [0] * len(plan.chunks))
    for chunk in plan.chunks:
        if chunk.draws:
            chunk.sequence.append(7)
    scheduler.check()
    return plan


def rows(plan: Plan) -> list[tuple[str, str, int]]:
    return [
        (kind, chunk.sequence.ticket.id, chunk.length)
        for kind, chunks in (("decode", plan.decode), ("prefill", plan.prefill))
        for chunk in chunks
    ]


def running(scheduler: Scheduler) -> list[str]:
    return [sequence.ticket.id for sequence in scheduler._running]


def fill(scheduler: Scheduler, steps: int = 40) -> None:
    for _ in range(steps):
        step(scheduler)


def roomy(**options) -> Scheduler:
    return create_scheduler(**{"num_blocks": 1024, "max_num_seqs": 16, "max_num_batched_tokens": 64, **options})
