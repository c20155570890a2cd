import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipelines.text.sample import sampler
from pipelines.text.sample.rules import Rules
from pipelines.text.sample.sampler import Choice, RowLogprobs, StepLogits, draw, is_plain
from pipelines.text.sample.sampling import SamplingParams, uniform

VOCAB = 1000
GREEDY = SamplingParams(temperature=0.0, max_tokens=10)


@dataclass
class Row:
    """A sequence that has said `output`."""

    params: SamplingParams
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.num_output = len(self.output)
        self.rules = Rules.of(self.params, self.prompt)
        for token in self.output:
            self.rules.accept(token)


def sample(logits: torch.Tensor, rows: list[Row]) -> list[Choice | None]:
    return sampler.sample(StepLogits(logits), range(len(rows)), rows)


def token_logprobs(logits: torch.Tensor, tokens: list[int], top: int) -> list[RowLogprobs] | None:
    return sampler.token_logprobs(StepLogits(logits), 0, tokens, top)


def some_logits(rows: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def reference_probabilities(row: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Temperature, top-k, top-p, min-p by sorting all of the vocabulary, in float64."""
    logits = row.astype(np.float64) / params.temperature
    order = np.argsort(-logits, kind="stable")
    probabilities = np.exp(logits - logits.max())[order]
    if params.top_k:
        probabilities[params.top_k :] = 0
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities) - probabilities
    kept = before < params.top_p
    kept &= probabilities >= params.min_p * probabilities[0]
    probabilities = np.where(kept, probabilities, 0)
    result = np.empty_like(probabilities)
    result[order] = probabilities / probabilities.sum()
    return result


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"top_k": 5},
    {"top_k": 300},
    {"top_k": 2000},
    {"top_p": 0.9},
    {"top_p": 0.2},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.8},
    {"top_p": 0.95, "min_p": 0.02, "temperature": 1.5},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
]


@pytest.mark.parametrize("scale", [3.0, 0.3], ids=["peaked", "flat"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_drawn_tokens_follow_the_distribution(settings, scale):
    row = some_logits(1, scale=scale)[0].numpy()
    params = SamplingParams(max_tokens=1, **settings)
    expected = reference_probabilities(row, params)
    draws = 4000
    # Evenly spaced chances visit every token as often as its probability says, to within one draw.
    counts = Counter(draw(row, row.max(), params, (i + 0.5) / draws) for i in range(draws))
    for token in range(VOCAB):
        assert abs(counts[token] / draws - expected[token]) <= 1.01 / draws
    assert all(expected[token] > 0 for token in counts)


def test_equal_logits_are_cut_by_the_lower_id():
    row = np.zeros(VOCAB, dtype=np.float32)
    drawn = {draw(row, row.max(), SamplingParams(max_tokens=1, top_k=3), chance) for chance in (0.0, 0.4, 0.8)}
    assert drawn == {0, 1, 2}


@given(st.floats(0, 1, exclude_max=True), st.floats(1e-40, 100), st.floats(0, 1), st.integers(0, 40), st.floats(0, 1))
def test_no_setting_draws_nothing_or_warns(chance, temperature, top_p, top_k, min_p):
    row = some_logits(1, scale=50.0)[0].numpy()
    row[::7] = -np.inf
    params = SamplingParams(max_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    token = draw(row, row.max(), params, chance)
    assert np.isfinite(row[token])


def test_greedy_rows_take_the_first_of_the_largest():
    logits = torch.zeros(2, VOCAB)
    logits[0, 7] = logits[0, 9] = 1
    assert sample(logits, [Row(GREEDY), Row(GREEDY)]) == [Choice(7), Choice(0)]


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}])
def test_settings_that_leave_one_token_are_greedy(settings):
    assert is_plain(Row(SamplingParams(max_tokens=1, **settings)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(max_tokens=1), replace(GREEDY, logprobs=2)])
def test_a_row_that_is_not_finite_has_no_token_and_the_others_have(params, value):
    logits = some_logits(3)
    logits[1, ...] = value
    drawn = sample(logits, [Row(params)] * 3)
    assert drawn[1] is None
    assert drawn[0] is not None
    assert drawn[2] is not None


def test_a_single_nan_is_seen():
    logits = some_logits(1)
    logits[0, 500] = math.nan
    assert sample(logits, [Row(GREEDY)]) == [None]
    assert sample(logits, [Row(SamplingParams(max_tokens=1))]) == [None]
    assert token_logprobs(logits, [1], 0) is None


# --- one row does not see the others ----------------------------------------------------------------------------------


def mixed_rows() -> list[Row]:
    rows = [Row(SamplingParams(max_tokens=9, seed=seed, **settings)) for seed, settings in enumerate(SETTINGS)]
    rows += [Row(GREEDY), Row(replace(GREEDY, logprobs=5)), Row(SamplingParams(max_tokens=9, seed=3, logprobs=20))]
    rows += [Row(SamplingParams(max_tokens=9, presence_penalty=2.0, repetition_penalty=1.3), (5, 6, 7))]
    rows += [Row(SamplingParams(max_tokens=9, logit_bias={4: 50.0}, seed=8, min_tokens=2, eos_ids=frozenset({9})))]
    return rows


def test_a_row_gives_the_same_in_any_batch():
    rows = mixed_rows()
    logits = some_logits(len(rows))
    before = logits.clone()
    together = sample(logits, rows)
    for number, row in enumerate(rows):
        assert sample(logits[number : number + 1], [row]) == [together[number]]
    assert torch.equal(logits, before)


def test_seeds():
    numbers = [uniform(seed, position) for seed in (0, 1, 2**64 - 1) for position in range(2000)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert abs(np.mean(numbers) - 0.5) < 0.02
    histogram, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert histogram.min() > 500
    assert uniform(5, 3) == uniform(5, 3)


def test_each_position_draws_anew():
    row = some_logits(1, scale=1.0)
    params = SamplingParams(max_tokens=1, seed=5)
    tokens = [sample(row, [Row(params, output=(0,) * position)])[0] for position in range(20)]
    assert len({choice.token for choice in tokens if choice}) > 10


# --- log-probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_logprobs_are_the_models_own_log_softmax(top):
    logits = some_logits(4)
    expected = logits.double().log_softmax(-1)
    params = SamplingParams(
        max_tokens=9, temperature=0.3, top_p=0.5, logprobs=top, logit_bias={3: 50.0}, frequency_penalty=1.0
    )
    for number, choice in enumerate(sample(logits, [Row(params, (1,))] * 4)):
        assert choice is not None
        assert choice.logprobs is not None
        assert choice.token == 3
        assert choice.logprobs.token == pytest.approx(float(expected[number, 3]), abs=1e-5)
        values, ids = expected[number].topk(top)
        assert [id for id, _ in choice.logprobs.top] == ids.tolist()
        assert [value for _, value in choice.logprobs.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_logprobs_of_given_tokens():
    logits = some_logits(3)
    found = token_logprobs(logits, [1, 2, 3], 2)
    assert found is not None
    expected = logits.double().log_softmax(-1)
    assert [row.token for row in found] == pytest.approx([float(expected[i, i + 1]) for i in range(3)], abs=1e-5)
    assert found == [token_logprobs(logits[i : i + 1], [i + 1], 2)[0] for i in range(3)]


def test_a_vocabulary_smaller_than_what_is_asked():
    logits = torch.randn(1, 7)
    (choice,) = sample(logits, [Row(SamplingParams(max_tokens=1, top_k=5, logprobs=20))])
    assert choice is not None
    assert len(choice.logprobs.top) == 7
