"""What breaks, breaks alone; and what can't be loaded says why."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models.diffusion.loading import load_family
from models.errors import ModelLoadError
from pipelines.base import ModelError, StepFailed, Ticket
from pipelines.image import files
from pipelines.image.pipeline import ImagePipeline
from pipelines.messages.frames import Done, Failed, ModelSpec
from pipelines.messages.image import ImageOptions
from tests.pipelines.image.driver import ImageDriver, pictures, red_cat, worst

CLOSE = 1  # of 255
TICKET = Ticket("t", "interactive", 0.0)


def test_latents_that_are_no_numbers_fail_instead_of_a_black_image(sd_folder: Path) -> None:
    driver = ImageDriver(sd_folder)
    last: Any = driver.family.unet.conv_out  # type: ignore[attr-defined]
    last.weight = torch.nn.Parameter(torch.full_like(last.weight, torch.nan), requires_grad=False)
    driver.open("r", red_cat(n=2))
    events = driver.run()
    assert [(type(event), event.id) for event in events] == [(Failed, "r")]
    assert isinstance(events[0], Failed)
    assert events[0].code == "invalid_output"
    assert len(driver.denoised) == 1


def test_pixels_that_are_no_numbers_fail_and_others_do_not(driver: ImageDriver) -> None:
    autoencoder: Any = driver.family.autoencoder
    decode = autoencoder.decode

    def half_broken(latents: torch.Tensor) -> torch.Tensor:
        pixels = decode(latents)
        pixels[0, 0, 0, 0] = float("inf")
        return pixels

    autoencoder.decode = half_broken
    driver.open("first", red_cat())
    driver.open("second", red_cat(seed=1))
    ends = {event.id: event for event in driver.run() if isinstance(event, Done | Failed)}
    assert isinstance(ends["first"], Failed)
    assert ends["first"].code == "invalid_output"
    assert isinstance(ends["second"], Done)


@pytest.mark.parametrize("stage", ["encode", "predict", "decode"])
def test_a_failed_step_leaves_its_requests_as_they_were(driver: ImageDriver, stage: str) -> None:
    """The engine then runs each alone: only the one that breaks the step fails, and the other's image is right."""
    (alone,) = driver.draw(red_cat(scheduler="dpmpp_2m"))
    owner: Any = driver.family.autoencoder if stage == "decode" else driver.family
    whole = getattr(owner, stage)

    def fails_for_two(*inputs: Any) -> Any:
        if len(inputs[0]) > 2 or (stage == "decode" and len(inputs[0]) > 1):
            raise MemoryError("too many at once")
        return whole(*inputs)

    setattr(owner, stage, fails_for_two)
    driver.open("mine", red_cat(scheduler="dpmpp_2m"))
    driver.open("other", red_cat(seed=1))
    events, failures, suspects = [], 0, set()
    while driver.pipeline.busy:
        try:
            events += driver.pipeline.step().events
        except StepFailed as failure:
            failures += 1
            suspects = set(failure.request_ids)
            for id in failure.request_ids:
                events += driver.pipeline.step(only=id).events
    assert failures > 0
    assert suspects == {"mine", "other"}
    assert worst(pictures(events, "mine")[0], alone) <= CLOSE
    assert sum(isinstance(event, Done) for event in events) == 2


def test_a_noise_scheduler_that_fails_takes_nobody_along(driver: ImageDriver, caplog: pytest.LogCaptureFixture) -> None:
    jobs = driver.pipeline.prepare(TICKET, red_cat())

    def broken(*_: Any, **__: Any) -> Any:
        raise IndexError("beyond the last step")

    jobs[0].noise.scheduler.step = broken
    driver.pipeline.admit(jobs)
    driver.open("fine", red_cat())
    ends = {event.id: event for event in driver.run() if isinstance(event, Done | Failed)}
    assert isinstance(ends["t"], Failed)
    assert ends["t"].code == "internal_error"
    assert isinstance(ends["fine"], Done)


def test_a_picture_that_its_format_cannot_hold_fails_alone(
    driver: ImageDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(pixels: Any, output: Any, *, preview: bool = False) -> bytes:
        if output.format == "webp":
            raise ValueError("too wide")
        return b"file"

    monkeypatch.setattr(files, "encode", refuses)
    driver.open("webp", red_cat(output_format="webp"))
    driver.open("png", red_cat())
    ends = {event.id: event for event in driver.run() if isinstance(event, Done | Failed)}
    assert isinstance(ends["webp"], Failed)
    assert isinstance(ends["png"], Done)


# --- loading ----------------------------------------------------------------------------------------------------------


def spec(folder: Path, **fields: Any) -> ModelSpec:
    settings: dict[str, Any] = {
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "options": ImageOptions(),
        **fields,
    }
    return ModelSpec(
        name="tiny", kind="image", pipeline="pipelines.image.pipeline:ImagePipeline", source=str(folder), **settings
    )


def test_loading_warms_up_and_says_what_is_served(sd_folder: Path) -> None:
    loaded, ready = ImagePipeline.load(spec(sd_folder, options=ImageOptions(max_images=9)))
    assert ready.slots == 9
    assert ready.context_length == 20
    assert ready.details["size"] == "64x64"
    assert ready.details["schedulers"].split(", ")[0] == "ddim"
    assert 2 <= int(ready.details["max_batch"]) <= 32
    assert not loaded.busy


def test_what_cannot_be_served_is_refused_by_name(sd_folder: Path, tmp_path: Path) -> None:
    index = (sd_folder / "model_index.json").read_text()
    (tmp_path / "model_index.json").write_text(index.replace("StableDiffusionPipeline", "KandinskyPipeline"))
    with pytest.raises(ModelError, match="KandinskyPipeline"):
        ImagePipeline.load(spec(tmp_path))
    with pytest.raises(ModelError, match="quantization"):
        ImagePipeline.load(spec(sd_folder, quantization="int8"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ModelError, match="model_index"):
        ImagePipeline.load(spec(tmp_path / "nothing"))


def test_a_missing_part_is_named(sd_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline", "unet": [null, null]}')
    with pytest.raises(ModelLoadError, match="scheduler"):
        load_family(tmp_path, device="cpu")
