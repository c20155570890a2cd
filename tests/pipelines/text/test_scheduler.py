from math import inf

import pytest

from pipelines.base import Ticket
from pipelines.messages import TokenLogprob
from pipelines.text.block_manager import BlockManager
from pipelines.text.output import Output
from pipelines.text.plan import Plan
from pipelines.text.prefix import prefix_keys
from pipelines.text.sampling import SamplingParams
from pipelines.text.scheduler import LOGPROB_ROWS, MAX_PREEMPTIONS, Scheduler
from pipelines.text.sequence import Group, Sequence, State
from pipelines.text.waiting import BATCH_SHARE

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


def test_decodes_first_then_prefills_that_have_begun_then_waiting_ones():
    scheduler = create_scheduler()
    add(scheduler, "a", 5)
    step(scheduler)
    add(scheduler, "b", 60)
    assert rows(step(scheduler)) == [("decode", "a", 1), ("prefill", "b", 24)]
    add(scheduler, "c", 50, received=1.0)
    assert rows(step(scheduler)) == [("decode", "a", 1), ("prefill", "b", 24)]
    assert rows(step(scheduler)) == [("decode", "a", 1), ("prefill", "b", 12), ("prefill", "c", 16)]
    assert rows(step(scheduler)) == [("decode", "a", 1), ("decode", "b", 1), ("prefill", "c", 24)]


def test_only_the_row_that_draws_has_logits():
    scheduler = create_scheduler()
    add(scheduler, "a", 40)
    first, second = step(scheduler), step(scheduler)
    assert [chunk.logits for chunk in (*first.chunks, *second.chunks)] == [0, 1]
    assert (first.kind, first.tokens, second.tokens) == ("prefill", 32, 8)


def test_no_more_sequences_than_allowed_run():
    scheduler = create_scheduler(max_num_seqs=2)
    first = add(scheduler, "a", 3)
    for id in "bcd":
        add(scheduler, id, 3)
    step(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 2)
    scheduler.finish(first)
    assert rows(step(scheduler)) == [("decode", "b", 1), ("prefill", "c", 3)]


def test_a_step_without_room_for_a_tile_beside_all_decodes_is_refused():
    with pytest.raises(ValueError, match="no room"):
        create_scheduler(max_num_seqs=4, max_num_batched_tokens=4 + TILE - 1)
    create_scheduler(max_num_seqs=4, max_num_batched_tokens=4 + TILE)


def test_a_cache_that_can_not_hold_the_longest_sequence_is_refused():
    with pytest.raises(ValueError, match="can't hold"):
        create_scheduler(num_blocks=15, max_model_len=64)


def test_a_full_batch_of_decodes_still_lets_a_prefill_go_on():
    scheduler = create_scheduler(max_num_seqs=4, max_num_batched_tokens=4 + TILE)
    for id in "abc":
        add(scheduler, id, 3)
    step(scheduler)
    step(scheduler)
    add(scheduler, "d", 30)
    lengths = [step(scheduler).prefill[0].length for _ in range(4)]
    assert lengths == [8, 8, 8, 6]


def test_interactive_goes_before_batch():
    scheduler = create_scheduler(max_num_seqs=1)
    for id, priority in (("a", "batch"), ("b", "batch"), ("c", "interactive"), ("d", "interactive")):
        add(scheduler, id, 3, priority=priority)
    order = []
    for _ in range(4):
        (chunk,) = step(scheduler).chunks
        order.append(chunk.sequence.ticket.id)
        scheduler.finish(chunk.sequence)
    assert order == ["c", "d", "a", "b"]


def test_batch_never_starves():
    scheduler = create_scheduler(max_num_seqs=1)
    add(scheduler, "batch", 3, priority="batch")
    served = []
    for number in range(3 * BATCH_SHARE):
        add(scheduler, str(number), 3)
        add(scheduler, str(number) + "'", 3)
        (chunk,) = step(scheduler).chunks
        served.append(chunk.sequence.ticket.id)
        scheduler.finish(chunk.sequence)
        if "batch" in served:
            break
    assert served.index("batch") == BATCH_SHARE - 1


