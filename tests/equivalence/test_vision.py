"""Chats that show images, through the whole text pipeline: the tokens of transformers' `generate`, in float32; in the
other types the same bits alone and in company."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from models.decoder.loading import load_decoder
from pipelines.base import Ticket
from pipelines.media.pictures import decode_picture
from pipelines.messages.frames import Event
from pipelines.messages.sampling import Sampling
from pipelines.messages.text import ChatPrompt, ImagePart, Message, TextOptions, TextPart, TextRequest, TokenLogprob
from pipelines.text.pipeline import TextPipeline
from tests import vision_models

TOKENS = 32
MARGIN = 1e-3  # between the two best logits: below it, rounding may choose
Part = str | Image.Image

WIDE, TALL, SQUARE = (
    Image.fromarray(vision_models.picture(*size, seed)) for seed, size in enumerate(((90, 40), (31, 77), (64, 64)))
)
CHATS: dict[str, Sequence[Part]] = {
    "no image": ("Say something about nothing at all.",),
    "one": ("What is this? ", SQUARE, " Tell me."),
    "three of different sizes": (WIDE, "Compare ", TALL, " and ", SQUARE, "."),
    "the same twice": (TALL, TALL, "Equal?"),
    "text": ("Another one without an image, which is a little longer than a tile is.",),
    "one more": (SQUARE, "What is this? Tell me."),
}


@dataclass(frozen=True)
class Checkpoint:
    family: str
    folder: Path

    def pipeline(self, **options: Any) -> TextPipeline:
        load = {"device": "cpu", "dtype": "float32", "threads": 1} | options
        model = load_decoder(self.folder, **load)
        made = TextPipeline(model, TextOptions(max_num_seqs=4, max_num_batched_tokens=96, kv_cache_tokens=1024))
        made._preparer._images._decode = decode_picture  # in this process
        return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    @cache
    def built(family: str) -> Checkpoint:
        return Checkpoint(family, vision_models.build(family, tmp_path_factory.mktemp(family)))

    return built


def chat(parts: Sequence[Part]) -> TextRequest:
    content = [TextPart(part) if isinstance(part, str) else ImagePart(_png(part)) for part in parts]
    sampling = Sampling(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=2)
    return TextRequest(prompts=[ChatPrompt([Message("user", content)])], sampling=sampling)


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def run(pipeline: TextPipeline, chats: dict[str, Sequence[Part]]) -> dict[str, list[TokenLogprob]]:
    """All of them at once; every few steps one of several is put back, to go on later."""
    for name, parts in chats.items():
        pipeline.admit(pipeline.prepare(Ticket(name, "interactive", 0.0), chat(parts)))
    events: dict[str, list[Event]] = {}
    steps = count(1)
    while pipeline.busy:
        if next(steps) % 9 == 0 and len(running := pipeline._scheduler._running) > 1:
            pipeline._scheduler._preempt(running[-1])
        for event in pipeline.step().events:
            events.setdefault(event.id, []).append(event)
    pipeline.stats()
    return {
        name: [entry for event in said for entry in getattr(event, "logprobs", [])] for name, said in events.items()
    }


@pytest.mark.parametrize("family", vision_models.FAMILIES)
def test_the_tokens_are_those_of_transformers(checkpoint, family: str) -> None:
    made = checkpoint(family)
    processor, theirs = vision_models.processor(family, made.folder), vision_models.reference(family, made.folder)
    pipeline = made.pipeline()
    found = run(pipeline, CHATS)
    assert pipeline.stats().counters["preemptions"] > 3
    for name, parts in CHATS.items():
        content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in parts]
        text = processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        images = [part for part in parts if not isinstance(part, str)]
        inputs = processor(text=text, images=images or None, return_tensors="pt")
        with torch.inference_mode():
            said = theirs.generate(
                **inputs,
                max_new_tokens=TOKENS,
                eos_token_id=None,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        expected = said.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        for number, (token, entry, logits) in enumerate(zip(expected, found[name], said.logits, strict=True)):
            if entry.id != token:
                best = logits[0].topk(2).values
                assert best[0] - best[1] < MARGIN, f"{name}: token {number} is {entry.id}, not {token}"
                break


@pytest.mark.parametrize("family", ["idefics3", "qwen3-vl", "gemma3"])
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4"])
def test_alone_and_in_company_it_says_the_same(checkpoint, family: str, kind: str) -> None:
    made = checkpoint(family)
    options = {"dtype": "bfloat16", "quantization": None if kind == "bfloat16" else kind}
    pipeline = made.pipeline(**options)
    together = run(pipeline, CHATS)
    assert pipeline.stats().counters["preemptions"] > 3
    for name in ("one", "three of different sizes"):
        assert run(made.pipeline(**options), {name: CHATS[name]})[name] == together[name]
