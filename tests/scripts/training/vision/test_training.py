"""The whole chain on a handful of drawn pictures: that it runs, learns, and leaves what can be loaded."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

from scripts.training.emoji.concepts import Concept
from scripts.training.vision import STYLES, align, evaluate, export, prepare, things, tune
from scripts.training.vision.chats import chat, prompt
from scripts.training.vision.language import load_tokenizer
from scripts.training.vision.questions import Turn
from scripts.training.vision.tower import IMAGE, ROWS, Tower, to_signal

pytestmark = pytest.mark.requires_weights
SHAPES = {"ball": "red", "box": "blue", "dot": "green"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two packages of emoji in small."""
    folders = []
    for style in STYLES:
        folder = tmp_path_factory.mktemp(style)
        pictures = folder / "img" / style / "64"
        pictures.mkdir(parents=True)
        for name, colour in SHAPES.items():
            picture = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
            pen = ImageDraw.Draw(picture)
            (pen.rectangle if name == "box" else pen.ellipse)((14, 14, 50, 50), fill=colour)
            picture.save(pictures / f"{name}.png")
        entries = [
            {
                "short_name": name,
                "image": f"{name}.png",
                f"has_img_{style}": True,
                "category": "Objects",
                "subcategory": "tool",
            }
            for name in SHAPES
        ]
        (folder / "emoji.json").write_text(json.dumps(entries))
        folders.append(folder)
    return folders


@pytest.fixture
def small_language(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """One layer, with the vocabulary of the real one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=64, num_hidden_layers=1, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval().requires_grad_(False)

    def load(dtype: torch.dtype = torch.bfloat16) -> Any:
        return model.to(dtype)

    monkeypatch.setattr(tune, "load_language", load)
    monkeypatch.setattr(evaluate, "load_language", load)
    monkeypatch.setattr(align, "load_embeddings", lambda: model.get_input_embeddings().weight.float())
    return load


def test_from_pictures_to_a_folder_that_sees(
    sources: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_language: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = [Concept(name, (name,)) for name in SHAPES]
    monkeypatch.setattr(things, "read_concepts", lambda file=None: [] if file else known)
    monkeypatch.setattr(prepare, "CHUNK", 24)
    monkeypatch.setattr(align, "PROBE", 8)
    monkeypatch.setattr(tune, "PROBE", 8)
    monkeypatch.setattr(tune, "BATCH", 6)
    monkeypatch.setattr(tune, "CHATS", 4)
    work, out = tmp_path / "work", tmp_path / "model"

    def run(module: Any, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["command", "--work", str(work), *arguments])
        module.main()

    given = [
        argument for style, folder in zip(STYLES, sources, strict=True) for argument in (f"--{style}", str(folder))
    ]
    run(prepare, *given, "--scenes", "24", "--processes", "0")
    run(align, "--steps", "2", "--batch", "6")
    run(align, "--steps", "1", "--batch", "6", "--resume", str(work / "aligned.pt"), "--skip", "6")
    run(tune, "--steps", "2")
    run(export, "--out", str(out))
    lines = [json.loads(line) for line in (out / export.LOG).read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["align", "align", "tune"]
    assert str(tmp_path) not in "".join(file.read_text() for file in out.rglob("*.json*"))

    (out / evaluate.CARD).write_text("# a card\n" + "".join(evaluate.MARKS) + "the end\n")
    monkeypatch.setattr(evaluate, "LONGEST", 1)
    run(evaluate, "--model", str(out), "--share", "0.005", "--record")
    figures = json.loads((out / evaluate.RESULTS).read_text())
    assert figures.keys() == evaluate.LABELS.keys()
    card = (out / evaluate.CARD).read_text()
    assert evaluate.table(figures) in card
    assert card.startswith("# a card\n")
    assert card.endswith("the end\n")


def test_what_is_learned_are_the_answers_and_where_they_end() -> None:
    tokenizer = load_tokenizer()
    turns = [Turn("name", "What is this?", "This is a cat."), Turn("count", "How many?", "There is one.")]
    made = chat(turns, tokenizer)
    learned = [number for number, said in zip(made.ids, made.learned, strict=True) if said]
    end = tokenizer.token_ids()["<|im_end|>"]
    assert tokenizer.decode(learned) == "This is a cat.There is one."
    assert learned.count(end) == 2
    assert not any(made.learned[:ROWS])


def test_a_chat_goes_on_from_what_is_asked_at_serving() -> None:
    tokenizer = load_tokenizer()
    asked = prompt("What is this?", tokenizer)
    made = chat([Turn("name", "What is this?", "This is a cat.")], tokenizer)
    first = asked.index(tokenizer.token_ids()[IMAGE])
    assert tuple(asked[first:]) == made.ids[: len(asked) - first]


def test_the_chat_template_writes_what_was_trained_on() -> None:
    import jinja2

    tokenizer = load_tokenizer()
    template = jinja2.Environment().from_string(export.TEMPLATE)
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image"}]
    written = template.render(messages=[{"role": "user", "content": parts}], add_generation_prompt=True)
    around = f"{export.AROUND}{export.GLOBAL}{IMAGE * ROWS}{export.AROUND}"
    ids = tokenizer.encode(written.replace(IMAGE, around), add_special=False)
    assert ids == prompt("What is this?", tokenizer)


def test_without_pictures_the_template_is_the_language_models_own() -> None:
    import jinja2

    chats = [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "No"},
        ],
    ]
    own, ours = (jinja2.Environment().from_string(text) for text in (load_tokenizer().chat_template, export.TEMPLATE))
    for messages in chats:
        for generate in (True, False):
            expected = own.render(messages=messages, add_generation_prompt=generate)
            assert ours.render(messages=messages, add_generation_prompt=generate) == expected


def test_the_tower_gives_what_transformers_own_model_gives() -> None:
    from transformers import Idefics3Model

    from scripts.training.vision.tower import describe

    config = describe()
    config.text_config.num_hidden_layers = 1
    config.text_config.intermediate_size, config.text_config.vocab_size = 16, 32
    config.text_config.pad_token_id = 0
    torch.manual_seed(0)
    tower, whole = Tower().eval(), Idefics3Model(config).eval()
    whole.load_state_dict(tower.state_dict(), strict=False)
    pixels = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8).numpy()
    with torch.no_grad():
        expected = torch.stack(whole.get_image_features(to_signal(pixels).unsqueeze(1)).pooler_output)
        assert torch.equal(tower(to_signal(pixels))[1], expected)
