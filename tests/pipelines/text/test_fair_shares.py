"""Nobody takes everything, and nobody waits for ever."""

import pytest

from pipelines.text.scheduler import Scheduler
from pipelines.text.sequence import State
from pipelines.text.waiting import BATCH_SHARE
from tests.pipelines.text.scheduling import TILE, add, create_scheduler, fill, roomy, rows, running, step


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