def test_the_newest_of_the_lowest_rank_is_preempted():
    scheduler = create_scheduler(num_blocks=16, max_num_seqs=4)
    batch = [add(scheduler, id, 7, priority="batch") for id in "xy"]
    step(scheduler)
    interactive = [add(scheduler, id, 7) for id in "ab"]
    preempted = []
    while len(preempted) < 3:
        step(scheduler)
        preempted += [s for s in (*batch, *interactive) if s.state is State.WAITING and s not in preempted]
    assert [s.ticket.id for s in preempted] == ["y", "x", "b"]
    assert all(not s.table and s.computed == 0 for s in preempted)
    assert scheduler.num_preemptions == 3


def test_a_preempted_sequence_prefills_its_prompt_and_replays_its_output():
    scheduler = create_scheduler(num_blocks=16, max_num_seqs=2)
    first, second = add(scheduler, "a", 10, max_tokens=50), add(scheduler, "b", 10, max_tokens=50)
    step(scheduler)
    while second.state is not State.WAITING:
        step(scheduler)
    output = second.num_output
    assert output > 5
    scheduler.finish(first)
    plan = step(scheduler)
    assert [(c.start, c.length, c.draws) for c in plan.prefill] == [(TILE, 2, False)]  # its first tile is still cached
    plan = step(scheduler)
    assert [(c.start, c.length, c.draws) for c in plan.decode] == [(10, output, True)]
    assert scheduler.prefix_hit_tokens == 0  # its own blocks: no hit


def test_a_batch_sequence_is_not_preempted_for_ever():
    scheduler = create_scheduler()
    sequence = add(scheduler, "a", 5, priority="batch")
    for _ in range(MAX_PREEMPTIONS):
        step(scheduler)
        scheduler._preempt(sequence)
    add(scheduler, "b", 5)
    add(scheduler, "c", 5, priority="batch")
    step(scheduler)
    step(scheduler)
    assert [s.ticket.id for s in scheduler._running] == ["a", "b", "c"]


def test_an_admission_leaves_each_running_sequence_a_block():
    scheduler = create_scheduler(num_blocks=16)
    add(scheduler, "a", 38)  # 10 blocks
    step(scheduler)
    second = add(scheduler, "b", 20)  # 6 with the first token: all that is left
    step(scheduler)
    assert second.state is State.WAITING
    scheduler.abort("b")
    third = add(scheduler, "c", 19)  # 5
    step(scheduler)
    assert third.state is State.RUNNING


def test_choices_wait_for_the_first_to_fill_the_cache():
    scheduler = create_scheduler()
    add(scheduler, "a", 40, n=3)
    assert rows(step(scheduler)) == [("prefill", "a", 32)]
    assert rows(step(scheduler)) == [("prefill", "a", 8), ("prefill", "a", 8), ("prefill", "a", 8)]
    assert scheduler.prefix_hit_tokens == 2 * 32


def test_choices_of_a_prompt_below_a_tile_do_not_wait():
    scheduler = create_scheduler()
    add(scheduler, "a", TILE, n=3)
    assert [len(step(scheduler).prefill) for _ in range(2)] == [1, 2]


def test_choices_do_not_wait_for_a_leader_that_is_gone():
    scheduler = create_scheduler()
    leader = add(scheduler, "a", 40, n=2)
    step(scheduler)
    scheduler.finish(leader)
    assert rows(step(scheduler)) == [("prefill", "a", 8)]  # four tiles are cached


def test_choices_do_not_wait_for_a_leader_that_waits_behind_them():
    scheduler = create_scheduler()
    leader = add(scheduler, "a", 40, priority="batch", n=2)
    while scheduler.num_waiting:
        step(scheduler)
    follower = scheduler._running[1]
    for _ in range(MAX_PREEMPTIONS):  # it ranks as an interactive one then, its leader does not
        scheduler._preempt(follower)
        step(scheduler)
    scheduler._preempt(follower)
    scheduler._preempt(leader)
    scheduler._blocks._evict(64)  # others had the blocks in the meantime
    assert step(scheduler).chunks
    while scheduler.num_waiting:
        assert step(scheduler).chunks


def test_abort_takes_a_request_from_wherever_it_is():
    scheduler = create_scheduler(max_num_seqs=2)
    for id in "abc":
        add(scheduler, id, 5, n=2)
    step(scheduler)
    for id in ("a", "b", "b", "unknown"):
        scheduler.abort(id)
    assert {c.sequence.ticket.id for c in step(scheduler).chunks} == {"c"}
    scheduler.abort("c")
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
    assert not scheduler.schedule(inf).chunks
    assert scheduler._blocks.num_used == 0


