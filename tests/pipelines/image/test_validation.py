"""What is refused before anything is drawn, by the name that the wire has for it."""

import io
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.diffusion.family import Size
from pipelines.base import InvalidRequest, Ticket
from pipelines.image import uploads
from pipelines.media import pictures
from pipelines.messages.image import ImageRequest
from tests.pipelines.image import checkpoints
from tests.pipelines.image.driver import ImageDriver, worst

TICKET = Ticket("t", "interactive", 0.0)


@pytest.fixture(scope="module")
def driver(sd_folder: Path) -> ImageDriver:
    return ImageDriver(sd_folder, max_pixels=128 * 128, max_steps=60, max_images=8)


@pytest.fixture(scope="module")
def flux(flux_folder: Path) -> ImageDriver:
    return ImageDriver(flux_folder, max_pixels=128 * 128)


@pytest.fixture
def image(tmp_path: Path) -> str:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "image.png")
    return str(tmp_path / "image.png")


def refusal(driver: ImageDriver, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        driver.pipeline.prepare(TICKET, ImageRequest(**{"prompt": "a cat", **fields}))
    return raised.value


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("negative_prompt", {"negative_prompt": "rain", "guidance_scale": 1.0}),
        ("num_inference_steps", {"steps": 55, "scheduler": "lcm"}),  # more than it was distilled from
        ("scheduler", {"scheduler": "flow_match_euler"}),
        ("size", {"width": 66, "height": 64}),
        ("size", {"width": 4096, "height": 4096}),
    ],
)
def test_what_is_wrong_is_named(driver: ImageDriver, param: str, fields: dict[str, Any]) -> None:
    assert refusal(driver, **fields).param == param


@pytest.mark.parametrize("fields", [{"output_compression": 100}, {"n": 8}, {"seed": 0}, {"steps": 60}])
def test_limits_themselves_are_legal(driver: ImageDriver, fields: dict[str, Any]) -> None:
    assert driver.pipeline.prepare(TICKET, ImageRequest(prompt="a cat", **fields))


def test_a_prompt_that_the_model_can_not_read_whole_is_refused(driver: ImageDriver) -> None:
    error = refusal(driver, prompt="a" * 19)
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert "21" in error.message
    assert "20" in error.message
    assert refusal(driver, negative_prompt="a" * 19).param == "negative_prompt"
    assert driver.pipeline.prepare(TICKET, ImageRequest(prompt="a" * 18))


@pytest.mark.parametrize(
    ("size", "nearest"),
    [
        ((66, 64), "64x64"),
        ((70, 100), "72x104"),
        ((1, 1), "8x8"),
        ((1000, 1000), "128x128"),
        ((4000, 10), "2048x8"),
        ((136, 128), "128x128"),
    ],
)
def test_a_size_off_the_grid_is_answered_with_the_nearest_legal_one(
    driver: ImageDriver, size: tuple[int, int], nearest: str
) -> None:
    error = refusal(driver, width=size[0], height=size[1])
    assert error.param == "size"
    assert f"the nearest is {nearest}" in error.message
    width, height = map(int, nearest.split("x"))
    assert driver.pipeline.prepare(TICKET, ImageRequest(prompt="a cat", width=width, height=height))


def test_the_nearest_size_is_drawn_where_that_is_asked_for(driver: ImageDriver) -> None:
    request = ImageRequest(prompt="a cat", width=1792, height=1024, nearest=True)
    (job,) = driver.pipeline.prepare(TICKET, request)
    assert str(job.order.size) == "168x96"
    request = ImageRequest(prompt="a cat", width=72, height=64, nearest=True)
    assert str(driver.pipeline.prepare(TICKET, request)[0].order.size) == "72x64"


def test_no_edge_is_longer_than_a_file_can_hold(driver: ImageDriver) -> None:
    assert str(driver.family.nearest(Size(100_000, 8), 2**30)) == "8192x8"


def test_tokens_are_counted_as_far_as_the_caller_wrote_them(driver: ImageDriver) -> None:
    for fields, tokens in (({}, 5), ({"negative_prompt": "dog"}, 10), ({"n": 3}, 5)):
        jobs = driver.pipeline.prepare(TICKET, ImageRequest(prompt="cat", **fields))
        assert [job.prompt_tokens for job in jobs] == [tokens] + [0] * (len(jobs) - 1)


def test_any_size_has_a_legal_one_near_it(driver: ImageDriver) -> None:
    for width in range(1, 3000, 97):
        for height in range(1, 3000, 89):
            near = driver.family.nearest(Size(width, height), 128 * 128)
            assert driver.family.nearest(near, 128 * 128) == near
            assert near.width * near.height <= 128 * 128


