"""What is sampled with drafts has the distribution that the settings ask for, whoever proposes them.

The model is a chain: the logits of a token follow from the one before it. So the probability of every text of four
tokens can be computed, and 5,000 texts (20,000 draws) of the whole pipeline be held against it.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest

from pipelines.messages.text import ProposerKind, TokenPrompt
from tests.pipelines.text.fakes import FakeDecoder, create_pipeline, draft_freely, keep_too_much, request, run, submit

WORDS, LENGTH, TEXTS = 5, 4, 5000
PROMPT = [
    1,
    0,
    1,
    1,
    1,
    2,
    1,
    3,
    1,
    4,
    1,
]  # whatever comes first has followed a 1 before: there is something to propose
SETTINGS = {"temperature": 1.2, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.6}
TABLE = np.random.default_rng(0).standard_normal((WORDS, WORDS), np.float32)
ROUGHLY = TABLE + 0.7 * np.random.default_rng(1).standard_normal((WORDS, WORDS), np.float32)


class Chain(FakeDecoder):
    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.table = table
        self.config.vocab_size = WORDS

    def logits(self, seen: np.ndarray) -> np.ndarray:
        return self.table[seen[-1, 0]]


def texts(kind: ProposerKind, number: int) -> Counter[tuple[int, ...]]:
    """How often each text came among so many, with as many drafts as there can be."""
    pipeline = create_pipeline(Chain(TABLE), draft=Chain(ROUGHLY), speculation=kind, max_draft=2)
    draft_freely(pipeline)
    found: dict[tuple[str, int], list[int]] = {}
    for first in range(0, number, 100):
        asked = request(TokenPrompt(PROMPT), n=100, max_tokens=LENGTH, seed=first, logprobs=0, **SETTINGS)
        submit(pipeline, str(first), asked)
        for id, events in run(pipeline).items():
            for event in events:
                for entry in getattr(event, "logprobs", ()):
                    found.setdefault((id, event.index), []).append(entry.id)
    counters = pipeline.stats().counters
    assert counters[f"drafted_tokens:{kind}"] > number
    assert number / 20 < counters[f"accepted_tokens:{kind}"] < 0.9 * counters[f"drafted_tokens:{kind}"]
    return Counter(map(tuple, found.values()))


@cache
def expected() -> dict[tuple[int, ...], float]:
    """The probability of each text."""
    return {text: probability(text) for text in product(range(WORDS), repeat=LENGTH)}


def probability(text: Sequence[int]) -> float:
    """By the settings' definitions."""
    whole = 1.0
    for place, token in enumerate(text):
        before = text[:place]
        logits = TABLE[[*PROMPT, *before][-1]].astype(float)
        for word in {*PROMPT, *before}:
            factor = SETTINGS["repetition_penalty"]
            logits[word] = logits[word] / factor if logits[word] > 0 else logits[word] * factor
            logits[word] -= SETTINGS["frequency_penalty"] * before.count(word)
        weights = np.exp(logits / SETTINGS["temperature"])
        weights /= weights.sum()
        order = np.argsort(-weights)
        kept = order[: int(np.searchsorted(weights[order].cumsum(), SETTINGS["top_p"])) + 1]
        whole *= weights[token] / weights[kept].sum() if token in kept else 0.0
    return whole


def excess(found: Counter[tuple[int, ...]]) -> float:
    """Chi-square above what one in a thousand has; texts that are too rare make one cell."""
    total = found.total()
    common = {text: total * share for text, share in expected().items() if total * share >= 5}
    rare = total - sum(common.values())
    statistic = sum((found[text] - mean) ** 2 / mean for text, mean in common.items())
    statistic += (total - sum(found[text] for text in common) - rare) ** 2 / max(rare, 1.0)
    freedom = len(common)
    return float(statistic) - (freedom + 4 * (2 * freedom) ** 0.5 + 6)


@pytest.mark.parametrize("kind", ["ngram", "draft"])
def test_what_is_sampled_has_the_models_distribution(kind: ProposerKind) -> None:
    found = texts(kind, TEXTS)
    assert found.total() == TEXTS
    assert all(expected()[text] > 0 for text in found)
    assert excess(found) < 0


@pytest.mark.parametrize("kind", ["ngram", "draft"])
def test_a_verification_that_keeps_too_much_has_another(kind: ProposerKind, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_too_much(monkeypatch)
    assert excess(texts(kind, 2000)) > 0
