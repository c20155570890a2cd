"""Stage 1: teach the tower to write what it sees as token embeddings of the frozen language model.

Each of the 16 rows has its own task: the tokens of the first thing's name, those of the second one's, then what kind of
thing it is, the colours of the background and of the thing, and how many there are.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models.files.source import resolve
from models.privacy import silence
from scripts.training.vision.language import load_embeddings, load_tokenizer
from scripts.training.vision.muon import Muon
from scripts.training.vision.prepare import Pool, load_scenes
from scripts.training.vision.scenes import Scene
from scripts.training.vision.things import Thing
from scripts.training.vision.tower import ROWS, Tower, parameters, start, to_signal

BATCH = 96
MUON_RATE, ADAM_RATE = 3e-3, 1.5e-3
NAMES = 6  # rows for the name of each of two things
KIND, BACKGROUND, COLOUR, COUNT = range(2 * NAMES, ROWS)
COUNTS = ("", "one", "two", "three", "four", "five")
FILLER = "."  # of rows that have nothing to say
FILLER_WEIGHT = 0.1
TEMPERATURE = 20.0  # by which cosines are multiplied
MSE, CONTRAST = 0.3, 0.5
EVERY = 50  # steps, a line of the log
OTHERS = 0.4  # of the scenes whose thing is not of the core
PROBE = 512  # scenes at the pool's end that are not trained on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--until", type=int, help="the step to stop at, before all are done")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--skip", type=int, default=0, help="scenes of the pool")
    parser.add_argument("--resume", type=Path, help="weights to begin with")
    given = parser.parse_args()
    torch.manual_seed(1)
    train(given)


@dataclass(frozen=True, slots=True)
class Targets:
    """What the rows are to be, as places in a table of token embeddings."""

    table: torch.Tensor  # [tokens, 576], of those that occur
    names: torch.Tensor  # [things, 6]
    coloured: dict[str, torch.Tensor]  # by colour, of the name behind it: [things, 6]
    kinds: torch.Tensor  # [things]
    words: dict[str, int]  # colours, counts, the filler
    core: int  # how many of the things, from the first on

    @classmethod
    def of(cls, things: Sequence[Thing], embeddings: torch.Tensor) -> "Targets":
        from scripts.training.emoji.concepts import COLOURS

        tokenizer = load_tokenizer()
        found: dict[int, int] = {}

        def places(text: str) -> list[int]:
            ids = tokenizer.encode(text if text == FILLER else f" {text}", add_special=False)
            return [found.setdefault(number, len(found)) for number in ids]

        filler = places(FILLER)[0]

        def name(text: str) -> list[int]:
            return (places(text) + [filler] * NAMES)[:NAMES]

        names = torch.tensor([name(thing.name) for thing in things])
        coloured = {each: torch.tensor([name(f"{each} {thing.bare}") for thing in things]) for each in COLOURS}
        kinds = torch.tensor([places(thing.kind)[0] for thing in things])
        words = {word: places(word)[0] for word in (*COLOURS, "brown", "white", *COUNTS[1:])} | {"": filler}
        core = sum(thing.core for thing in things)
        return cls(embeddings[list(found)].float(), names, coloured, kinds, words, core)

    def rows(self, scenes: Sequence[Scene]) -> torch.Tensor:
        """[n, 16] places."""
        made = torch.full((len(scenes), ROWS), self.words[""])
        for row, scene in zip(made, scenes, strict=True):
            names = self.coloured[scene.colour] if scene.kind == "recolour" else self.names
            row[:NAMES] = names[scene.things[0]]
            if scene.kind == "pair":
                row[NAMES : 2 * NAMES] = self.names[scene.things[1]]
            row[KIND] = self.kinds[scene.things[0]]
            row[BACKGROUND] = self.words[scene.background]
            row[COLOUR] = self.words[scene.colour]
            row[COUNT] = self.words[COUNTS[2 if scene.kind == "pair" else scene.count]]
        return made


class Average:
    """Exponential moving average of a network's weights, which warms up as it starts."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._live = [value.detach() for value in network.parameters()]
        self._names = [name for name, _ in network.named_parameters()]
        self._mean = [value.clone() for value in self._live]
        self._decay, self._steps = decay, 0

    @torch.no_grad()
    def update(self) -> None:
        self._steps += 1
        share = 1 - min(self._decay, (1 + self._steps) / (10 + self._steps))
        torch._foreach_lerp_(self._mean, self._live, share)

    def state(self) -> dict[str, torch.Tensor]:
        return dict(zip(self._names, self._mean, strict=True))


