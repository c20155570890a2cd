"""Images among others: each is what it is alone, whatever comes and goes beside it."""

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.base import Ticket
from pipelines.image import files, pipeline
from pipelines.messages.frames import Done, Failed
from pipelines.messages.image import Denoised, Picture, Preview
from tests.pipelines.image.driver import ImageDriver, pictures, pixels, red_cat, worst

CLOSE = 1  # of 255
TICKET = Ticket("t", "interactive", 0.0)


OTHERS = [
    red_cat(prompt="two dogs", steps=3, scheduler="euler", seed=1),
    red_cat(prompt="a tree", steps=9, scheduler="euler_a", seed=2, guidance_scale=1.0),
    red_cat(prompt="a car", steps=4, scheduler="dpmpp_2m", seed=3, guidance_scale=9.0),
    red_cat(prompt="a rainbow", steps=7, scheduler="unipc", seed=4, negative_prompt="rain"),
    red_cat(prompt="a castle", steps=5, scheduler="lcm", seed=5, width=72, height=40),
    red_cat(prompt="an apple", steps=8, scheduler="dpmpp_2m_karras", seed=6, width=72, height=40),
    red_cat(prompt="a rocket", steps=2, scheduler="ddim", seed=8, guidance_scale=0.0, partial_images=2),
]


@pytest.mark.parametrize("scheduler", ["ddim", "euler", "euler_a", "dpmpp_2m", "dpmpp_2m_karras", "unipc", "lcm"])
def test_an_image_is_the_same_alone_and_among_seven_others(driver: ImageDriver, scheduler: str) -> None:
    mine = red_cat(scheduler=scheduler)
    (alone,) = driver.draw(mine)
    alones = [driver.draw(each)[0] for each in OTHERS]
    for number, each in enumerate(OTHERS):
        driver.open(f"other-{number}", each)
    first = driver.ticks(2)  # it joins those that are on their way
    driver.open("mine", mine)
    events = first + driver.run()
    assert max(driver.denoised) >= 8
    assert worst(pictures(events, "mine")[0], alone) <= CLOSE
    for number, wanted in enumerate(alones):
        assert worst(pictures(events, f"other-{number}")[0], wanted) <= CLOSE
    assert worst(alone, alones[0]) > 50 * CLOSE


def test_every_family_batches_without_changing_a_picture(sdxl_folder: Path, flux_folder: Path) -> None:
    for folder, fields in ((sdxl_folder, {}), (flux_folder, {"width": 64, "height": 64})):
        driver = ImageDriver(folder)
        requests = [
            red_cat(prompt=f"{seed} cats", seed=seed, steps=2 + seed, guidance_scale=1.0 + seed, **fields)
            for seed in range(4)
        ]
        alone = [driver.draw(each)[0] for each in requests]
        for number, each in enumerate(requests):
            driver.open(str(number), each)
        events = driver.run()
        for number, wanted in enumerate(alone):
            assert worst(pictures(events, str(number))[0], wanted) <= CLOSE
        assert max(driver.denoised) > max(2, len(requests) - 1)


def test_image_k_of_n_is_image_0_at_seed_plus_k(driver: ImageDriver) -> None:
    many = driver.draw(red_cat(n=3, scheduler="euler_a"))
    assert len(many) == 3
    for k, image in enumerate(many):
        (alone,) = driver.draw(red_cat(seed=7 + k, scheduler="euler_a"))
        assert worst(image, alone) <= CLOSE
    assert worst(many[0], many[1]) > 50 * CLOSE


def test_seeds_are_told_and_draw_the_same_again(driver: ImageDriver) -> None:
    driver.open("r", red_cat(seed=None, n=2))
    events = driver.run()
    told = [event for event in events if isinstance(event, Picture)]
    assert told[1].seed == told[0].seed + 1
    (again,) = driver.draw(red_cat(seed=told[1].seed))
    assert worst(again, pixels(told[1].data)) <= CLOSE
    driver.open("s", red_cat(seed=None))
    assert [event.seed for event in driver.run() if isinstance(event, Picture)] != [told[0].seed]


def test_a_request_ends_once_after_all_of_its_pictures(driver: ImageDriver) -> None:
    driver.open("r", red_cat(n=3, partial_images=1))
    events = driver.run()
    assert isinstance(events[-1], Done)
    assert sum(isinstance(event, Done | Failed) for event in events) == 1
    assert events[-1].usage.completion_tokens == 0
    assert events[-1].usage.prompt_tokens == sum(
        work.prompt_tokens for work in driver.pipeline.prepare(TICKET, red_cat(n=3))
    )
    timing = events[-1].timing
    assert 0 <= timing.queue <= timing.total
    assert 0 < timing.compute <= timing.total
    assert timing.prepare + timing.queue + timing.compute == pytest.approx(timing.total)
    stats = driver.pipeline.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.gauges.keys() == {"image_batch_rows"}