def test_models_without_a_use_for_something_say_so(flux: ImageDriver, image: str, tmp_path: Path) -> None:
    assert refusal(flux, width=64, height=64, image=image).param == "image"
    assert refusal(flux, width=64, height=64, negative_prompt="rain").param == "negative_prompt"
    for name in ("ddim", "euler", "lcm"):
        error = refusal(flux, width=64, height=64, scheduler=name)
        assert error.param == "scheduler"
        assert "flow_match_euler" in error.message
    assert refusal(flux, width=68, height=64).param == "size"  # a patch is two latents wide
    schnell = ImageDriver(checkpoints.flux(tmp_path, guidance=False))
    assert refusal(schnell, width=64, height=64, guidance_scale=3.5).param == "guidance_scale"


def test_defaults_are_the_requests_then_the_operators_then_the_authors(tmp_path: Path) -> None:
    checkpoints.stable_diffusion(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"num_inference_steps": 6, "guidance_scale": 3.0, "width": 72}')
    plain = ImageRequest(prompt="a cat")

    def made(driver: ImageDriver, request: ImageRequest) -> tuple[int, float, str]:
        (job,) = driver.pipeline.prepare(TICKET, request)
        return job.noise.steps, job.order.guidance, str(job.order.size)

    assert made(ImageDriver(tmp_path), plain) == (6, 3.0, "72x64")
    operated = ImageDriver(tmp_path, default_steps=9, default_guidance=2.0)
    assert made(operated, plain) == (9, 2.0, "72x64")
    asked = ImageRequest(prompt="a cat", steps=3, guidance_scale=5.0, width=64, height=64)
    assert made(operated, asked) == (3, 5.0, "64x64")


def test_a_model_draws_no_larger_than_its_author_says(tmp_path: Path) -> None:
    checkpoints.stable_diffusion(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"width": 64, "height": 64, "max_pixels": 4096}')
    refused = refusal(ImageDriver(tmp_path), width=1024, height=1024)
    assert refused.param == "size"
    assert "at most 4096 pixels; the nearest is 64x64" in str(refused)
    assert refusal(ImageDriver(tmp_path, max_pixels=1024), width=64, height=64).param == "size"


def test_many_threads_prepare_at_once(flux: ImageDriver) -> None:
    """Tokenizers raise "Already borrowed" when threads share one and some of them want it to cut."""
    failures: list[BaseException] = []
    family: Any = flux.family
    tokenizers: list[Any] = []

    def prepare() -> None:
        try:
            tokenizers.append(family._t5_tokenizer._backend)
            for number in range(30):
                prompt = f"{number} cats" * (1 + number % 5)
                request = ImageRequest(prompt=prompt, steps=5, width=64, height=64)
                (job,) = flux.pipeline.prepare(TICKET, request)
                assert job.prompt_tokens == job.order.prompt.count
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len({id(each) for each in tokenizers}) == len(threads)


# --- edits ------------------------------------------------------------------------------------------------------------


def saved(folder: Path, name: str, picture: Image.Image, **options: Any) -> str:
    picture.save(folder / name, **options)
    return str(folder / name)


