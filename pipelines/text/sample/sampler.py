"""From logits to tokens, for rows of mixed settings.

Sampling works on the host, a row at a time: a row of float32 logits fits a core's cache, and no row can see how many
others there are. Candidates are narrowed by bounds that need no sort, so that only a handful of tokens is ever
sorted.
"""

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from models.decoder.logits import Logits, largest, on_host
from pipelines.text.sample.rules import Rules, compute_ahead
from pipelines.text.sample.sampling import Doubles, Floats, Ids, SamplingParams, uniform

_CHUNKS = 256
_LOWEST = np.finfo(np.float32).min


class Sampled(Protocol):
    """What the sampler asks of a sequence at one row."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def rules(self) -> Rules: ...

    @property
    def num_output(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """The model's own log-softmax: of one token, and of the most likely ones, most likely first."""

    token: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    token: int
    logprobs: RowLogprobs | None = None


class StepLogits:
    """The logits [rows, vocab] of one step, with the largest value of each row and the first id that has it.

    Plain rows need no more, and are left where they are: in a GPU's memory.
    """

    def __init__(self, logits: Logits) -> None:
        self._logits = logits
        self._peaks, ids = largest(logits)
        self._finite: list[bool] = np.isfinite(self._peaks).tolist()  # NaN counts as the largest
        self._ids: list[int] = ids.tolist()

    @cached_property
    def host(self) -> Floats:
        return on_host(self._logits)

    def finite(self, row: int) -> bool:
        """False: the model broke on this row."""
        return self._finite[row]

    def peak(self, row: int) -> np.float32:
        peak: np.float32 = self._peaks[row]
        return peak

    def best(self, row: int) -> int:
        return self._ids[row]


def is_plain(sequence: Sampled) -> bool:
    """Whether nothing is wanted of its rows but the most likely token."""
    return not sequence.rules and sequence.params.greedy and sequence.params.logprobs is None


def sample(logits: StepLogits, at: Rows[int], sequences: Rows[Sampled]) -> list[Choice | None]:
    """The next token of each sequence, of sequence i from row `at[i]`; None where the row is not finite, or where the
    sequence's rules ban every token."""
    compute_ahead(sequence.rules for sequence in sequences if sequence.rules)
    return [_sample(logits, row, sequence) for row, sequence in zip(at, sequences, strict=True)]


def token_logprobs(logits: StepLogits, start: int, tokens: Rows[int], top: int) -> list[RowLogprobs] | None:
    """Log-probabilities of given tokens, each in its row from `start` on; None where a row is not finite."""
    rows = range(start, start + len(tokens))
    if not all(map(logits.finite, rows)):
        return None
    return [_logprobs(logits.host[row], logits.peak(row), token, top) for row, token in zip(rows, tokens, strict=True)]


def greedy(logits: Logits) -> list[Choice | None]:
    """The first of the largest values of each row; None where it is not finite."""
    step = StepLogits(logits)
    return [Choice(step.best(row)) if step.finite(row) else None for row in range(len(logits))]


def _sample(logits: StepLogits, at: int, sequence: Sampled) -> Choice | None:
    params = sequence.params
    if not logits.finite(at):
        return None
    token: int | None
    if is_plain(sequence):
        return Choice(logits.best(at))
    if sequence.rules:
        token = _choose_by_rules(logits.host[at], sequence)
        if token is None:
            return None
    elif params.greedy:
        token = logits.best(at)
    else:
        token = draw(logits.host[at], logits.peak(at), params, uniform(params.seed, sequence.num_output))
    if params.logprobs is None:
        return Choice(token)
    return Choice(token, _logprobs(logits.host[at], logits.peak(at), token, params.logprobs))


def _choose_by_rules(row: Floats, sequence: Sampled) -> int | None:
    params = sequence.params
    row = row.copy()
    sequence.rules.apply(row)
    best = int(row.argmax())
    if row[best] == -np.inf:
        return None
    return best if params.greedy else draw(row, row[best], params, uniform(params.seed, sequence.num_output))


