"""Does it answer rightly? On scenes drawn anew, in wordings that it was never asked in; and where it fails."""

import argparse
import base64
import io
import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from models.privacy import silence
from scripts.training.emoji import EMBEDDED
from scripts.training.emoji.pictures import Pixels
from scripts.training.vision import NAME
from scripts.training.vision.chats import prompt
from scripts.training.vision.language import load_language, load_tokenizer
from scripts.training.vision.prepare import load_scenes
from scripts.training.vision.questions import COUNTS, Topic, ask
from scripts.training.vision.scenes import Kind, Scene, Scenes, Split
from scripts.training.vision.things import Thing, phrase
from scripts.training.vision.tower import ROWS, Tower, to_signal

RESULTS, CARD = "evaluation.json", "README.md"
MARKS = "<!-- figures -->\n", "<!-- end of figures -->\n"  # what is between them in the card is written by `--record`
LABELS = {
    "core_named": "one thing of the core named, wordings never trained on",
    "core_named_wordings_of_the_training": "… in wordings of the training",
    "core_named_on_a_colour": "… on a coloured background",
    "colour_of_a_recoloured_thing": "colour of a recoloured thing",
    "colour_of_a_thing": "colour of a thing that has one",
    "colour_of_the_background": "colour of the background",
    "count_of_two_to_five": "how many there are, two to five (chance 0.25)",
    "kind": "what kind of thing it is",
    "both_of_a_pair_named": "both things of a pair named",
    "recoloured_named_with_colour": "recoloured thing named with its colour",
    "recoloured_as_never_trained_named_with_colour": "… in the colour that it never had in training",
    "outside_the_core_named": "things outside the core named",
    "yes_or_no": "“Is this a …?” answered with the right yes or no (chance 0.5)",
}
LONGEST = 24  # tokens of an answer
BATCH = 48
AT_ONCE = 8  # requests to a server
SEED = 1_000_003  # that no scene of the training was drawn from

Figures = dict[str, dict[str, float]]  # by set: the share that is right, and of how many questions
Answerer = Callable[[Sequence[tuple[Pixels, str]]], list[str]]


@dataclass(frozen=True, slots=True)
class Question:
    pixels: Pixels
    asked: str
    wanted: str  # the answer that the training would have taught
    right: Callable[[str], bool]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=EMBEDDED / NAME)
    parser.add_argument("--url", help="of a gateway whose model is asked; else transformers runs both halves")
    parser.add_argument("--name", default=NAME, help="of the model at that gateway")
    parser.add_argument("--share", type=float, default=1.0, help="of the questions")
    parser.add_argument("--show", type=int, default=0, help="answers of each set to print")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS} and the table in the model's card")
    given = parser.parse_args()
    answerer = ask_server(given.url, given.name) if given.url else ask_transformers(given.model)
    figures: Figures = {}
    for name, questions in sets(load_scenes(given.work), given.share):
        answers = answerer([(each.pixels, each.asked) for each in questions])
        right = [each.right(answer) for each, answer in zip(questions, answers, strict=True)]
        figures[name] = {"right": round(float(np.mean(right)), 3), "questions": len(questions)}
        print(json.dumps({"set": name, **figures[name]}), flush=True)
        for each, answer, correct in list(zip(questions, answers, right, strict=True))[: given.show]:
            print("   ", "ok " if correct else "BAD", repr(each.asked), "→", repr(answer), f"({each.wanted})")
    if given.record:
        record(given.model, figures)


def record(folder: Path, figures: Figures) -> None:
    (folder / RESULTS).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    card = (folder / CARD).read_text(encoding="utf-8")
    before, _, rest = card.partition(MARKS[0])
    _, _, behind = rest.partition(MARKS[1])
    (folder / CARD).write_text(before + MARKS[0] + table(figures) + MARKS[1] + behind, encoding="utf-8")


def table(figures: Figures) -> str:
    rows = [
        f"| {label} | {figures[name]['right']:.2f} | {figures[name]['questions']} |" for name, label in LABELS.items()
    ]
    return "\n".join(["| | right | of |", "|---|---|---|", *rows, ""])


def sets(scenes: Scenes, share: float) -> Iterator[tuple[str, list[Question]]]:
    """What is measured, by name."""
    named = Names(scenes.things)

    def drawn(count: int, kind: Kind, topic: Topic, *, held: bool = True, split: Split = "train") -> list[Question]:
        choose = random.Random(f"{SEED} {kind} {topic} {split}")
        made: list[Question] = []
        while len(made) < round(count * share):
            scene, pixels = core.draw(choose, kind, split=split)
            if topic == "colour" and not scene.colour:
                continue
            turn = ask(scene, scenes.things, choose, topic, held=held)
            made.append(Question(pixels, turn.question, turn.answer, _judge(scene, scenes.things, topic, named)))
        return made

    core = scenes.of(core=1.0)
    yield "core_named", drawn(600, "plain", "name")
    yield "core_named_wordings_of_the_training", drawn(200, "plain", "name", held=False)
    yield "core_named_on_a_colour", drawn(200, "background", "name")
    yield "colour_of_a_recoloured_thing", drawn(200, "recolour", "colour")
    yield "colour_of_a_thing", drawn(200, "plain", "colour")
    yield "colour_of_the_background", drawn(200, "background", "background")
    yield "count_of_two_to_five", drawn(300, "count", "count")
    yield "kind", drawn(150, "plain", "kind")
    yield "both_of_a_pair_named", drawn(200, "pair", "name")
    yield "recoloured_named_with_colour", drawn(200, "recolour", "name")
    yield "recoloured_as_never_trained_named_with_colour", drawn(200, "recolour", "name", split="held")
    yield "yes_or_no", _yes_or_no(core, round(150 * share))
    core = scenes.of(core=0.0)
    yield "outside_the_core_named", drawn(300, "plain", "name")