def huge_png() -> bytes:
    """A header that promises 60,000 × 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def cut_png() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 100).save(file, "PNG")
    return file.getvalue()[:500]


@pytest.mark.parametrize("data", [b"", b"no picture", huge_png(), cut_png()], ids=["empty", "text", "huge", "cut"])
@pytest.mark.parametrize("param", ["image", "mask"])
def test_broken_files_are_refused_by_name(
    driver: ImageDriver, image: str, tmp_path: Path, data: bytes, param: str
) -> None:
    (tmp_path / "broken").write_bytes(data)
    fields = {"image": image, param: str(tmp_path / "broken")}
    error = refusal(driver, **fields)
    assert error.param == param
    assert str(tmp_path) not in error.message


def test_pixels_are_counted_before_they_are_decoded(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(*_: Any) -> Any:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(pictures, "MAX_PIXELS", 63 * 64)
    monkeypatch.setattr(Image.Image, "load", decoded)
    with pytest.raises(InvalidRequest, match="more than the 4032 that are accepted") as refused:
        uploads.load_picture(pictures.decode_picture, image, Size(64, 64), (16, 16))
    assert refused.value.param == "image"


def test_a_file_that_is_gone_is_no_failure_of_the_server(driver: ImageDriver, tmp_path: Path) -> None:
    assert refusal(driver, image=str(tmp_path / "nowhere.png")).param == "image"


def test_a_strength_that_leaves_no_step_is_refused(driver: ImageDriver, image: str) -> None:
    assert refusal(driver, image=image, strength=0.1, steps=5).param == "strength"


def test_a_mask_has_transparency_and_the_size_of_its_image(driver: ImageDriver, image: str, tmp_path: Path) -> None:
    opaque = saved(tmp_path, "opaque.png", Image.new("RGB", (64, 64)))
    assert refusal(driver, image=image, mask=opaque).param == "mask"
    small = saved(tmp_path, "small.png", Image.new("RGBA", (32, 64)))
    error = refusal(driver, image=image, mask=small)
    assert error.param == "mask"
    assert "32x64" in error.message


def test_what_is_transparent_in_a_mask_is_drawn_anew(tmp_path: Path) -> None:
    mask = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 32, 64))
    path = saved(tmp_path, "mask.png", mask)
    latents = uploads.load_mask(pictures.decode_picture, path, Size(64, 64), Size(64, 64), (16, 16))
    assert latents.shape == (1, 1, 16, 16)
    assert latents[..., :8].eq(1).all()
    assert latents[..., 8:].eq(0).all()


def test_a_picture_is_upright_in_rgb_and_white_behind(tmp_path: Path) -> None:
    wide = Image.new("RGB", (40, 20), "black")
    wide.paste((255, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turn by 90° clockwise
    path = saved(tmp_path, "turned.png", wide, exif=exif)
    source = uploads.load_picture(pictures.decode_picture, path, Size(16, 32), (2, 4))
    assert source.upload == Size(20, 40)
    assert source.mask is None
    pixels = source.pixels
    assert pixels[0, 0, :12].gt(0.9).all()  # red is above now
    assert pixels[0, 0, 20:].lt(-0.9).all()
    clear = saved(tmp_path, "clear.png", Image.new("RGBA", (8, 8), (0, 0, 0, 0)))
    cleared = uploads.load_picture(pictures.decode_picture, clear, Size(8, 8), (2, 2))
    assert cleared.pixels.eq(1).all()
    assert cleared.mask is not None
    assert cleared.mask.eq(1).all()


def left_half_clear(colour: tuple[int, int, int], clear: int = 0) -> Image.Image:
    picture = Image.new("RGBA", (64, 64), (*colour, 255))
    picture.paste((*colour, clear), (0, 0, 32, 64))
    return picture


def test_what_is_transparent_in_a_picture_is_drawn_anew_where_there_is_no_mask(
    driver: ImageDriver, tmp_path: Path
) -> None:
    halved = left_half_clear((20, 60, 220))
    flat = Image.new("RGBA", halved.size, "white")
    flat.alpha_composite(halved)
    clear = saved(tmp_path, "clear.png", halved)
    opaque = saved(tmp_path, "opaque.png", flat.convert("RGB"))
    masked = saved(tmp_path, "masked.png", flat)
    left = saved(tmp_path, "left.png", left_half_clear((0, 0, 0)))
    right = saved(tmp_path, "right.png", left_half_clear((0, 0, 0)).transpose(Image.Transpose.FLIP_LEFT_RIGHT))

    def edited(image: str, mask: str | None = None) -> np.ndarray:
        request = ImageRequest(prompt="a cat", image=image, mask=mask, steps=4, guidance_scale=3.0, seed=1)
        return driver.draw(request)[0]

    wanted = edited(opaque, left)
    np.testing.assert_array_equal(edited(clear), wanted)
    np.testing.assert_array_equal(edited(clear, right), edited(opaque, right))  # a mask that is given is the one
    np.testing.assert_array_equal(edited(masked), edited(opaque))  # one that is opaque keeps nothing
    assert worst(edited(opaque), wanted) > 5


@pytest.mark.parametrize(("clear", "anew"), [(0, True), (127, True), (128, False), (255, False)])
def test_a_pixel_is_drawn_anew_where_it_is_less_than_half_opaque(
    driver: ImageDriver, tmp_path: Path, clear: int, anew: bool
) -> None:
    path = saved(tmp_path, "clear.png", left_half_clear((20, 60, 220), clear))
    (job,) = driver.pipeline.prepare(TICKET, ImageRequest(prompt="a cat", image=path))
    source = job.order.source
    assert source is not None
    assert (source.mask is not None) == anew
    if source.mask is not None:
        assert source.mask[..., :8].eq(1).all()
        assert source.mask[..., 8:].eq(0).all()


def prepared_pair(driver: ImageDriver, request: Callable[..., ImageRequest]) -> tuple[np.ndarray, np.ndarray]:
    (first,) = driver.draw(request(seed=1))
    (second,) = driver.draw(request(seed=1))
    return first, second


def test_an_edit_is_reproducible_and_keeps_what_the_mask_keeps(driver: ImageDriver, tmp_path: Path) -> None:
    image = saved(tmp_path, "blue.png", Image.new("RGB", (64, 64), (20, 60, 220)))
    mask = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 32, 64))
    path = saved(tmp_path, "mask.png", mask)

    def edit(**fields: Any) -> ImageRequest:
        return ImageRequest(prompt="a cat", image=image, mask=path, steps=4, guidance_scale=3.0, **fields)

    first, second = prepared_pair(driver, edit)
    assert worst(first, second) == 0
    (other,) = driver.draw(ImageRequest(prompt="a dog", image=image, mask=path, steps=4, guidance_scale=3.0, seed=1))
    assert worst(first, other) > 5
    assert worst(first[:, 44:], other[:, 44:]) < worst(first[:, :24], other[:, :24])
