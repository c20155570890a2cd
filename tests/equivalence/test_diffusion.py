"""Images drawn by the pipeline against diffusers' own pipelines: same seed, steps and guidance, in float32."""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from models.diffusion.noise import LAMBDA_MIN
from pipelines.messages.image import ImageRequest
from tests.pipelines.image import checkpoints
from tests.pipelines.image.driver import ImageDriver

TOLERANCE = 1e-4  # of pixels in 0…1
PROMPT, NEGATIVE = "a red cat", "blue"

# As users of diffusers write them down.
REFERENCE: dict[str, Callable[[Any], Any]] = {
    "ddim": lambda config: diffusers.DDIMScheduler.from_config(config),
    "euler": lambda config: diffusers.EulerDiscreteScheduler.from_config(config),
    "euler_a": lambda config: diffusers.EulerAncestralDiscreteScheduler.from_config(config),
    "dpmpp_2m": lambda config: diffusers.DPMSolverMultistepScheduler.from_config(config),
    "dpmpp_2m_karras": lambda config: diffusers.DPMSolverMultistepScheduler.from_config(config, use_karras_sigmas=True),
    "unipc": lambda config: diffusers.UniPCMultistepScheduler.from_config(config),
    "lcm": lambda config: diffusers.LCMScheduler.from_config(config),
}

Painter = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def sd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.stable_diffusion(tmp_path_factory.mktemp("sd"))


@pytest.fixture(scope="module")
def sdxl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.stable_diffusion_xl(tmp_path_factory.mktemp("sdxl"))


@cache
def driver_of(folder: Path) -> ImageDriver:
    return ImageDriver(folder)


@cache
def reference_of(kind: Any, folder: Path) -> Any:
    pipeline = kind.from_pretrained(folder, low_cpu_mem_usage=False)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, pipeline.scheduler


def ours(folder: Path, **fields: Any) -> torch.Tensor:
    """[3, H, W] in 0…1, before it is rounded to bytes."""
    driver = driver_of(folder)
    autoencoder: Any = driver.family.autoencoder
    decode, decoded = autoencoder.decode, []

    def recorded(latents: torch.Tensor) -> torch.Tensor:
        decoded.append(decode(latents))
        return decoded[-1]

    autoencoder.decode = recorded
    settings = {"prompt": PROMPT, "seed": 5, "steps": 5, "guidance_scale": 4.0, **fields}
    driver.open("r", ImageRequest(**settings))
    driver.run()
    autoencoder.decode = decode
    (pixels,) = decoded
    return (pixels[0] * 0.5 + 0.5).clamp(0, 1)