class Optimisers:
    """Muon for the matrices, AdamW for all else, with one schedule: up, flat, down to 0."""

    def __init__(
        self, network: nn.Module, muon_rate: float, adam_rate: float, steps: int, *, flat: float, warm_up: int = 60
    ) -> None:
        matrices, others = parameters(network)
        self._steps, self._flat, self._warm_up = steps, flat, warm_up
        muon = Muon(matrices, lr=muon_rate)
        adam = torch.optim.AdamW(others, lr=adam_rate, weight_decay=0.0, betas=(0.9, 0.98))
        self._all: list[Any] = [muon, adam]
        self._rates = [muon_rate, adam_rate]
        self._parameters = [*matrices, *others]

    def step(self, loss: torch.Tensor, at: int) -> None:
        for optimiser in self._all:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        share = min(1.0, (at + 1) / self._warm_up, (self._steps - at) / (self._steps * (1 - self._flat)))
        for optimiser, rate in zip(self._all, self._rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * share
            optimiser.step()


def train(given: argparse.Namespace) -> None:
    """Writes `aligned.pt` (averages of the weights), and `align.jsonl`, how it went."""
    work, steps, last = given.work, given.steps, given.until or given.steps
    things = load_scenes(work).things
    targets = Targets.of(things, load_embeddings())
    bank = F.normalize(_sentences([thing.name for thing in things]), dim=1)
    pool = Pool(work, core=targets.core, others=OTHERS, probe=PROBE)
    probe = pool.probe[0], to_signal(pool.probe[1])
    tower = Tower()
    if given.resume:
        tower.load_state_dict(torch.load(given.resume, weights_only=True))
    else:
        start(tower, to_signal(next(pool.batches(min(512, len(pool.scenes))))[1]))
    guess = nn.Linear(256, bank.shape[1])  # thrown away
    learned = nn.ModuleDict({"tower": tower, "guess": guess})
    optimisers = Optimisers(learned, MUON_RATE, ADAM_RATE, steps, flat=0.55)
    average = Average(tower, decay=0.997)
    batches = pool.batches(given.batch, given.skip)
    total, started = 0.0, time.monotonic()
    with (work / "align.jsonl").open("a" if given.resume else "w", encoding="utf-8") as written:
        for step in range(last):
            scenes, pixels = next(batches)
            with torch.autocast("cpu", torch.bfloat16):
                patches, rows = tower(to_signal(pixels))
                pooled = guess(patches.mean(dim=1))
            loss = slots_loss(rows.float(), targets, targets.rows(scenes))
            loss = loss + CONTRAST * _contrast(pooled.float(), bank, scenes)
            optimisers.step(loss, step)
            average.update()
            total += loss.item()
            if step % EVERY == EVERY - 1 or step == last - 1:
                shares = _probe(tower, average, targets, *probe)
                line = {"stage": "align", "step": step + 1, "loss": total / (step % EVERY + 1), **shares}
                line |= {"s": time.monotonic() - started}
                rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}
                written.write(json.dumps(rounded) + "\n")
                written.flush()
                torch.save(average.state(), work / "aligned.pt")
                total = 0.0


def slots_loss(rows: torch.Tensor, targets: Targets, wanted: torch.Tensor) -> torch.Tensor:
    """`rows`: [n, 16, 576]; `wanted`: [n, 16]."""
    table = F.normalize(targets.table, dim=1)
    scores = TEMPERATURE * F.normalize(rows, dim=2) @ table.T
    weights = torch.where(wanted == targets.words[""], FILLER_WEIGHT, 1.0)
    named = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="none")
    scale = targets.table.square().mean()
    apart = (rows - targets.table[wanted]).square().mean(dim=2).flatten() / scale
    return ((named + MSE * apart) * weights.flatten()).sum() / weights.sum()


def _contrast(pooled: torch.Tensor, bank: torch.Tensor, scenes: Sequence[Scene]) -> torch.Tensor:
    """Of the whole picture with a bank of sentence vectors, one for each thing."""
    scores = TEMPERATURE * F.normalize(pooled, dim=1) @ bank.T
    first = torch.tensor([scene.things[0] for scene in scenes])
    last = torch.tensor([scene.things[-1] for scene in scenes])
    return 0.5 * (F.cross_entropy(scores, first) + F.cross_entropy(scores, last))


@torch.no_grad()
def _probe(
    tower: Tower, average: Average, targets: Targets, scenes: Sequence[Scene], signal: torch.Tensor
) -> dict[str, float]:
    """Shares of scenes never trained on whose rows say the right name, background, colour and count."""
    seeing = Tower()
    seeing.load_state_dict(average.state(), strict=False)
    with torch.autocast("cpu", torch.bfloat16):
        rows = torch.cat([seeing(part)[1] for part in signal.split(64)]).float()
    right = (rows @ F.normalize(targets.table, dim=1).T).argmax(dim=2) == targets.rows(scenes)
    nothing = targets.rows(scenes) == targets.words[""]
    named = (right | nothing)[:, : 2 * NAMES].all(dim=1).float()
    core = torch.tensor([max(scene.things) < targets.core for scene in scenes])
    counted = torch.tensor([scene.kind == "count" for scene in scenes])
    coloured = torch.tensor([scene.kind == "recolour" for scene in scenes])
    return {
        "core_named": float(named[core & ~coloured].mean()),
        "others_named": float(named[~core & ~coloured].mean()),
        "background": float(right[:, BACKGROUND].float().mean()),
        "colour": float(right[coloured, COLOUR].float().mean()),
        "count": float(right[counted, COUNT].float().mean()),
    }


@torch.no_grad()
def _sentences(texts: Sequence[str]) -> torch.Tensor:
    """[n, 384]: their vectors by all-MiniLM-L6-v2."""
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = resolve("embedded:all-minilm-l6-v2")
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    model: Any = AutoModel.from_pretrained(folder).eval()
    made = []
    for at in range(0, len(texts), BATCH):
        encoded = tokenizer.encode_batch([f"a picture of {text}" for text in texts[at : at + BATCH]])
        mask = torch.tensor([each.attention_mask for each in encoded])
        states = model(input_ids=torch.tensor([each.ids for each in encoded]), attention_mask=mask).last_hidden_state
        made.append((states * mask.unsqueeze(2)).sum(dim=1) / mask.sum(dim=1, keepdim=True))
    return torch.cat(made)


if __name__ == "__main__":
    silence(os.environ)
    main()