class Names:
    """Finds things in an answer by any of their names, the longest first."""

    def __init__(self, things: Sequence[Thing]) -> None:
        words: dict[str, str] = {}
        for thing in things:
            for name in (*thing.names, thing.bare, thing.plural):
                words.setdefault(name, thing.bare)
        self._words = words
        longest_first = sorted(words, key=len, reverse=True)
        self._pattern = re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, longest_first)) + r")(?![\w-])")

    def found(self, answer: str) -> set[str]:
        """Their bare names."""
        return {self._words[match] for match in self._pattern.findall(answer.lower())}


def _judge(scene: Scene, things: Sequence[Thing], topic: Topic, names: Names) -> Callable[[str], bool]:
    shown = [things[at] for at in scene.things]

    def has(word: str, answer: str) -> bool:
        return re.search(rf"\b{re.escape(word)}\b", answer.lower()) is not None

    def named(answer: str) -> bool:
        if scene.kind == "recolour":
            return names.found(answer) == {shown[0].bare} and has(scene.colour, answer)
        if any(" " in thing.name and thing.bare != thing.name for thing in shown):
            return all(any(has(name, answer) for name in thing.names) for thing in shown)
        return names.found(answer) == {thing.bare for thing in shown}

    match topic:
        case "colour":
            return lambda answer: has(scene.colour, answer)
        case "background":
            return lambda answer: has(scene.background, answer)
        case "count":
            return lambda answer: has(COUNTS[scene.count], answer) or has(str(scene.count), answer)
        case "kind":
            return lambda answer: has(shown[0].kind, answer)
        case _:
            return named


def _yes_or_no(scenes: Scenes, count: int) -> list[Question]:
    """As many to be answered with yes as with no; never trained on."""
    choose = random.Random(SEED)
    made = []
    for at in range(count):
        scene, pixels = scenes.draw(choose, "plain")
        thing = scenes.things[scene.things[0]]
        truth = at % 2 == 0
        others = [each for each in scenes.things if each.core and each is not thing]
        asked = phrase((thing if truth else choose.choice(others)).name)
        word = "yes" if truth else "no"
        made.append(Question(pixels, f"Is this {asked}?", word, _starts_with(word)))
    return made


def _starts_with(word: str) -> Callable[[str], bool]:
    return lambda answer: answer.lower().startswith(word)


def ask_transformers(folder: Path) -> Answerer:
    """Both halves in float32: the weights as they are exported, and those that the GGUF's blocks stand for."""
    from safetensors.torch import load_file

    tower = Tower().eval()
    state = load_file(folder / "model.safetensors")
    tower.load_state_dict({name.removeprefix("model."): value.float() for name, value in state.items()})
    language, tokenizer = load_language(torch.float32), load_tokenizer()
    end = tokenizer.token_ids()["<|im_end|>"]

    @torch.no_grad()
    def answer(questions: Sequence[tuple[Pixels, str]]) -> list[str]:
        prompts = [prompt(asked, tokenizer) for _, asked in questions]
        start = prompts[0].index(tokenizer.token_ids()["<empty_output>"])
        answers = [""] * len(questions)
        by_length = sorted(range(len(questions)), key=lambda at: len(prompts[at]))
        while by_length:
            length = len(prompts[by_length[0]])
            rows = [at for at in by_length if len(prompts[at]) == length][:BATCH]
            by_length = [at for at in by_length if at not in rows]
            embedded = language.get_input_embeddings()(torch.tensor([prompts[at] for at in rows])).clone()
            embedded[:, start : start + ROWS] = tower(to_signal(np.stack([questions[at][0] for at in rows])))[1]
            made = language.generate(
                inputs_embeds=embedded,
                attention_mask=torch.ones(embedded.shape[:2], dtype=torch.long),
                max_new_tokens=LONGEST,
                do_sample=False,
                eos_token_id=end,
                pad_token_id=end,
            )
            for at, ids in zip(rows, made.tolist(), strict=True):
                answers[at] = tokenizer.decode(ids).strip()
        return answers

    return answer


def ask_server(url: str, name: str) -> Answerer:
    """Over HTTP, as any client does."""
    import httpx

    def answer(questions: Sequence[tuple[Pixels, str]]) -> list[str]:
        with httpx.Client(base_url=url, timeout=120) as client, ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(lambda each: one(client, *each), questions))

    def one(client: Any, pixels: Pixels, asked: str) -> str:
        parts: list[dict[str, Any]] = [{"type": "text", "text": asked}] if asked else []
        parts.append({"type": "image_url", "image_url": {"url": data_url(pixels)}})
        body = {"model": name, "messages": [{"role": "user", "content": parts}], "temperature": 0}
        reply = client.post("/v1/chat/completions", json={**body, "max_tokens": LONGEST})
        reply.raise_for_status()
        return str(reply.json()["choices"][0]["message"]["content"])

    return answer


def data_url(pixels: Pixels) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    silence(os.environ)
    main()