def test_a_cancelled_image_leaves_at_the_next_tick_and_leaves_the_others_alone(driver: ImageDriver) -> None:
    others = [red_cat(seed=seed, steps=9, scheduler="euler_a") for seed in (1, 2)]
    alone = [driver.draw(each)[0] for each in others]
    driver.reports.clear()
    driver.open("0", others[0])
    driver.open("gone", red_cat(seed=9, steps=50, n=2))
    driver.open("1", others[1])
    events = driver.ticks(3)
    assert driver.denoised == [8, 8, 8]
    driver.pipeline.abort("gone")
    driver.pipeline.abort("gone")
    driver.pipeline.abort("never there")
    events += driver.run()
    assert driver.denoised[3:] == [4] * 6
    assert [event.id for event in events if event.id == "gone"] == []
    for number, wanted in enumerate(alone):
        assert worst(pictures(events, str(number))[0], wanted) <= CLOSE


@pytest.mark.parametrize("ticks", [0, 1, 4])
def test_a_cancelled_request_says_nothing_more_in_any_stage(driver: ImageDriver, ticks: int) -> None:
    driver.open("gone", red_cat(steps=4, partial_images=3, progress=True))
    driver.ticks(ticks)
    driver.pipeline.abort("gone")
    assert driver.run() == []
    assert not driver.pipeline.busy


