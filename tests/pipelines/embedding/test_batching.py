from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base import Ticket
from pipelines.embedding.batching import LARGE, SMALL, SMALL_WINDOW_S, BatchQueue, Budget, Input, Request
from pipelines.messages.frames import Priority

SLACK = 8
BUDGET = Budget(full=100, shared=40, slack=SLACK)
LATER = SMALL_WINDOW_S + 1


def request(id: str, *sizes: int, priority: Priority = "interactive", tower: str = "text") -> Request:
    made = Request(Ticket(id, priority, received=0.0))
    made.inputs = [Input(made, index, tower, size, None, size) for index, size in enumerate(sizes)]  # type: ignore[arg-type]
    return made


def queue(*requests: Request, budget: Budget = BUDGET, now: float = 0.0) -> BatchQueue:
    made = BatchQueue(budget)
    for each in requests:
        made.add(each, now)
    return made


def names(batch: list[Input]) -> list[tuple[str, int]]:
    return [(each.ticket.id, each.index) for each in batch]


def tokens(batch: list[Input]) -> Counter[str]:
    """By request."""
    served: Counter[str] = Counter()
    for each in batch:
        served[each.ticket.id] += each.size
    return served


def padded(batch: list[Input]) -> int:
    return len(batch) * max(each.size for each in batch)


def test_only_requests_of_the_classes_that_have_room_are_taken() -> None:
    made = queue(request("large", *[10] * 20), request("small", 10))
    assert {id for id, _ in names(made.take(0.0, classes=[LARGE]))} == {"large"}
    assert names(made.take(0.0, classes=[SMALL])) == [("small", 0)]
    assert made.take(0.0, classes=[SMALL]) == []
    assert {id for id, _ in names(made.take(LATER, classes=[LARGE]))} == {"large"}


@given(
    st.lists(st.lists(st.integers(1, 150), min_size=1, max_size=30), min_size=1, max_size=6),
    st.lists(st.sampled_from(["interactive", "batch"]), min_size=6, max_size=6),
)
def test_every_input_is_in_one_batch_and_every_batch_in_the_budget(
    requests: list[list[int]], priorities: list[Priority]
) -> None:
    made = queue(*(request(str(i), *sizes, priority=priorities[i]) for i, sizes in enumerate(requests)))
    seen: Counter[tuple[str, int]] = Counter()
    now = 0.0
    while made:
        batch = made.take(now)
        assert batch, "inputs wait, and no batch is made of them"
        assert len(batch) == 1 or padded(batch) <= BUDGET.full
        assert max(e.size for e in batch) - min(e.size for e in batch) <= 2 * SLACK
        seen.update(names(batch))
        now += 0.7
    assert seen == {(str(i), index): 1 for i, sizes in enumerate(requests) for index in range(len(sizes))}
    assert made.tokens_waiting == 0


def test_an_input_larger_than_the_budget_is_a_batch_by_itself() -> None:
    made = queue(request("a", 5, 1000, 5))
    assert names(made.take(LATER)) == [("a", 1)]
    assert sorted(names(made.take(LATER))) == [("a", 0), ("a", 2)]
    assert not made


def test_a_batch_is_of_about_one_length() -> None:
    made = queue(request("a", 50, 3, 49, 4), budget=Budget(1000, 1000, SLACK))
    assert names(made.take(LATER)) == [("a", 0), ("a", 2)]
    assert names(made.take(LATER)) == [("a", 3), ("a", 1)]


def test_inputs_of_several_requests_share_a_batch() -> None:
    made = queue(request("a", 10), request("b", 9), request("c", 11))
    assert sorted(names(made.take(LATER))) == [("a", 0), ("b", 0), ("c", 0)]


def test_texts_and_images_do_not_share_a_batch() -> None:
    made = queue(request("a", 10), request("b", 10, tower="image"))
    assert names(made.take(LATER)) == [("a", 0)]
    assert names(made.take(LATER)) == [("b", 0)]


def test_whoever_comes_beside_a_large_request_is_in_the_next_batch() -> None:
    made = queue(request("large", *[10] * 500))
    for _ in range(5):
        assert {id for id, _ in names(made.take(0.0))} == {"large"}
    made.add(request("small", 3), 0.0)
    assert names(made.take(0.0)) == [("small", 0)]
    assert {id for id, _ in names(made.take(0.0))} == {"large"}


def test_a_large_request_runs_in_short_steps_only_while_small_ones_come() -> None:
    made = queue(request("large", *[10] * 500), now=0.0)
    assert padded(made.take(0.0)) == BUDGET.full
    made.add(request("small", 3), 10.0)
    assert names(made.take(10.0)) == [("small", 0)]
    assert padded(made.take(10.1)) == BUDGET.shared
    assert padded(made.take(10.0 + LATER)) == BUDGET.full


def test_two_large_requests_take_turns() -> None:
    made = queue(request("a", *[10] * 100), request("b", *[20] * 50))
    served = Counter({"a": 0, "b": 0})
    while min(served.values()) < 900:
        served += tokens(made.take(LATER))
        assert abs(served["a"] - served["b"]) <= BUDGET.full


def test_a_stream_of_newcomers_does_not_starve_a_large_request() -> None:
    large = request("large", *[10] * 100)
    made = queue(large)
    steps = 0
    while large.waiting:
        made.add(request(f"small-{steps}", 60), 0.0)  # all that a step does, for ever
        for each in made.take(0.0):
            if not each.owner.waiting:
                made.remove(each.ticket.id)
        steps += 1
        assert steps < 1000


def test_batch_class_requests_get_a_quarter_beside_interactive_ones() -> None:
    made = queue(request("i", *[10] * 400), request("b", *[50] * 400, priority="batch"))
    served: Counter[str] = Counter()
    for _ in range(40):
        served += tokens(made.take(LATER))
    assert 3 <= served["i"] / served["b"] <= 5


def test_nobody_waits_for_one_that_has_gone() -> None:
    made = queue(request("gone", *[10] * 50), request("here", 10, 10))
    taken = made.take(LATER)
    made.remove("gone")
    made.remove("gone")
    left = [each for each in [("here", 0), ("here", 1)] if each not in names(taken)]
    assert names(made.take(LATER)) == left or not left
    assert not made
    assert made.take(LATER) == []
    assert made.tokens_waiting == 0


@pytest.mark.parametrize("only", [None, "a"])
def test_a_failed_batch_can_be_taken_again(only: str | None) -> None:
    made = queue(request("a", 10, 12, 14), request("b", 11))
    batch = made.take(LATER, only)
    made.put_back(batch)
    assert made.inputs_waiting == 4
    assert made.tokens_waiting == 47
    assert sorted(names(made.take(LATER, only))) == sorted(names(batch))


def test_one_request_alone_after_a_failure() -> None:
    made = queue(request("a", 10, 12), request("b", 11))
    made.put_back(made.take(LATER))
    assert sorted(names(made.take(LATER, only="a"))) == [("a", 0), ("a", 1)]
    assert made.take(LATER, only="a") == []
    assert made.take(LATER, only="unknown") == []
    assert names(made.take(LATER)) == [("b", 0)]


def test_a_put_back_input_of_a_request_that_has_gone_stays_gone() -> None:
    made = queue(request("a", 10), request("b", 10))
    batch = made.take(LATER)
    made.remove("a")
    made.put_back(batch)
    assert names(made.take(LATER)) == [("b", 0)]
    assert not made
