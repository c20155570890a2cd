from math import inf

import pytest

from pipelines.messages.text import TokenLogprob
from pipelines.text.scheduler import LOGPROB_ROWS, MAX_PREEMPTIONS
from pipelines.text.sequence import State
from pipelines.text.waiting import BATCH_SHARE
from tests.pipelines.text.scheduling import TILE, add, create_request, create_scheduler, rows, step


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