def test_a_cancelled_picture_that_is_being_written_is_not_told(
    driver: ImageDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = threading.Event()

    def slow(*_: Any, **__: Any) -> bytes:
        assert cancelled.wait(60)
        return b"file"

    monkeypatch.setattr(files, "encode", slow)
    driver.open("gone", red_cat(steps=1))
    while not any(report.kind == "decode" for report in driver.reports):
        assert driver.step() == []
    assert driver.pipeline.busy
    driver.pipeline.abort("gone")
    cancelled.set()
    assert driver.run() == []


# --- ticks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "rows"), [(4, 2), (12, 4)])
def test_a_short_job_passes_a_long_one_and_another_shares_its_ticks(driver: ImageDriver, steps: int, rows: int) -> None:
    driver.open("long", red_cat(steps=50))
    driver.ticks(5)
    driver.open("short", red_cat(steps=steps, seed=1))
    driver.reports.clear()
    while not any(isinstance(event, Done) and event.id == "short" for event in driver.step()):
        assert len(driver.denoised) <= steps + 4  # its own, and what is run while its picture is written
    assert driver.denoised[:steps] == [rows] * steps


def test_a_bucket_of_another_shape_has_its_turns(driver: ImageDriver) -> None:
    """However many of one size come, those of another go on at about their share of the work."""
    driver.open("wide", red_cat(steps=4, width=72, height=40))
    for round_ in range(12):
        driver.open(f"{round_}", red_cat(steps=2, seed=round_))
        events = driver.step() + driver.ticks(1)
        if any(isinstance(event, Done) and event.id == "wide" for event in events):
            return
    raise AssertionError("it starved")


def test_rows_stay_within_the_cap_and_everyone_gets_there(sd_folder: Path) -> None:
    driver = ImageDriver(sd_folder, max_batch=5)
    alone = [driver.draw(red_cat(seed=seed, steps=3))[0] for seed in range(5)]
    driver.reports.clear()
    for seed in range(5):
        driver.open(str(seed), red_cat(seed=seed, steps=3))
    events = driver.run()
    assert max(driver.denoised) == 4  # an image and its unconditional row stay together
    assert sum(driver.denoised) == 5 * 3 * 2
    for seed, wanted in enumerate(alone):
        assert worst(pictures(events, str(seed))[0], wanted) <= CLOSE


def test_interactive_images_are_served_more_often_than_batch_ones(sd_folder: Path) -> None:
    driver = ImageDriver(sd_folder, max_batch=2)
    driver.open("batch", red_cat(steps=20, progress=True), priority="batch")
    driver.open("now", red_cat(steps=20, progress=True))
    events = driver.ticks(20)
    steps = {id: sum(isinstance(each, Denoised) and each.id == id for each in events) for id in ("batch", "now")}
    assert steps["now"] >= 3 * steps["batch"]
    assert steps["batch"] >= 3


def test_unconditional_rows_are_run_only_where_guidance_is_above_1(driver: ImageDriver) -> None:
    driver.open("guided", red_cat(steps=2))
    driver.open("free", red_cat(steps=2, guidance_scale=1.0))
    driver.run()
    assert driver.denoised == [3, 3]


def test_encoding_and_decoding_are_interleaved_with_ticks(driver: ImageDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "TEXTS", 2)  # one request's
    driver.open("long", red_cat(steps=30))
    driver.ticks(1)
    for number in range(4):
        driver.open(str(number), red_cat(steps=3 + number, seed=number, width=72 + 8 * number))
    driver.run()
    kinds = [report.kind for report in driver.reports]
    last = len(kinds) - 1 - kinds[::-1].index("denoise")
    assert kinds[:last].count("encode") == 5
    assert kinds[:last].count("decode") == 4
    for first, second in pairwise(kinds[1 : last + 1]):
        assert (first, second) not in {("decode", "decode"), ("encode", "encode"), ("encode", "decode")}


# --- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "wanted"), [(12, 3), (12, 0), (5, 2), (2, 3), (1, 3)])
def test_previews_come_evenly_spread_and_all_of_them(driver: ImageDriver, steps: int, wanted: int) -> None:
    driver.open("r", red_cat(steps=steps, partial_images=wanted))
    events = driver.run()
    previews = [event for event in events if isinstance(event, Preview)]
    assert [event.number for event in previews] == list(range(wanted))
    for event in previews:
        assert (event.width, event.height) == (64, 64)
        assert pixels(event.data).shape == (64, 64, 3)
    assert isinstance(events[-2], Picture)
    if steps > wanted > 0:
        assert worst(pixels(previews[0].data), pixels(events[-2].data)) > CLOSE


def test_previews_are_due_after_equal_parts_of_the_way(driver: ImageDriver) -> None:
    (job,) = driver.pipeline.prepare(TICKET, red_cat(steps=12, partial_images=3))
    due = []
    for job.at in range(1, 13):
        due += [job.at] * len(job.previews_due())
    assert due == [3, 6, 9]


@pytest.mark.parametrize("scheduler", ["ddim", "euler", "euler_a", "dpmpp_2m", "unipc", "lcm"])
def test_a_preview_shows_where_the_image_is_going(driver: ImageDriver, scheduler: str) -> None:
    """The clean latents that the steps aim at, whose last are those of the image: not the noise that is left."""
    (job,) = driver.pipeline.prepare(TICKET, red_cat(steps=10, scheduler=scheduler))
    driver.pipeline.admit([job])
    driver.ticks(5)
    halfway = job.aim
    driver.run()
    assert halfway is not None
    assert job.latents is not None
    noise = torch.randn(halfway.shape, generator=torch.Generator().manual_seed(7))
    assert (halfway - job.latents).square().mean() < (noise - job.latents).square().mean()
    assert job.aim is not None
    assert torch.allclose(job.aim, job.latents, atol=0.3)


def test_progress_is_told_where_it_is_asked_for(driver: ImageDriver) -> None:
    driver.open("r", red_cat(steps=3, n=2, progress=True))
    told = [(each.index, each.step, each.steps) for each in driver.run() if isinstance(each, Denoised)]
    assert sorted(told) == [(index, step, 3) for index in (0, 1) for step in (1, 2, 3)]
    driver.open("s", red_cat(steps=3))
    assert not any(isinstance(event, Denoised) for event in driver.run())


@pytest.mark.parametrize(("format", "magic"), [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8"), ("webp", b"RIFF")])
def test_pictures_come_in_the_format_that_was_asked_for(driver: ImageDriver, format: Any, magic: bytes) -> None:
    driver.open("r", red_cat(output_format=format, partial_images=1))
    told = [event for event in driver.run() if isinstance(event, Picture | Preview)]
    assert len(told) == 2
    assert all(event.data.startswith(magic) for event in told)
    (plain,) = driver.draw(red_cat())
    assert np.corrcoef(plain.ravel(), pixels(told[-1].data).ravel())[0, 1] > 0.8


def test_compression_is_the_quality(driver: ImageDriver) -> None:
    sizes = []
    for quality in (5, 90):
        driver.open("r", red_cat(output_format="jpeg", output_compression=quality))
        sizes += [len(event.data) for event in driver.run() if isinstance(event, Picture)]
    assert sizes[0] * 2 < sizes[1]
