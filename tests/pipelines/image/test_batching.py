"""Which images a tick takes, and how many rows it has."""

from typing import Any

import pytest
import torch

from models.diffusion.text import Conditioning
from pipelines.base import Ticket
from pipelines.image import rows
from pipelines.image.batching import DenoiseQueue
from pipelines.image.job import ImageJob
from pipelines.image.rows import RowCap, measure


class Order:
    """What a queue reads of one."""

    def __init__(self, id: str, priority: Any, length: int) -> None:
        self.ticket = Ticket(id, priority, 0.0)
        self.id = id
        self.guided = True
        self.conditional = Conditioning(torch.zeros(length, 4))


def job(id: str, *, edge: int = 8, priority: str = "interactive", length: int = 5, brief: bool = False) -> ImageJob:
    order: Any = Order(id, priority, length)
    nothing: Any = None
    return ImageJob(order, 0, 0, nothing, nothing, brief, latents=torch.zeros(1, 4, edge, edge))


def run(queued: DenoiseQueue, count: int, max_rows: int = 4) -> list[str]:
    """Names of each batch."""
    taken = []
    for _ in range(count):
        batch = queued.take(lambda _: max_rows)
        queued.served(batch)
        taken.append("".join(each.order.id for each in batch))
    return taken


def queue(*jobs: ImageJob) -> DenoiseQueue:
    queued = DenoiseQueue()
    for each in jobs:
        queued.add(each)
    return queued


def test_everyone_of_one_shape_rides_along() -> None:
    assert run(queue(job("a"), job("b"), job("c")), 2, max_rows=8) == ["abc", "abc"]


def test_where_rows_are_short_turns_go_round() -> None:
    assert run(queue(job("a"), job("b"), job("c")), 3) == ["ab", "ca", "bc"]


def test_a_brief_one_passes_long_ones_for_half_of_the_work() -> None:
    queued = queue(job("a"), job("b"), job("c"), job("d"), job("s", brief=True))
    # Its own eight steps, or as many of several: then the others have as much work done, in steps of twice the rows.
    assert run(queued, 8) == ["s"] * 8
    assert run(queued, 7) == ["ab", "s", "s", "cd", "s", "s", "ab"]


def test_brief_ones_alone_leave_nothing_to_be_made_up_for() -> None:
    queued = queue(job("s", brief=True), job("t", brief=True))
    assert run(queued, 20) == ["st", *["st"] * 19]
    queued.add(job("a"))
    assert run(queued, 1) == ["st"]


def test_shapes_and_lengths_of_text_do_not_mix() -> None:
    assert run(queue(job("a"), job("b", edge=16)), 2, max_rows=8)[0] == "a"
    assert run(queue(job("a"), job("b", length=6)), 2, max_rows=8) == ["a", "b"]


def test_shapes_share_the_work_by_latents() -> None:
    """A large image's step is four small ones' worth."""
    assert run(queue(job("a"), job("B", edge=16)), 10) == ["a", "B", "a", "a", "a", "a", "B", "a", "a", "a"]


def test_requests_share_the_work_however_many_images_they_have() -> None:
    taken = "".join(run(queue(*[job("n") for _ in range(6)], job("a")), 60, max_rows=2))
    assert 28 <= taken.count("a") <= 32


def test_newcomers_do_not_overtake_for_ever() -> None:
    queued = queue(job("B", edge=16), job("a"))
    served = 0
    for number in range(200):
        queued.add(job(f"{number}"))
        for each in run(queued, 1):
            served += "B" in each
        queued.drop(f"{number - 3}")
    assert served >= 10


def test_whoever_comes_is_served_next() -> None:
    queued = queue(job("a"), job("b"))
    run(queued, 50)
    queued.add(job("c"))
    assert "c" in "".join(run(queued, 2))
    assert run(queued, 30).count("c") < 20  # and makes up for nothing


def test_one_request_alone() -> None:
    queued = queue(job("a"), job("b"))
    assert [each.order.id for each in queued.take(lambda _: 8, only="b")] == ["b"]
    assert queued.take(lambda _: 8, only="gone") == []