def theirs(kind: Any, folder: Path, scheduler: str | None = None, **fields: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline, own = reference_of(kind, folder)
        pipeline.scheduler = REFERENCE.get(scheduler or "", type(own).from_config)(own.config)
        settings = {"prompt": PROMPT, "num_inference_steps": 5, "guidance_scale": 4.0, **fields}
        generator = torch.Generator("cpu").manual_seed(5)
        pixels: torch.Tensor = pipeline(generator=generator, output_type="pt", **settings).images[0]
    return pixels


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    assert first.shape == second.shape
    return float((first - second).abs().max())


@pytest.mark.parametrize("scheduler", REFERENCE)
def test_stable_diffusion_with_each_scheduler(sd_folder: Path, scheduler: str) -> None:
    got = ours(sd_folder, scheduler=scheduler, negative_prompt=NEGATIVE)
    wanted = theirs(diffusers.StableDiffusionPipeline, sd_folder, scheduler, negative_prompt=NEGATIVE)
    assert difference(got, wanted) <= TOLERANCE


@pytest.mark.parametrize("guidance", [0.0, 1.0, 1.5, 12.0])
def test_guidance_from_none_to_much(sd_folder: Path, guidance: float) -> None:
    wanted = theirs(diffusers.StableDiffusionPipeline, sd_folder, guidance_scale=guidance)
    assert difference(ours(sd_folder, guidance_scale=guidance), wanted) <= TOLERANCE


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_few_steps_and_many(sd_folder: Path, steps: int) -> None:
    for name in ("euler", "dpmpp_2m"):
        wanted = theirs(diffusers.StableDiffusionPipeline, sd_folder, name, num_inference_steps=steps)
        assert difference(ours(sd_folder, scheduler=name, steps=steps), wanted) <= TOLERANCE


def test_another_size(sd_folder: Path) -> None:
    wanted = theirs(diffusers.StableDiffusionPipeline, sd_folder, width=72, height=40)
    got = ours(sd_folder, width=72, height=40)
    assert got.shape == (3, 40, 72)
    assert difference(got, wanted) <= TOLERANCE


SCHEDULERS_OF_MODELS: dict[str, Callable[[], Any]] = {
    "v-prediction, trailing": lambda: diffusers.DDIMScheduler(
        **checkpoints.SD_SCHEDULER,
        clip_sample=False,
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
    ),
    "pndm": lambda: diffusers.PNDMScheduler(**checkpoints.SD_SCHEDULER, skip_prk_steps=True),
    "heun, twice a step": lambda: diffusers.HeunDiscreteScheduler(**checkpoints.SD_SCHEDULER),
}


@pytest.mark.parametrize("name", SCHEDULERS_OF_MODELS)
def test_the_scheduler_that_a_model_comes_with(tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = SCHEDULERS_OF_MODELS[name]()
    folder = checkpoints.stable_diffusion(tmp_path, scheduler=scheduler)
    assert difference(ours(folder), theirs(diffusers.StableDiffusionPipeline, folder)) <= TOLERANCE


@pytest.mark.parametrize("scheduler", ["ddim", "euler", "dpmpp_2m", "unipc"])
def test_a_model_with_cosine_betas_v_prediction_and_text_in_its_time_embedding(tmp_path: Path, scheduler: str) -> None:
    model = diffusers.DDIMScheduler(
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        steps_offset=1,
        clip_sample=False,
    )
    fields = {
        "addition_embed_type": "text",
        "addition_embed_type_num_heads": 2,
        "resnet_time_scale_shift": "scale_shift",
    }
    folder = checkpoints.stable_diffusion(tmp_path, scheduler=model, unet_fields=fields)
    REFERENCE["with a bound"] = lambda config: diffusers.DPMSolverMultistepScheduler.from_config(
        config, lambda_min_clipped=LAMBDA_MIN
    )
    name = "with a bound" if scheduler == "dpmpp_2m" else scheduler
    wanted = theirs(diffusers.StableDiffusionPipeline, folder, name)
    assert difference(ours(folder, scheduler=scheduler), wanted) <= TOLERANCE


def test_latent_consistency_models_read_guidance_as_an_input(tmp_path: Path) -> None:
    folder = checkpoints.stable_diffusion(
        tmp_path,
        scheduler=diffusers.LCMScheduler(**checkpoints.SD_SCHEDULER),
        unet_fields={"time_cond_proj_dim": 8},
    )
    for guidance in (3.0, 9.0):
        wanted = theirs(diffusers.LatentConsistencyModelPipeline, folder, guidance_scale=guidance)
        assert difference(ours(folder, guidance_scale=guidance), wanted) <= TOLERANCE


@pytest.mark.parametrize("scheduler", ["ddim", "euler_a", "dpmpp_2m_karras", "unipc"])
def test_stable_diffusion_xl_with_schedulers_of_each_kind(sdxl_folder: Path, scheduler: str) -> None:
    got = ours(sdxl_folder, scheduler=scheduler, negative_prompt=NEGATIVE)
    wanted = theirs(diffusers.StableDiffusionXLPipeline, sdxl_folder, scheduler, negative_prompt=NEGATIVE)
    assert difference(got, wanted) <= TOLERANCE


@pytest.mark.parametrize("zeros", [True, False])
def test_stable_diffusion_xl_without_a_negative_prompt(tmp_path: Path, zeros: bool) -> None:
    folder = checkpoints.stable_diffusion_xl(tmp_path, force_zeros_for_empty_prompt=zeros)
    for width, height in ((64, 64), (80, 64)):
        wanted = theirs(diffusers.StableDiffusionXLPipeline, folder, width=width, height=height)
        assert difference(ours(folder, width=width, height=height), wanted) <= TOLERANCE


@pytest.mark.parametrize("guided", [True, False])
def test_flux_with_its_guidance_as_an_input_and_without(tmp_path: Path, guided: bool) -> None:
    folder = checkpoints.flux(tmp_path, guidance=guided)
    for width, height in ((64, 64), (96, 48)):
        size = {"width": width, "height": height}
        guidance = 4.0 if guided else 0.0
        wanted = theirs(
            diffusers.FluxPipeline, folder, guidance_scale=guidance, max_sequence_length=512 if guided else 256, **size
        )
        assert difference(ours(folder, guidance_scale=guidance, **size), wanted) <= TOLERANCE


def test_flux_without_a_shift_that_follows_the_size(tmp_path: Path) -> None:
    folder = checkpoints.flux(tmp_path, scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=1.7))
    wanted = theirs(diffusers.FluxPipeline, folder, width=64, height=64)
    got = ours(folder, width=64, height=64, scheduler="flow_match_euler")
    assert difference(got, wanted) <= TOLERANCE


# --- edits ------------------------------------------------------------------------------------------------------------


def picture(width: int = 64, height: int = 64) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / 5), np.cos(columns / 7), np.sin((rows + columns) / 9)]
    return Image.fromarray((np.stack(waves, axis=-1) * 100 + 127).astype(np.uint8))


