"""Stage 2: the tower learns to write what makes the frozen language model answer questions rightly.

The task of stage 1 goes on beside it with more pictures than are chatted about: what is named wrongly is mostly seen
wrongly, and seeing takes the most practice.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from models.privacy import silence
from models.tokenizer.tokenizer import Tokenizer
from scripts.training.emoji.concepts import COLOURS
from scripts.training.vision.align import PROBE, Average, Optimisers, Targets, slots_loss
from scripts.training.vision.chats import BEFORE, Chat, chat
from scripts.training.vision.language import load_language, load_tokenizer
from scripts.training.vision.prepare import Pool, load_scenes
from scripts.training.vision.questions import COUNTS, ask
from scripts.training.vision.scenes import Scene
from scripts.training.vision.tower import ROWS, Tower, to_signal

BATCH, CHATS = 32, 14  # pictures of a step, and how many of them are chatted about
MUON_RATE, ADAM_RATE = 2e-3, 1.5e-3
TWO_TURNS = 0.25  # of the steps: the chats have a second question
SLOTS = 0.3  # what the task of stage 1 still counts
OTHERS = 0.4
COMMON = 12_000  # tokens that an answer's are told from, beside those that answers have
EVERY = 20  # steps, a line of the log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=420)
    parser.add_argument("--skip", type=int, default=0, help="scenes of the pool")
    parser.add_argument("--rate", type=float, default=1.0, help="of learning, beside the usual one")
    parser.add_argument("--resume", type=Path, help="weights of this stage to begin with")
    given = parser.parse_args()
    torch.manual_seed(2)
    train(given)


class Teacher:
    """The frozen language model: the loss of its answers, given rows of pictures."""

    def __init__(self, tokenizer: Tokenizer, answers: set[int]) -> None:
        self._model = load_language()
        self.embeddings: torch.Tensor = self._model.get_input_embeddings().weight
        kept = torch.tensor(sorted(answers | set(range(COMMON))))
        self._heads = self.embeddings[kept]
        self._places = torch.full((len(self.embeddings),), -1)
        self._places[kept] = torch.arange(len(kept))
        before = torch.tensor([tokenizer.encode(BEFORE, add_special=False)])
        with torch.no_grad():
            cache = self._model.model(input_ids=before, use_cache=True).cache
        # Every chat begins alike, and nothing of it is learned: [1, heads, tokens, 64] keys and values of each layer.
        self._before = [(layer.keys, layer.values) for layer in cache.layers]
        self._length = before.shape[1]

    def loss(self, rows: torch.Tensor, chats: list[Chat]) -> torch.Tensor:
        """`rows`: [n, 16, 576]."""
        from transformers import DynamicCache

        longest = max(len(each.ids) for each in chats)
        ids = torch.tensor([[*each.ids, *[0] * (longest - len(each.ids))] for each in chats])
        learned = torch.tensor([[*each.learned, *[False] * (longest - len(each.ids))] for each in chats])
        embedded = torch.cat([rows.to(self.embeddings.dtype), F.embedding(ids[:, ROWS:], self.embeddings)], dim=1)
        count = len(chats)
        cache: Any = DynamicCache()
        for at, (keys, values) in enumerate(self._before):
            cache.update(keys.expand(count, -1, -1, -1), values.expand(count, -1, -1, -1), at)
        # What is behind a chat's end can't be seen from it, so the padding needs no mask.
        states = self._model.model(inputs_embeds=embedded, cache=cache).last_hidden_state
        scores = states[:, :-1][learned[:, 1:]] @ self._heads.T
        return F.cross_entropy(scores.float(), self._places[ids[:, 1:][learned[:, 1:]]])


def train(given: argparse.Namespace) -> None:
    """Writes `tuned.pt` (averages of the weights), and `tune.jsonl`, how it went."""
    work, steps = given.work, given.steps
    scenes = load_scenes(work)
    things, tokenizer, choose = scenes.things, load_tokenizer(), random.Random(2)
    pool = Pool(work, core=sum(thing.core for thing in things), others=OTHERS, probe=PROBE)

    def talk(seen: Sequence[Scene]) -> list[Chat]:
        """All of one length, about, as each is padded to the longest."""
        turns = 1 + (choose.random() < TWO_TURNS)
        return [chat([ask(scene, things, choose) for _ in range(turns)], tokenizer) for scene in seen]

    answers = {
        number
        for thing in things
        for word in (*thing.names, thing.bare, thing.plural, thing.kind, *COLOURS, *COUNTS)
        for number in tokenizer.encode(f" {word}", add_special=False)
    }
    teacher = Teacher(tokenizer, answers)
    targets = Targets.of(things, teacher.embeddings)
    tower = Tower()
    tower.load_state_dict(torch.load(given.resume or work / "aligned.pt", weights_only=True), strict=True)
    optimisers = Optimisers(tower, given.rate * MUON_RATE, given.rate * ADAM_RATE, steps, flat=0.45, warm_up=20)
    average = Average(tower, decay=0.98)
    batches = pool.batches(BATCH, given.skip)
    total, told, started = 0.0, 0.0, time.monotonic()
    with (work / "tune.jsonl").open("a" if given.resume else "w", encoding="utf-8") as written:
        for step in range(steps):
            seen, pixels = next(batches)
            with torch.autocast("cpu", torch.bfloat16):
                _, rows = tower(to_signal(pixels))
            answered = teacher.loss(rows[:CHATS], talk(seen[:CHATS]))
            loss = answered + SLOTS * slots_loss(rows.float(), targets, targets.rows(seen))
            optimisers.step(loss, step)
            average.update()
            total, told = total + loss.item(), told + answered.item()
            if step % EVERY == EVERY - 1 or step == steps - 1:
                count = step % EVERY + 1
                line = {"stage": "tune", "step": step + 1, "loss": round(total / count, 4)}
                line |= {"answers": round(told / count, 4), "s": round(time.monotonic() - started, 1)}
                written.write(json.dumps(line) + "\n")
                written.flush()
                torch.save(average.state(), work / "tuned.pt")
                total = told = 0.0


if __name__ == "__main__":
    silence(os.environ)
    main()