def test_only_one_requests_rows():
    scheduler = create_scheduler()
    add(scheduler, "a", 5)
    add(scheduler, "b", 5, n=2)
    step(scheduler)
    assert {c.sequence.ticket.id for c in scheduler.schedule(inf).chunks} == {"a", "b"}
    assert [c.sequence.ticket.id for c in scheduler.schedule(inf, only="b").chunks] == ["b", "b"]


def test_a_plan_that_is_not_committed_is_planned_again():
    scheduler = create_scheduler()
    add(scheduler, "a", 40)
    assert rows(scheduler.schedule(inf)) == rows(scheduler.schedule(inf))


def test_a_preempted_sequence_is_the_next_to_run():
    scheduler = create_scheduler(num_blocks=16, max_num_seqs=2)
    first, second = add(scheduler, "a", 10, max_tokens=50), add(scheduler, "b", 10, max_tokens=50)
    step(scheduler)
    add(scheduler, "c", 3)
    while second.state is not State.WAITING:
        step(scheduler)
    scheduler.finish(first)
    assert [chunk.sequence.ticket.id for chunk in step(scheduler).prefill] == ["b", "c"]


def test_a_replay_leaves_every_running_sequence_its_row():
    scheduler = create_scheduler(max_num_seqs=3, max_num_batched_tokens=3 + TILE)
    for id in "bc":
        add(scheduler, id, 5)
    while scheduler.num_waiting:
        step(scheduler)
    resumed = add(scheduler, "a", 5)
    resumed.order = -1  # it came before them, and was put back
    for _ in range(20):
        resumed.append(7)
    while resumed.prefilling:
        step(scheduler)
    lengths = [{c.sequence.ticket.id: c.length for c in step(scheduler).decode} for _ in range(2)]
    assert lengths == [{"a": 8, "b": 1, "c": 1}] * 2


def test_a_prefill_that_scores_its_prompt_goes_in_small_chunks():
    scheduler = create_scheduler(num_blocks=128, max_num_batched_tokens=512, max_model_len=512)
    (sequence,) = create_request("a", 300)
    sequence.prompt_logprobs = [TokenLogprob(1, "", None, b"")]
    scheduler.add(sequence)
    (chunk,) = scheduler.schedule(inf).prefill
    assert (chunk.length, chunk.logits, chunk.draws) == (LOGPROB_ROWS, LOGPROB_ROWS, False)


# --- nobody takes everything ------------------------------------------------------------------------------------------


def running(scheduler: Scheduler) -> list[str]:
    return [sequence.ticket.id for sequence in scheduler._running]


def fill(scheduler: Scheduler, steps: int = 40) -> None:
    for _ in range(steps):
        step(scheduler)


def roomy(**options) -> Scheduler:
    return create_scheduler(**{"num_blocks": 1024, "max_num_seqs": 16, "max_num_batched_tokens": 64, **options})


@pytest.mark.parametrize("kind", ["batch", "further choices", "long prompts"])
def test_large_work_leaves_places_to_whoever_comes(kind):
    scheduler = roomy(max_model_len=128)
    if kind == "batch":
        for number in range(20):
            add(scheduler, f"batch {number}", 3, priority="batch", max_tokens=100)
    elif kind == "further choices":
        add(scheduler, "wide", 3, n=20, max_tokens=100)
    else:
        for number in range(20):
            add(scheduler, f"long {number}", 65, max_tokens=100)
    fill(scheduler)
    assert scheduler.num_running == 14 + (kind == "further choices")  # its first choice is like any other's
    newcomers = [add(scheduler, id, 3) for id in "ab"[: 16 - scheduler.num_running]]
    step(scheduler)
    assert all(each.state is State.RUNNING and each.num_output == 1 for each in newcomers)
    assert scheduler.num_preemptions == 0


def test_batch_is_put_back_where_no_place_is_left():
    scheduler = roomy()
    batch = add(scheduler, "batch", 3, priority="batch", n=20, max_tokens=1_000)
    fill(scheduler, 5)
    for number in range(10):
        add(scheduler, str(number), 3, max_tokens=1_000)
    fill(scheduler, 3)
    assert running(scheduler) == [*map(str, range(10)), *["batch"] * 6]
    assert batch.state is State.RUNNING  # the newest went
    assert scheduler.num_preemptions == 8