def masks(folder: Path) -> tuple[str, Image.Image]:
    """The left half anew: as our callers say it, transparent; and as diffusers' do, white."""
    white = Image.new("L", (64, 64), 0)
    white.paste(255, (0, 0, 32, 64))
    clear = picture().convert("RGBA")
    clear.putalpha(white.point(lambda value: 255 - value))
    clear.save(folder / "mask.png")
    return str(folder / "mask.png"), white


@pytest.mark.parametrize(
    ("scheduler", "strength"), [*((name, 0.45) for name in REFERENCE), ("ddim", 1.0), ("euler_a", 1.0)]
)
def test_an_image_to_start_from(sd_folder: Path, tmp_path: Path, scheduler: str, strength: float) -> None:
    picture().save(tmp_path / "image.png")
    got = ours(sd_folder, scheduler=scheduler, image=str(tmp_path / "image.png"), strength=strength, steps=8)
    kind = diffusers.StableDiffusionImg2ImgPipeline
    wanted = theirs(kind, sd_folder, scheduler, image=picture(), strength=strength, num_inference_steps=8)
    assert difference(got, wanted) <= TOLERANCE


def test_an_image_is_brought_to_the_size(sd_folder: Path, tmp_path: Path) -> None:
    picture(100, 80).save(tmp_path / "image.png")
    got = ours(sd_folder, image=str(tmp_path / "image.png"), strength=0.5)
    resized = picture(100, 80).resize((64, 64), Image.Resampling.LANCZOS)
    wanted = theirs(diffusers.StableDiffusionImg2ImgPipeline, sd_folder, image=resized, strength=0.5)
    assert difference(got, wanted) <= TOLERANCE


@pytest.mark.parametrize(
    ("scheduler", "strength", "width"), [("euler", 0.45, 64), ("ddim", 0.8, 80), ("dpmpp_2m", 1.0, 64)]
)
def test_stable_diffusion_xl_starts_from_an_image(
    sdxl_folder: Path, tmp_path: Path, scheduler: str, strength: float, width: int
) -> None:
    picture(width).save(tmp_path / "image.png")
    fields = {"negative_prompt": NEGATIVE, "strength": strength}
    size = {"width": width, "height": 64}
    got = ours(sdxl_folder, image=str(tmp_path / "image.png"), scheduler=scheduler, steps=8, **size, **fields)
    kind = diffusers.StableDiffusionXLImg2ImgPipeline
    wanted = theirs(kind, sdxl_folder, scheduler, image=picture(width), num_inference_steps=8, **fields)
    assert difference(got, wanted) <= TOLERANCE


@pytest.mark.parametrize(("scheduler", "strength"), [("euler", 0.6), ("ddim", 1.0)])
def test_stable_diffusion_xl_fills_in_by_a_mask(
    sdxl_folder: Path, tmp_path: Path, scheduler: str, strength: float
) -> None:
    picture().save(tmp_path / "image.png")
    mask, white = masks(tmp_path)
    fields: dict[str, Any] = {"strength": strength, "negative_prompt": NEGATIVE}
    got = ours(sdxl_folder, image=str(tmp_path / "image.png"), mask=mask, scheduler=scheduler, steps=8, **fields)
    fields |= {"image": picture(), "mask_image": white, "num_inference_steps": 8, "width": 64, "height": 64}
    wanted = theirs(diffusers.StableDiffusionXLInpaintPipeline, sdxl_folder, scheduler, **fields)
    assert difference(got, wanted) <= TOLERANCE


# Ancestral ones draw on: diffusers' inpainting pipeline takes numbers of the generator for a masked image that a model
# without mask channels has no use for.
@pytest.mark.parametrize(
    ("scheduler", "strength"), [("ddim", 0.6), ("euler", 0.6), ("dpmpp_2m", 0.6), ("unipc", 0.6), ("euler", 1.0)]
)
def test_filling_in_by_a_mask(sd_folder: Path, tmp_path: Path, scheduler: str, strength: float) -> None:
    picture().save(tmp_path / "image.png")
    mask, white = masks(tmp_path)
    fields = {"scheduler": scheduler, "strength": strength, "steps": 8}
    got = ours(sd_folder, image=str(tmp_path / "image.png"), mask=mask, **fields)
    wanted = theirs(
        diffusers.StableDiffusionInpaintPipeline,
        sd_folder,
        scheduler,
        image=picture(),
        mask_image=white,
        strength=strength,
        num_inference_steps=8,
        width=64,
        height=64,
    )
    assert difference(got, wanted) <= TOLERANCE
    everywhere = ours(sd_folder, image=str(tmp_path / "image.png"), **fields)
    assert difference(got, everywhere) > 100 * TOLERANCE
