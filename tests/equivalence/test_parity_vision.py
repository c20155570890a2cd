"""The decoders of models that see give the logits of transformers' models, where pictures' rows stand in a prompt."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.decoder.families.vision import VISION_FORMS
from models.decoder.loading import load_decoder
from models.decoder.native.library import library
from models.decoder.transformer import Decoder
from tests.equivalence import shown
from tests.equivalence.conftest import SHAPE, blocks_for, save_tokenizer
from tests.equivalence.shown import DEEP, MODELS, SEVERAL_AXES, Picture, Shown, batch_of

TOLERANCE = 1e-4
GENERATED = 6
WIDE = {"hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 448, "head_dim": 32}
WIDE_ROPE = {"rope_parameters": {**shown.ROPE, "mrope_section": [6, 5, 5]}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """(folder, model), each made once."""
    made: dict[Any, tuple[Path, Any]] = {}

    def save(family: str, *, wide: bool = False) -> tuple[Path, Any]:
        if (family, wide) not in made:
            rope = WIDE_ROPE if family in SEVERAL_AXES else {}
            model = shown.make(family, **({**WIDE, **rope} if wide else {}))
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            save_tokenizer(folder)
            made[family, wide] = folder, model
        return made[family, wide]

    return save


def run(decoder: Decoder, each: Shown, borders: Sequence[int]) -> Tensor:
    """[n, vocab]: the prompt in chunks that end at `borders`, then a token at a time."""
    cache, blocks = decoder.new_cache(24), blocks_for(len(each.ids))
    found, start = [], 0
    for end in (*borders, each.prompt):
        found.append(decoder.forward(batch_of("prefill", [(each, start, end, blocks)]), cache))
        start = end
    steps = range(each.prompt, len(each.ids))
    return torch.cat(
        [*found, *(decoder.forward(batch_of("decode", [(each, at, at + 1, blocks)]), cache) for at in steps)]
    )


@pytest.mark.parametrize("family", MODELS)
def test_logits_are_those_of_transformers(family: str, checkpoint: Callable[..., tuple[Path, Any]]) -> None:
    """Two pictures that begin and end within tiles, one of them longer than a tile; a span is not cut by a chunk."""
    folder, model = checkpoint(family)
    decoder = load_decoder(folder, device="cpu", dtype="float32", threads=1).decoder
    assert decoder.config.axes == (3 if family in SEVERAL_AXES else 1)
    pictures = [Picture(37, 8, 10), Picture(157, 5, 4)]
    each = Shown.of(family, SHAPE["hidden_size"], pictures, 190, GENERATED)
    expected = shown.expected(model, each)
    for borders in ((), (128,) if each.spans else (64, 128)):
        assert (run(decoder, each, borders) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", ["llava-llama", "llava-onevision", "qwen2.5-vl", "gemma3"])
def test_a_checkpoint_s_other_place_of_the_decoder_is_found(
    family: str, checkpoint: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """Tensors by the names that they have in the model, where the hub's have older ones."""
    folder, model = checkpoint(family)
    model.save_pretrained(tmp_path, save_original_format=False)
    save_tokenizer(tmp_path)
    found, expected = (
        load_decoder(each, device="cpu", dtype="float32", threads=1).decoder for each in (tmp_path, folder)
    )
    assert found.config.layout != expected.config.layout
    each = Shown.of(family, SHAPE["hidden_size"], [Picture(3, 2, 4)], 20, 1)
    assert (run(found, each, ()) - run(expected, each, ())).abs().max() <= TOLERANCE


def test_all_classes_are_tried() -> None:
    assert {f"{name}ForConditionalGeneration" for name, *_ in MODELS.values()} == {
        form.architecture for form in VISION_FORMS
    }
    assert {("Llava", text["model_type"]) for name, text, *_ in MODELS.values() if name == "Llava"} == {
        ("Llava", kind) for form in VISION_FORMS if form.model_type == "llava" for kind in form.decoders
    }


KINDS = [
    ("idefics3", "int4"),
    *((family, kind) for family in ("qwen2.5-vl", "qwen3-vl") for kind in ("int4", "int8", "bfloat16")),
    *(("gemma3", kind) for kind in ("int4", "bfloat16")),
]


def load(folder: Path, kind: str, **how: Any) -> Decoder:
    return load_decoder(
        folder, device="cpu", quantization=None if kind == "bfloat16" else kind, dense_prefill=False, threads=2, **how
    ).decoder


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_rows_are_the_same_bits_alone_and_in_company(
    family: str, kind: str, checkpoint: Callable[..., tuple[Path, Any]]
) -> None:
    """More rows than one native call takes; chunks of a tile; a picture in one sequence, two in another, none."""
    decoder = load(checkpoint(family, wide=True)[0], kind)
    made = [
        Shown.of(family, WIDE["hidden_size"], pictures, prompt, GENERATED, seed=seed)
        for seed, (pictures, prompt) in enumerate(
            [([Picture(5, 6, 7)], 90), ([], 30), ([Picture(40, 9, 9), Picture(130, 3, 4)], 200)]
        )
    ]
    tables, start = [], 0
    for each in made:
        tables.append(blocks_for(len(each.ids), first=start))
        start = tables[-1][-1] + 1
    alone = [run(decoder, each, ()) for each in made]
    cache = decoder.new_cache(start)
    both = list(zip(made, tables, strict=True))
    prompts = decoder.forward(batch_of("prefill", [(each, 0, each.prompt, table) for each, table in both]), cache)
    generated = decoder.forward(
        batch_of("decode", [(each, each.prompt, len(each.ids), table) for each, table in both]), cache
    )
    sizes = [each.prompt for each in made]
    for each, first, last, whole in zip(made, prompts.split(sizes), generated.split(GENERATED), alone, strict=True):
        assert torch.equal(torch.cat((first, last)), whole)
        borders = range(decoder.tile, each.prompt, decoder.tile)
        uncut = [at for at in borders if not any(begin < at < end for begin, end in each.spans)]
        assert torch.equal(run(decoder, each, uncut), whole)


@pytest.mark.skipif(library() is None, reason="no native library")
@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_the_native_library_turns_and_adds_as_torch_does(
    family: str, checkpoint: Callable[..., tuple[Path, Any]]
) -> None:
    """Within what 8 bits lose: nearer to what transformers says of the same batch than of any other."""
    folder, model = checkpoint(family, wide=True)
    decoder = load(folder, "int8")
    assert "native in prefill" in decoder.details()["attention"]
    each = Shown.of(family, WIDE["hidden_size"], [Picture(5, 6, 7), Picture(60, 4, 3)], 80, GENERATED)
    variants = {
        "own": each,
        "one axis": replace(each, positions=np.arange(len(each.ids))),
        "other axes": replace(each, positions=each.positions[[0, 2, 1]]),
    }
    if family in DEEP:
        each = replace(each, deepstack=[4 * rows for rows in each.deepstack])
        variants |= {
            "added": each,
            "added to others": replace(each, deepstack=[rows[:, ::-1].copy() for rows in each.deepstack]),
            "added elsewhere": replace(each, deepstack=[rows[::-1].copy() for rows in each.deepstack]),
        }
    expected = {name: shown.expected(model, variant) for name, variant in variants.items()}
    for name, variant in variants.items():
        found = run(decoder, variant, ())
        errors = {other: ((found - said).abs().mean() / said.std()).item() for other, said in expected.items()}
        assert errors[name] <= 0.1
        assert min(errors, key=errors.__getitem__) == name
