"""Prompts that show pictures to tiny random models: their rows are numbers by chance, as if a tower had given them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder.batch import ForwardBatch, Segment
from tests.equivalence.conftest import SHAPE, VOCAB, roughen

LAYERS = 2  # of deepstack
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}
QWEN_VISION = {"depth": 3, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
GEMMA = {"head_dim": 32, "sliding_window": 48, "query_pre_attn_scalar": 24}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# Class, its `text_config`, its `vision_config`, what else it is told.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "idefics3": ("Idefics3", {"model_type": "llama"}, VISION, {"image_token_id": 5}),
    "smolvlm": ("SmolVLM", {"model_type": "llama"}, VISION, {"image_token_id": 5, "tie_word_embeddings": True}),
    **{
        f"llava-{kind}": (
            "Llava",
            {"model_type": kind, **({"sliding_window": 48} if kind == "mistral" else {})},
            {"model_type": "clip_vision_model", **VISION},
            {"image_token_index": 5},
        )
        for kind in ("llama", "mistral", "qwen2")
    },
    "llava-onevision": (
        "LlavaOnevision",
        {"model_type": "qwen2"},
        {"model_type": "siglip_vision_model", **VISION},
        {"image_token_index": 5},
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VL",
        {"rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]}},
        {**QWEN_VISION, "fullatt_block_indexes": [0]},
        {"tie_word_embeddings": True},
    ),
    "qwen3-vl": (
        "Qwen3VL",
        {"head_dim": 32, "rope_parameters": {**ROPE, "mrope_section": [6, 5, 5]}},
        {**QWEN_VISION, "deepstack_visual_indexes": list(range(LAYERS))},
        {},
    ),
    "gemma3": ("Gemma3", GEMMA, VISION, {}),
}
SEVERAL_AXES, BIDIRECTIONAL, DEEP = ("qwen2.5-vl", "qwen3-vl"), ("gemma3",), ("qwen3-vl",)


def make(family: str, **shape: Any) -> Any:
    """A model of transformers."""
    import transformers

    name, text, vision, others = MODELS[family]
    hidden = shape.get("hidden_size", SHAPE["hidden_size"])
    vision = {**vision, "out_hidden_size": hidden} if "depth" in vision else vision
    kind = getattr(transformers, f"{name}ForConditionalGeneration")
    text = {**SHAPE, "tie_word_embeddings": others.get("tie_word_embeddings", False), **text, **shape}
    torch.manual_seed(0)
    model = kind(kind.config_class(text_config=text, vision_config=vision, **others)).eval()
    roughen(model)
    return model


@dataclass(frozen=True)
class Picture:
    start: int
    height: int
    width: int

    @property
    def end(self) -> int:
        return self.start + self.height * self.width


@dataclass(frozen=True)
class Shown:
    """A sequence: a prompt with pictures, and what is generated behind it."""

    ids: NDArray[np.int64]  # [n]
    prompt: int  # tokens
    pictures: Sequence[Picture]
    positions: NDArray[np.int64]  # [n], or [axes, n]
    embeds: Sequence[NDArray[np.float32]]  # of each picture [rows, hidden]
    deepstack: Sequence[NDArray[np.float32]]  # of each picture [layers, rows, hidden]; empty: none
    spans: Sequence[tuple[int, int]]

    @staticmethod
    def of(
        family: str, hidden: int, pictures: Sequence[Picture], prompt: int, generated: int, *, seed: int = 0
    ) -> "Shown":
        chance = np.random.default_rng(seed)

        def rows(*shape: int) -> NDArray[np.float32]:
            return chance.standard_normal((*shape, hidden), np.float32)

        length = prompt + generated
        sizes = [each.height * each.width for each in pictures]
        return Shown(
            ids=chance.integers(6, VOCAB, length),
            prompt=prompt,
            pictures=pictures,
            positions=_positions(pictures, length) if family in SEVERAL_AXES else np.arange(length),
            embeds=[rows(size) for size in sizes],
            deepstack=[rows(LAYERS, size) for size in sizes] if family in DEEP else [],
            spans=[(each.start, each.end) for each in pictures] if family in BIDIRECTIONAL else [],
        )


def _positions(pictures: Sequence[Picture], length: int) -> NDArray[np.int64]:
    """[axes, n]: a picture's rows share a time, and what follows goes on behind the largest of them."""
    found = np.zeros((3, length), np.int64)
    place = next_one = 0
    for each in pictures:
        found[:, place : each.start] = next_one + np.arange(each.start - place)
        next_one += each.start - place
        row = np.arange(each.height * each.width)
        found[:, each.start : each.end] = next_one + np.stack((0 * row, row // each.width, row % each.width))
        place, next_one = each.end, next_one + max(each.height, each.width)
    found[:, place:] = next_one + np.arange(length - place)
    return found


# (sequence, its first row, behind its last one, its blocks)
Part = tuple[Shown, int, int, Sequence[int]]


def batch_of(kind: Literal["prefill", "decode"], parts: Sequence[Part]) -> ForwardBatch:
    """Rows of several sequences, cut wherever."""
    embeds, deepstack, segments = [], [], []
    row = 0
    for each, begin, end, blocks in parts:
        for index, picture in enumerate(each.pictures):
            first, last = max(picture.start, begin), min(picture.end, end)
            if first < last:
                here = slice(first - picture.start, last - picture.start)
                embeds.append((row + first - begin, each.embeds[index][here]))
                if each.deepstack:
                    deepstack.append((row + first - begin, each.deepstack[index][:, here]))
        spans = [span for span in each.spans if span[1] <= end] if kind == "prefill" else ()
        segments.append(Segment(end - begin, begin, blocks, spans))
        row += end - begin
    return ForwardBatch(
        kind,
        np.concatenate([each.ids[begin:end] for each, begin, end, _ in parts]),
        np.concatenate([each.positions[..., begin:end] for each, begin, end, _ in parts], axis=-1),
        segments,
        None,
        embeds,
        deepstack,
    )


def expected(model: Any, shown: Shown) -> torch.Tensor:
    """[n, vocab]: what transformers' model says."""
    whole = torch.from_numpy(shown.ids)
    embedded = model.get_input_embeddings()(whole).detach().clone()
    seen = torch.zeros(len(whole), dtype=torch.bool)
    for each, rows in zip(shown.pictures, shown.embeds, strict=True):
        embedded[each.start : each.end] = torch.from_numpy(rows)
        seen[each.start : each.end] = True
    decoder = getattr(model.model, "language_model", None) or model.model.text_model
    told: dict[str, Any] = {}
    if shown.positions.ndim == 2:
        told["position_ids"] = torch.from_numpy(shown.positions)[:, None]
    if shown.deepstack:
        layers = torch.from_numpy(np.concatenate(shown.deepstack, axis=1))
        told |= {"visual_pos_masks": seen[None], "deepstack_visual_embeds": list(layers)}
    if shown.spans:
        decoder, told = model.model, {"token_type_ids": seen[None].long()}
    with torch.no_grad():
        found: torch.Tensor = model.lm_head(decoder(inputs_embeds=embedded[None], **told).last_hidden_state)[0]
    return found
