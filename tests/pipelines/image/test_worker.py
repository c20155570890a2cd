"""Images out of a worker process: frames in, pictures out."""

from pathlib import Path

import pytest

from pipelines.messages.frames import (
    Abort,
    Accepted,
    Done,
    Event,
    Failed,
    ModelSpec,
    Open,
    Ready,
    Stats,
    Step,
    StepReport,
)
from pipelines.messages.image import ImageOptions, ImageRequest, Picture
from tests.pipelines.image.driver import ImageDriver, pixels, worst
from tests.pipelines.worker_process import Worker


def test_a_worker_draws_what_the_pipeline_draws_and_stops_what_is_cancelled(sd_folder: Path) -> None:
    request = ImageRequest(prompt="a red cat", seed=3, steps=4)
    spec = ModelSpec(
        name="tiny",
        kind="image",
        pipeline="pipelines.image.pipeline:ImagePipeline",
        source=str(sd_folder),
        device="cpu",
        threads=1,
        options=ImageOptions(max_batch=4),
    )
    events: list[Event] = []
    reports: list[StepReport] = []
    with Worker(spec) as worker:
        while not isinstance(frame := worker.receive(), Ready):
            assert frame is not None
        worker.send(Open("long", ImageRequest(prompt="a tree", steps=150, n=4)))
        worker.send(Open("wrong", ImageRequest(prompt="a tree", scheduler="none")))
        worker.send(Open("mine", request))
        stopped = False
        while True:
            frame = worker.receive()
            assert frame is not None
            if isinstance(frame, Step):
                events += frame.events
                reports += [frame.report] if frame.report else []
            ended = {event.id for event in events if isinstance(event, Done | Failed)}
            if "mine" in ended and not stopped:
                worker.send(Abort("long"))
                stopped = True
            if stopped and "long" in ended and isinstance(frame, Stats) and frame.running == 0:
                break
    ends = {event.id: event for event in events if isinstance(event, Done | Failed)}
    assert isinstance(ends["mine"], Done)
    assert ends["mine"].timing.total >= ends["mine"].timing.compute > 0
    wrong, long = ends["wrong"], ends["long"]
    assert isinstance(wrong, Failed)
    assert (wrong.code, wrong.param) == ("invalid_request", "scheduler")
    assert isinstance(long, Failed)
    assert long.code == "cancelled"
    assert {event.id for event in events if isinstance(event, Accepted)} == {"mine", "long"}
    (picture,) = [event for event in events if isinstance(event, Picture)]
    (wanted,) = ImageDriver(sd_folder).draw(request)
    assert worst(pixels(picture.data), wanted) <= 1
    assert {report.kind for report in reports} == {"encode", "denoise", "decode"}
    assert frame.gauges["image_batch_rows"] == 4


@pytest.mark.parametrize("family", ["sd_folder", "sdxl_folder", "flux_folder"])
def test_half_precision_draws_about_the_same(family: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(family)
    asked = ImageRequest(prompt="a red cat", seed=3, steps=4, width=64, height=64, partial_images=1)
    (full,) = ImageDriver(folder).draw(asked)
    driver = ImageDriver(folder, dtype="bfloat16")
    (half,) = driver.draw(asked)
    difference = abs(full.astype(int) - half.astype(int))
    assert 0 < difference.mean() < 8
