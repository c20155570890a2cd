"""The whole chain on a handful of drawn pictures: that it runs, learns, and leaves what diffusers loads."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

from scripts.training.emoji import EMBEDDED, concepts, evaluate, export, prepare, train_unet, train_vae
from scripts.training.emoji.concepts import Concept
from scripts.training.emoji.layout import channels_last

SHAPES = {"ball": "red", "box": "blue", "dot": "green"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of emoji in small."""
    folder = tmp_path_factory.mktemp("emoji")
    pictures = folder / "img" / "google" / "64"
    pictures.mkdir(parents=True)
    listed = []
    for name, colour in SHAPES.items():
        picture = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
        pen = ImageDraw.Draw(picture)
        (pen.rectangle if name == "box" else pen.ellipse)((14, 14, 50, 50), fill=colour)
        picture.save(pictures / f"{name}.png")
        listed.append(
            {"short_name": name, "image": f"{name}.png", "has_img_google": True, "category": "Objects"},
        )
    listed.append({"short_name": "flag", "image": "none.png", "has_img_google": True, "category": "Flags"})
    (folder / "emoji.json").write_text(json.dumps(listed))
    return folder


@pytest.mark.requires_weights
def test_from_pictures_to_a_model_that_diffusers_runs(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [Concept(name, (name,)) for name in SHAPES]
    for module in (concepts, prepare, train_vae, train_unet, evaluate):
        monkeypatch.setattr(module, "read_concepts", lambda: known)
    work, out = tmp_path / "work", tmp_path / "model"

    def run(module: Any, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["command", *arguments])
        module.main()

    run(prepare, "--source", str(source), "--work", str(work))
    run(train_vae, "--work", str(work), "--steps", "2")
    monkeypatch.setattr(train_unet, "BATCH", 4)
    run(train_unet, "--work", str(work), "--steps", "2", "--variations", "2")
    run(export, "--work", str(work), "--out", str(out))

    assert str(tmp_path) not in "".join(file.read_text() for file in out.rglob("*.json"))
    assert json.loads((out / "generation_config.json").read_text())["width"] == 64
    painter = evaluate.Painter(out)
    painter.settings["num_inference_steps"] = 2
    first, second = painter.draw("a ball", [1, 2])
    assert first.shape == (64, 64, 3)
    assert not (first == second).all()


def test_the_packaged_model_names_no_folder_that_it_was_made_in() -> None:
    folder = EMBEDDED / "tiny-emoji-diffusion"
    described = [json.loads(file.read_text()) for file in folder.rglob("config.json")]
    assert len(described) == 3
    assert {each.get("_name_or_path", "") for each in described} == {""}


def test_latents_have_mean_0_and_deviation_1_and_decode_as_before() -> None:
    torch.manual_seed(0)
    autoencoder = train_vae.build().eval()
    picture = Image.new("RGBA", (64, 64), (200, 30, 60, 255))
    ImageDraw.Draw(picture).ellipse((10, 20, 50, 60), fill="blue")
    pixels = torch.rand(2, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        before = autoencoder.decode(autoencoder.encode(pixels).latent_dist.mean).sample
        deviation = autoencoder.encode(pixels).latent_dist.std
        train_vae.normalise(autoencoder, [picture] * 8)
        after = autoencoder.encode(pixels).latent_dist
        decoded = autoencoder.decode(after.mean).sample
    assert (decoded - before).abs().max() < 1e-3
    assert not torch.allclose(after.std, deviation)


def test_contiguous_norms_are_norms() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.GroupNorm(2, 8))
    inputs = torch.randn(2, 4, 9, 9)
    expected = plain(inputs)
    laid_out = channels_last(plain)
    found = laid_out(inputs.contiguous(memory_format=torch.channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).abs().max() < 1e-5


def test_empty_captions_are_a_tenth_and_each_epoch_has_every_example() -> None:
    count = 320
    examples = train_unet.Examples(
        torch.arange(count).view(-1, 1, 1, 1).expand(-1, 4, 1, 1).half(),
        torch.ones(count, 3, dtype=torch.long),
        torch.zeros(3, dtype=torch.long),
    )
    batches = examples.batches(torch.Generator().manual_seed(0))
    epoch = [next(batches) for _ in range(count // train_unet.BATCH)]
    assert sorted(torch.cat([latents[:, 0, 0, 0] for latents, _ in epoch]).tolist()) == list(range(count))
    empty = torch.cat([ids[:, 0] == 0 for _, ids in epoch]).float().mean()
    assert 0.05 < empty < 0.17


def test_averages_follow_what_they_average() -> None:
    network = torch.nn.Linear(2, 2)
    average = train_unet.Average({"net": network}, decay=0.5)
    with torch.no_grad():
        network.weight.fill_(3.0)
    for _ in range(40):
        average.update()
    assert torch.allclose(average._mean["net", "weight"], torch.full((2, 2), 3.0))