def draw(row: Floats, peak: np.float32, params: SamplingParams, chance: float) -> int:
    """The token at `chance` of the cumulative distribution that temperature, top-k, top-p and min-p, in this order,
    make of the logits `row` [vocab]. `peak`: the largest of them, which is finite."""
    if 0 < params.top_k < len(row):
        ids = _largest(row, params.top_k)
        weights = _weights(row[ids], peak, params.temperature)
        mass = float(weights.sum(dtype=np.float64))
    else:
        every = _weights(row, peak, params.temperature)
        if params.top_p == 1 and params.min_p == 0:
            return _at(every, chance)
        mass = float(every.sum())
        # Tokens below (1 - top_p) / vocab of the mass have, all together, less than the 1 - top_p that may be missing.
        bound = max(params.min_p, (1 - params.top_p) * mass / len(row))
        ids = _descending(every, np.flatnonzero(every >= np.float32(bound)))
        weights = every[ids]

    cumulative = np.cumsum(weights, dtype=np.float64)
    kept = len(ids)
    if params.top_p < 1:  # the smallest set that reaches top_p of the mass
        kept = min(kept, int(np.searchsorted(cumulative, params.top_p * mass)) + 1)
    if params.min_p > 0:  # relative to the most likely token, whose weight is 1
        kept = min(kept, int(np.count_nonzero(weights >= np.float32(params.min_p))))
    return int(ids[_position(cumulative[:kept], chance)])


def _weights(logits: Floats, peak: np.float32, temperature: float) -> Floats:
    """exp((logits - peak) / temperature): the softmax but for its denominator. No temperature makes it overflow."""
    weights: Floats = logits - peak
    weights *= np.float32(1 / max(temperature, 1e-6))
    np.exp(weights, out=weights)
    return weights


def _at(weights: Floats, chance: float) -> int:
    """The place at `chance` of all weights: by sums of chunks first, then within one."""
    starts = _chunks(len(weights))
    cumulative = np.cumsum(np.add.reduceat(weights, starts), dtype=np.float64)
    chunk = _position(cumulative, chance)
    before = cumulative[chunk - 1] if chunk else 0.0
    within = weights[starts[chunk] : starts[chunk] + starts[1] if len(starts) > 1 else None]
    left = (chance * cumulative[-1] - before) / (cumulative[chunk] - before)
    return int(starts[chunk]) + _position(np.cumsum(within, dtype=np.float64), left)


def _position(cumulative: Doubles, chance: float) -> int:
    """The first place whose cumulative weight is above `chance` of the last: one that has a weight itself."""
    found = int(np.searchsorted(cumulative, chance * cumulative[-1], side="right"))
    return min(found, int(np.searchsorted(cumulative, cumulative[-1])))


def _chunks(length: int) -> Ids:
    """Where the chunks of a row begin."""
    return np.arange(0, length, -(-length // _CHUNKS))


def _descending(values: Floats, ids: Ids) -> Ids:
    """`ids` by their values, largest first; of equal ones the lower id first."""
    bits = values[ids].view(np.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the floats
    keys = (~ordered.astype(np.int64) << 32) | ids
    keys.sort()
    return keys & 0xFFFFFFFF


def _largest(row: Floats, k: int) -> Ids:
    """The k largest of `row`, largest first; those that are -inf are left out.

    The k-th largest of the maxima of row's chunks is not above row's own k-th largest: what is below it is out.
    """
    peaks = np.maximum.reduceat(row, _chunks(len(row)))
    pool = peaks if k <= len(peaks) else row
    bound = np.partition(pool, len(pool) - k)[len(pool) - k]
    return _descending(row, np.flatnonzero(row >= max(bound, _LOWEST)))[:k]


def _logprobs(row: Floats, peak: np.float32, token: int, top: int) -> RowLogprobs:
    """`peak`: the largest of `row`."""
    total = float(peak) + math.log(_weights(row, peak, 1.0).sum())
    ids = _largest(row, min(top, len(row))).tolist() if top else []
    return RowLogprobs(float(row[token]) - total, tuple((id, float(row[id]) - total) for id in ids))
