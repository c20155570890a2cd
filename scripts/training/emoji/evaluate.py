"""Does the model draw what it is asked for? A classifier that never saw it is asked; and a contact sheet to look at."""

import argparse
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFilter
from torch import nn

from models.privacy import silence
from scripts.training.emoji import EMBEDDED
from scripts.training.emoji.concepts import Concept, read_concepts
from scripts.training.emoji.pictures import EDGE, Pixels, to_signal, vary
from scripts.training.emoji.prepare import load_pictures

CONCEPTS = 40  # drawn at random from all, always the same
SEEDS = 5
BATCH = 64
LABEL = 12  # pixels below a picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=EMBEDDED / "tiny-emoji-diffusion")
    parser.add_argument("--sheet", type=Path, help="where the contact sheet goes, a PNG")
    parser.add_argument("--steps", type=int, default=1500, help="of training the classifier")
    given = parser.parse_args()
    concepts, pictures = read_concepts(), load_pictures(given.work)
    asked = sorted(random.Random(0).sample(range(len(concepts)), CONCEPTS))
    painter = Painter(given.model)
    drawn = [painter.draw(concepts[at].names[0], range(SEEDS)) for at in asked]
    if given.sheet:
        given.sheet.parent.mkdir(parents=True, exist_ok=True)
        contact_sheet([(concepts[at].names[0], row) for at, row in zip(asked, drawn, strict=True)]).save(given.sheet)
    classifier = _classifier(given.work / "classifier.pt", concepts, pictures, given.steps)
    print(json.dumps(judge(classifier, concepts, pictures, asked, drawn), indent=2))


class Painter:
    """diffusers' own pipeline, with the model's defaults."""

    def __init__(self, folder: Path) -> None:
        from diffusers import StableDiffusionPipeline

        self._pipeline: Any = StableDiffusionPipeline.from_pretrained(
            folder, safety_checker=None, dtype=torch.float32, low_cpu_mem_usage=False
        )
        self._pipeline.set_progress_bar_config(disable=True)
        written = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        written.pop("max_pixels")  # of our own
        self.settings: dict[str, Any] = written

    def draw(self, prompt: str, seeds: Sequence[int]) -> list[Pixels]:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        made = self._pipeline([prompt] * len(seeds), generator=generators, output_type="np", **self.settings).images
        return [np.round(image * 255).astype(np.uint8) for image in made]


def judge(
    classifier: nn.Module,
    concepts: list[Concept],
    pictures: dict[str, Image.Image],
    asked: list[int],
    drawn: list[list[Pixels]],
) -> dict[str, float]:
    """Shares of pictures whose object is named rightly: among those asked for, and among all concepts."""
    among, among_all, rows = 0, 0, 0
    for at, row in zip(asked, drawn, strict=True):
        scores = _scores(classifier, row)
        among += int((scores[:, asked].argmax(dim=1) == asked.index(at)).sum())
        among_all += int((scores.argmax(dim=1) == at).sum())
        rows += len(row)
    choose = random.Random(9)
    held = [_seen(pictures[concepts[at].short_name], choose) for at in asked for _ in range(SEEDS)]
    truth = torch.tensor([at for at in asked for _ in range(SEEDS)])
    return {
        "top1_of_asked": among / rows,
        "top1_of_all": among_all / rows,
        "top1_of_all_on_sources": float((_scores(classifier, held).argmax(dim=1) == truth).float().mean()),
        "concepts_asked": len(asked),
        "concepts": len(concepts),
        "pictures": rows,
    }


@torch.no_grad()
def _scores(classifier: nn.Module, pixels: list[Pixels]) -> torch.Tensor:
    scores: torch.Tensor = classifier.eval()(torch.from_numpy(to_signal(pixels)))
    return scores


class Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.skip = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(hidden)) + self.skip(x))


def _network(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, 2, 2),
        nn.ReLU(),
        Block(24, 48, 2),
        Block(48, 96, 2),
        Block(96, 192, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(192, classes),
    )


def _classifier(file: Path, concepts: list[Concept], pictures: dict[str, Image.Image], steps: int) -> nn.Module:
    """Learns all concepts from their source pictures, varied, blurred and off in colour. Kept in `file`."""
    torch.manual_seed(7)
    choose = random.Random(7)
    network = _network(len(concepts))
    if file.exists():
        network.load_state_dict(torch.load(file, weights_only=True))
        return network
    optimiser = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    network.train()
    for _ in range(steps):
        labels = [choose.randrange(len(concepts)) for _ in range(BATCH)]
        seen = to_signal([_seen(pictures[concepts[label].short_name], choose) for label in labels])
        loss = F.cross_entropy(network(torch.from_numpy(seen)), torch.tensor(labels), label_smoothing=0.05)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
    torch.save(network.state_dict(), file)
    return network


def _seen(picture: Image.Image, choose: random.Random) -> Pixels:
    pixels = Image.fromarray(vary(picture, choose)).filter(ImageFilter.GaussianBlur(choose.uniform(0, 1.2)))
    tinted = np.asarray(pixels).astype(np.float32)
    tinted = tinted * choose.uniform(0.85, 1.1) + np.array([choose.gauss(0, 6) for _ in range(3)], np.float32)
    return np.clip(np.round(tinted), 0, 255).astype(np.uint8)


def contact_sheet(rows: list[tuple[str, list[Pixels]]], across: int = 4) -> Image.Image:
    """Blocks of one prompt each: its pictures side by side, the prompt below."""
    width, height = SEEDS * EDGE + 12, EDGE + LABEL + 8
    sheet = Image.new("RGB", (across * width, -(-len(rows) // across) * height), "white")
    pen = ImageDraw.Draw(sheet)
    for at, (prompt, pictures) in enumerate(rows):
        left, top = at % across * width, at // across * height
        for number, pixels in enumerate(pictures):
            sheet.paste(Image.fromarray(pixels), (left + number * EDGE, top))
        pen.text((left + 4, top + EDGE), prompt, fill="black")
    return sheet


if __name__ == "__main__":
    silence(os.environ)
    main()