def test_an_image_is_never_split_from_its_unconditional_row() -> None:
    assert run(queue(job("a"), job("b")), 2, max_rows=1) == ["a", "b"]
    assert run(queue(job("a"), job("b")), 2, max_rows=3) == ["a", "b"]


# --- rows -------------------------------------------------------------------------------------------------------------


def test_larger_images_have_fewer_rows() -> None:
    cap = RowCap(8, latents=64)
    assert [cap.of(latents) for latents in (64, 128, 256, 4096, 1)] == [8, 4, 2, 2, rows.MOST]
    assert RowCap(6).of(4096) == 6


def test_calls_of_long_images_are_short_while_brief_ones_come_and_go() -> None:
    cap = RowCap(32, latents=64, rate=64 * 8 / rows.SHARED_STEP_S)  # eight rows in the time that brief ones wait for
    assert cap.of(64, now=10.0, brief=False) == 32
    cap.brief(10.0)
    assert cap.of(64, now=11.0, brief=False) == 8
    assert cap.of(128, now=11.0, brief=False) == 4
    assert cap.of(64 * 1000, now=11.0, brief=False) == rows.LEAST
    assert cap.of(64, now=11.0, brief=True) == 32
    assert cap.of(64, now=10.0 + rows.BRIEF_WINDOW_S, brief=False) == 32
    for _ in range(100):
        cap.observe(64 * 8, 2 * rows.SHARED_STEP_S)  # the machine is half as fast by now
    assert cap.of(64, now=11.0, brief=False) == 4


def test_a_cap_that_was_given_learns_the_speed_from_its_calls() -> None:
    cap = RowCap(32)
    cap.brief(0.0)
    assert cap.of(64, now=1.0, brief=False) == 32
    cap.observe(64 * 8, rows.SHARED_STEP_S)
    assert cap.of(64, now=1.0, brief=False) == 8


def test_a_brief_image_that_comes_shortens_the_calls_of_the_others(
    sd_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.pipelines.image.driver import ImageDriver, red_cat

    monkeypatch.setattr(rows, "SHARED_STEP_S", 1e-9)  # the least of rows, on every machine
    driver = ImageDriver(sd_folder, max_batch=32)
    for name in "abcdefgh":
        driver.open(name, red_cat(steps=50))
    driver.ticks(3)
    assert driver.denoised[-1] == 16
    driver.open("s", red_cat(steps=4))
    driver.ticks(8)
    assert driver.denoised[-4:] == [rows.LEAST] * 4


class Machine:
    """Seconds of a call by its rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> None:
        self.tried: list[int] = []

        def timed(family: Any, size: Any, count: int) -> float:
            self.tried.append(count)
            return seconds[count]

        monkeypatch.setattr(rows, "_seconds", timed)


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ({1: 1e-3, 2: 1.1e-3, 4: 1.4e-3, 8: 2.7e-3, 16: 5.4e-3}, 4),  # flat beyond
        ({1: 1e-3, 2: 2e-3, 4: 4e-3}, 2),  # nothing to gain: one image at a time
        ({1: 1e-3, 2: 2.1e-3, 4: 2e-3, 8: 4e-3, 16: 8e-3}, 4),  # one bad reading
        ({1: 3.0}, 2),  # slow anyway
    ],
)
def test_rows_grow_while_each_gets_cheaper(
    sd_folder: Any, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], wanted: int
) -> None:
    from tests.pipelines.image.driver import ImageDriver

    machine = Machine(monkeypatch, seconds)
    assert measure(ImageDriver(sd_folder).family, None).rows == wanted
    assert machine.tried == list(seconds)


def test_the_operator_may_say_how_many(sd_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pipelines.image.driver import ImageDriver

    machine = Machine(monkeypatch, {1: 1e-3})
    assert measure(ImageDriver(sd_folder).family, 12).rows == 12
    assert machine.tried == [1]
