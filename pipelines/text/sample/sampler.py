"""From logits to tokens, for rows of mixed settings.

Sampling works on the host, a row at a time: a row of float32 logits fits a core's cache, and no row can see how many
others there are. Candidates are narrowed by bounds that need no sort, so that only a handful of tokens is ever
sorted.
"""

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from models.decoder.logits import Logits, largest, on_host
from pipelines.text.sample.sampling import Doubles, Floats, Ids, SamplingParams, TokenCounts, uniform

TOP_LOGPROBS = 20  # the most alternatives that a request may ask for
_CHUNKS = 256


class Sampled(Protocol):
    """What the sampler asks of a sequence."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def counts(self) -> TokenCounts | None: ...

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


def sample(logits: Logits, sequences: Rows[Sampled]) -> list[Choice | None]:
    """The next token of each sequence, from its row of `logits` [sequences, vocab]; None where the row is not
    finite."""
    if all(sequence.params.plain for sequence in sequences):
        return greedy(logits)
    rows = on_host(logits)
    return [_choose(row, sequence) for row, sequence in zip(rows, sequences, strict=True)]


def token_logprobs(logits: Logits, tokens: Rows[int], top: int) -> list[RowLogprobs] | None:
    """Log-probabilities of given tokens, each in its row of `logits` [tokens, vocab]; None where a row is not
    finite."""
    rows = on_host(logits)
    if not np.isfinite(rows.max(axis=-1)).all():
        return None
    return [_logprobs(row, token, top) for row, token in zip(rows, tokens, strict=True)]


def greedy(logits: Logits) -> list[Choice | None]:
    """The first of the largest values of each row; NaN counts as the largest."""
    values, ids = largest(logits)
    finite = np.isfinite(values).tolist()
    return [Choice(token) if ok else None for token, ok in zip(ids.tolist(), finite, strict=True)]


def _choose(row: Floats, sequence: Sampled) -> Choice | None:
    params = sequence.params
    if not np.isfinite(row.max()):
        return None
    processed = _process(row, sequence)
    if params.greedy:
        token = int(processed.argmax())
    else:
        token = draw(processed, params, uniform(params.seed, sequence.num_output))
    return Choice(token, None if params.logprobs is None else _logprobs(row, token, params.logprobs))


def _process(row: Floats, sequence: Sampled) -> Floats:
    """Penalties, bias and the mask of `min_tokens`, in that order; on a copy where there is any."""
    params, counts = sequence.params, sequence.counts
    masked = sequence.num_output < params.min_tokens
    if counts is None and not params.logit_bias and not masked:
        return row
    row = row.copy()
    if counts is not None:
        counts.apply(row, params)
    if params.logit_bias:
        row[list(params.logit_bias)] += np.fromiter(params.logit_bias.values(), np.float32)
    if masked:
        row[[id for id in (*params.stop_ids, *params.eos_ids) if id < len(row)]] = -np.inf
    return row


def draw(row: Floats, params: SamplingParams, chance: float) -> int:
    """The token at `chance` of the cumulative distribution that temperature, top-k, top-p and min-p, in this order,
    make of the processed logits `row` [vocab]."""
    if 0 < params.top_k < len(row):
        ids = _largest(row, params.top_k)
        weights = _weights(row[ids], row[ids[0]], params.temperature)
        mass = float(weights.sum(dtype=np.float64))
    else:
        every = _weights(row, row.max(), params.temperature)
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
    """The k largest of `row`, largest first.

    The k-th largest of the maxima of row's chunks is not above row's own k-th largest: what is below it is out.
    """
    peaks = np.maximum.reduceat(row, _chunks(len(row)))
    pool = peaks if k <= len(peaks) else row
    bound = np.partition(pool, len(pool) - k)[len(pool) - k]
    return _descending(row, np.flatnonzero(row >= bound))[:k]


def _logprobs(row: Floats, token: int, top: int) -> RowLogprobs:
    peak = row.max()
    total = float(peak) + math.log(_weights(row, peak, 1.0).sum())
    ids = _largest(row, min(top, len(row))).tolist() if top else []
    return RowLogprobs(float(row[token]) - total, tuple((id, float(row[id]) - total) for id in ids))