def test_batch_gives_its_blocks_to_interactive_sequences():
    scheduler = create_scheduler(num_blocks=32, max_num_seqs=4)
    for id in "xyz":
        add(scheduler, id, 20, priority="batch")
    fill(scheduler, 3)
    assert running(scheduler) == ["x", "y", "z"]
    add(scheduler, "a", 60, max_tokens=4)
    step(scheduler)
    assert running(scheduler) == ["a", "x", "y"]
    fill(scheduler, 3)
    assert running(scheduler) == ["a", "x", "y"]  # and the others are not let in to be put back again


def test_nothing_is_put_back_for_a_sequence_that_does_not_fit_even_so():
    scheduler = create_scheduler(num_blocks=30, max_num_seqs=4)
    add(scheduler, "first", 50, max_tokens=60)
    add(scheduler, "batch", 20, priority="batch", max_tokens=60)
    fill(scheduler, 4)
    add(scheduler, "second", 60)
    fill(scheduler, 3)
    assert running(scheduler) == ["first", "batch"]
    assert scheduler.num_preemptions == 0


def test_further_choices_make_place_for_other_requests_and_not_for_their_own():
    scheduler = roomy()
    add(scheduler, "wide", 3, n=30, max_tokens=1_000)
    fill(scheduler, 20)
    assert scheduler.num_running == 15
    for number in range(3):
        add(scheduler, str(number), 3, max_tokens=1_000)
    fill(scheduler, 3)
    assert running(scheduler) == ["wide", "0", "1", "2", *["wide"] * 12]


def test_two_wide_requests_come_to_run_the_same():
    scheduler = roomy()
    for id in "ab":
        add(scheduler, id, 3, n=60, max_tokens=1_000)
        fill(scheduler, 20)
    for _ in range(20):  # choices end, and others take their places
        scheduler.finish(next(each for each in scheduler._running if each.ticket.id == "a" and each.index))
        step(scheduler)
        if running(scheduler).count("a") == running(scheduler).count("b"):
            break
    assert running(scheduler).count("a") == running(scheduler).count("b") == 8


def test_tenants_come_to_run_the_same():
    scheduler = create_scheduler(max_num_seqs=4)
    for number in range(12):
        add(scheduler, f"a{number}", 3, tenant="a", max_tokens=1_000)
    fill(scheduler, 4)
    add(scheduler, "b0", 3, tenant="b", received=1.0)
    add(scheduler, "b1", 3, tenant="b", received=1.0)
    for _ in range(2):
        scheduler.finish(scheduler._running[0])
        fill(scheduler, 2)
    assert [id[0] for id in running(scheduler)] == ["a", "a", "b", "b"]


def test_an_interactive_request_of_many_choices_does_not_starve():
    scheduler = create_scheduler(max_num_seqs=1)
    add(scheduler, "wide", 3, n=2, max_tokens=1)
    ended = []
    for number in range(6):
        add(scheduler, str(number), 3, received=0.1 * (number + 1))
        (chunk,) = step(scheduler).chunks
        ended.append(chunk.sequence.ticket.id)
        scheduler.finish(chunk.sequence)
    assert ended[:2] == ["wide", "wide"]


def blocked_batch(scheduler: Scheduler) -> None:
    """A batch sequence whose turn it is, and which places would be free for: too many blocks are taken."""
    add(scheduler, "blocked", 200, priority="batch")
    for number in range(BATCH_SHARE - 1):
        add(scheduler, str(number), 3)
        step(scheduler)
        scheduler.abort(str(number))
    assert scheduler._waiting.batch_turn


def test_a_batch_turn_without_room_does_not_keep_batch_from_being_put_back():
    scheduler = create_scheduler(max_model_len=256)
    for id in "xy":
        add(scheduler, id, 40, priority="batch", max_tokens=100)
        fill(scheduler, 2)
    blocked_batch(scheduler)
    add(scheduler, "a", 160)
    step(scheduler)
    assert running(scheduler) == ["a", "x"]


def test_a_batch_turn_without_room_does_not_keep_long_prompts_waiting():
    scheduler = create_scheduler(max_model_len=256)
    add(scheduler, "x", 40, max_tokens=100)
    fill(scheduler, 2)
    blocked_batch(scheduler)
    add(scheduler, "a", 36)
    step(scheduler)
    add(scheduler, "b", 33)  # behind the rest of another, with the blocks that there are
    step(scheduler)
    assert running(scheduler) == ["x", "a", "b"]


def test_a_batch_sequence_keeps_its_turn_until_there_is_room():
    scheduler = create_scheduler(max_model_len=256)
    add(scheduler, "x", 40, max_tokens=100)
    fill(scheduler, 2)
    blocked_batch(scheduler)
    add(scheduler, "a", 3)
    step(scheduler)
    assert running(scheduler) == ["a", "x"]
    scheduler.abort("x")
    add(scheduler, "long", 60)
    step(scheduler)
    assert running(scheduler) == ["a", "blocked"]


def test_choices_that_share_a_prompt_are_not_put_back_in_vain():
    scheduler = create_scheduler(num_blocks=24, max_num_batched_tokens=64)
    add(scheduler, "wide", 40, n=3)  # 11 blocks, 8 of which the others share: 3 come free with each
    fill(scheduler, 2)
    assert running(scheduler) == ["wide"] * 3
    add(scheduler, "a", 60)  # 16
    fill(scheduler, 2)
    assert running(scheduler) == ["wide"] * 3
    assert scheduler.num_preemptions == 0


def test_nothing_is_put_back_for_a_place_alone():
    scheduler = create_scheduler(num_blocks=30, max_num_seqs=2, max_num_batched_tokens=64)
    add(scheduler, "first", 58)
    add(scheduler, "batch", 3, priority="batch")
    fill(scheduler, 2)
    add(scheduler, "a", 60)
    step(scheduler)
    assert running(scheduler) == ["first", "batch"]
    assert scheduler.num_preemptions == 0


# --- brief prompts ----------------------------------------------------------------------------------------------------


def test_a_brief_prompt_passes_long_ones_and_has_a_step_of_its_own():
    scheduler = roomy(max_model_len=1024)
    for id in "xyz":
        add(scheduler, id, 600)
    step(scheduler)
    brief = add(scheduler, "brief", 10)
    assert rows(step(scheduler)) == [("prefill", "brief", 10)]
    assert brief.num_output == 1
    assert rows(step(scheduler)) == [("decode", "brief", 1), ("prefill", "x", 56)]


def test_steps_for_brief_prompts_alone_are_every_other_one_at_most():
    scheduler = roomy(max_model_len=1024)
    add(scheduler, "x", 600)
    add(scheduler, "batch", 3, priority="batch", max_tokens=1_000)
    fill(scheduler, 12)
    add(scheduler, "x", 600)
    seen = []
    for number in range(6):
        add(scheduler, str(number), 10, max_tokens=1)
        seen.append({chunk.sequence.ticket.id for chunk in step(scheduler).chunks})
        for each in list(scheduler._running):
            if each.ticket.id == str(number):
                scheduler.finish(each)
    assert [{"batch", "x"} <= each for each in seen] == [False, True] * 3
    assert all(str(number) in each for number, each in enumerate(seen))


def test_long_prompts_are_not_passed_for_ever():
    scheduler = roomy(max_model_len=1024)
    add(scheduler, "x", 600, received=0.0)
    passed = add(scheduler, "brief", 8, received=2.9)
    assert rows(step(scheduler))[0][1] == "brief"
    scheduler.finish(passed)
    add(scheduler, "late", 60, received=3.0)  # 0.3 s after it is worth: x has waited for its 3 s
    assert rows(step(scheduler))[0][1] == "x"


def test_while_brief_prompts_come_long_ones_go_in_short_steps():
    scheduler = roomy(max_model_len=1024)
    add(scheduler, "brief", 8, received=9.0, max_tokens=1)
    step(scheduler, now=10.0)
    add(scheduler, "x", 600, received=10.0)
    assert [rows(step(scheduler, now=now))[-1][2] for now in (10.5, 11.9, 12.1)] == [TILE, TILE, 56]


def test_the_short_step_is_what_the_machine_does_in_its_time():
    scheduler = roomy(max_model_len=1024)
    add(scheduler, "brief", 8, received=10.0, max_tokens=1)
    scheduler.finish(step(scheduler, now=10.0).chunks[0].sequence)
    add(scheduler, "x", 600, received=10.0)
    plan = step(scheduler, now=20.0)
    scheduler.observe(plan, seconds=64 / 1_000)  # 1,000 tokens a second
    assert step(scheduler, now=10.5).tokens == 24  # 30 of them in its time, in whole tiles
    assert step(scheduler, now=20.0).tokens == 64
    for _ in range(100):
        scheduler.observe(plan, seconds=64 / 50)  # the machine is busy otherwise
    assert step(scheduler, now=20.0).tokens == 24  # in half a second
