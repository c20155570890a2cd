"""Proposals of a small model that has the same vocabulary (https://arxiv.org/abs/2211.17192).

It reads what a sequence has said and goes on greedily, all sequences of a step together. Nobody relies on its keys and
values being the same bits each time: it reads the way that is fastest.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from metrics.definitions import text as metrics
from metrics.metric import GaugeSeries
from models.decoder.batch import CausalDecoder
from models.tokenizer.tokenizer import Tokenizer
from pipelines.base import ModelError
from pipelines.text.cache.block_manager import BlockManager
from pipelines.text.runner import Runner
from pipelines.text.sample.sampler import greedy
from pipelines.text.sequence import Sequence
from pipelines.text.speculative import Want

SHORT = 32  # tokens that are read as decode rows, together with the first proposal; more are a prefill of their own
PATIENCE = 4  # tokens that are worth reading for each that may still be said


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one forward; implements `pipelines.text.runner.RowSpan`."""

    ids: Rows[int]
    start: int
    table: Rows[int]
    logits: int

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def images(self) -> None:
        """It reads their placeholders: what it proposes need not be right."""


@dataclass(slots=True)
class _Reading:
    """How far the model has come in one sequence.

    The keys and values of the first `written` positions are in its cache: those of the sequence's first `base` tokens,
    then of what it proposed behind them.
    """

    sequence: Sequence
    table: list[int]
    written: int
    base: int  # tokens of the sequence when this was last settled
    drafts: list[int] = field(default_factory=list)  # proposed since

    def settle(self) -> None:
        """Keep of the proposals what the sequence came to say; what stands behind it will be overwritten."""
        tokens = self.sequence.tokens
        right = 0
        for token, draft in zip(tokens[self.base :], self.drafts, strict=False):
            if token != draft:
                break
            right += 1
        self.written = min(self.written, self.base + right, len(tokens) - 1)  # the last one's logits are wanted
        self.base = len(tokens)
        self.drafts = []

    @property
    def unread(self) -> int:
        return self.base - self.written

    def rows(self) -> _Rows:
        """All that is not in the cache; the last one proposes."""
        ids = self.sequence.tokens[self.written :] + self.drafts[max(0, self.written - self.base) :]
        return _Rows(ids, self.written, self.table, 1)


class DraftModel:
    """Owns the draft model's cache; implements `pipelines.text.speculative.Proposer`.

    It takes blocks where there are any, and proposes nothing where there are none.
    """

    free = False

    def __init__(
        self, decoder: CausalDecoder, num_blocks: int, *, vocab_size: int, max_num_batched_tokens: int
    ) -> None:
        """`vocab_size`: of the model that verifies. `max_num_batched_tokens`: what is read in one step."""
        self._runner = Runner(decoder, num_blocks)
        self._blocks = BlockManager(num_blocks, self._runner.block_size)
        self._tile = decoder.tile
        self._granule = max(1, self._tile // self._runner.block_size)  # blocks between two borders of tiles
        self._context = decoder.config.max_position_embeddings
        # Either of the two may have been padded further than the other.
        self._num_ids = decoder.config.vocab_size
        self._vocab_size = vocab_size
        self._max_tokens = max_num_batched_tokens
        self._readings: dict[Sequence, _Reading] = {}
        self._runner.warm_up()
        self._cost = self._runner.decode_cost()

    def seconds(self, sequences: int) -> float:
        return self._cost.seconds(sequences)

    def propose(self, wants: Rows[Want]) -> list[list[int]]:
        found = [self._reading(want) for want in wants]
        self._read([reading for reading in found if reading and reading.unread > SHORT])
        lengths = {
            want.sequence: want.length
            for want, reading in zip(wants, found, strict=True)
            if reading and reading.unread <= SHORT
        }
        self._speak(lengths)
        return [self._readings[want.sequence].drafts if want.sequence in lengths else [] for want in wants]

    def release(self, sequence: Sequence) -> None:
        reading = self._readings.pop(sequence, None)
        if reading is not None:
            self._blocks.release(reading.table)

    def gauges(self) -> dict[GaugeSeries, float]:
        return {
            metrics.DRAFT_KV_BLOCKS.series(): self._blocks.num_blocks,
            metrics.DRAFT_KV_BLOCKS_USED.series(): self._blocks.num_used,
        }

    def check(self) -> None:
        if self._readings:
            raise RuntimeError(f"the draft model still reads {len(self._readings)} sequences that have ended")
        self._blocks.check([])

    # --- room ---------------------------------------------------------------------------------------------------------

    def _reading(self, want: Want) -> _Reading | None:
        """Settled, with blocks for what is wanted; None where that can't be, or is not worth reading for."""
        sequence, tokens = want.sequence, want.sequence.tokens
        reading = self._readings.get(sequence)
        prefix: list[int] = []
        if reading is not None:
            reading.settle()
        else:
            prefix = self._match(sequence)
        written = reading.written if reading else len(prefix) * self._runner.block_size
        unread, left = len(tokens) - written, sequence.params.max_tokens - sequence.num_output
        positions = len(tokens) + want.length - 1  # the last proposal is not read
        if positions > self._context or (unread > SHORT and unread > PATIENCE * left):
            return None
        if self._num_ids < self._vocab_size and max(tokens[written:]) >= self._num_ids:
            return None
        if reading is None:
            needed = self._blocks.blocks_for(positions) - len(prefix)
            if not self._blocks.can_allocate(needed, prefix):
                return None
            table = self._blocks.allocate(needed, prefix, self._blocks.blocks_for(left))
            reading = self._readings[sequence] = _Reading(sequence, table, written, len(tokens))
        missing = self._blocks.blocks_for(positions) - len(reading.table)
        if missing > 0:
            if not self._blocks.can_append(missing):
                return None
            self._blocks.append(reading.table, missing)
        return reading

    def _match(self, sequence: Sequence) -> list[int]:
        """Whole tiles of the prompt that are in the cache, short of the last token."""
        whole = (sequence.prompt_length - 1) // self._tile * self._tile // self._runner.block_size
        prefix = self._blocks.match(sequence.keys[:whole])
        return prefix[: len(prefix) // self._granule * self._granule]

    # --- forwards -----------------------------------------------------------------------------------------------------

    def _read(self, readings: Rows[_Reading]) -> None:
        """All but the last token, as far as the budget of a step goes."""
        budget = self._max_tokens
        read: list[_Reading] = []
        rows: list[_Rows] = []
        for reading in readings:
            start = reading.written // self._tile * self._tile
            length = reading.base - 1 - start
            if length > budget:
                length = budget // self._tile * self._tile
            if start + length > reading.written:
                read.append(reading)
                rows.append(_Rows(reading.sequence.tokens[start : start + length], start, reading.table, 0))
                budget -= length
        if not rows:
            return
        self._runner.forward("prefill", rows)
        for reading, each in zip(read, rows, strict=True):
            reading.written = each.start + each.length
            self._register(reading, each.start)

    def _register(self, reading: _Reading, start: int) -> None:
        """Let others find what has been read of the prompt from position `start` on, in whole tiles."""
        sequence = reading.sequence
        if sequence.keys:
            whole = min(reading.written, sequence.prompt_length) // self._tile * self._tile
            size = self._runner.block_size
            self._blocks.register(reading.table, sequence.keys, start // size, whole // size)

    def _speak(self, lengths: dict[Sequence, int]) -> None:
        """One token after the other, those of all sequences in one forward."""
        speaking = [self._readings[sequence] for sequence in lengths]
        while speaking:
            choices = greedy(self._runner.forward("decode", [reading.rows() for reading in speaking]))
            going_on: list[_Reading] = []
            for reading, choice in zip(speaking, choices, strict=True):
                reading.written = reading.base + len(reading.drafts)
                if choice is None or choice.token >= self._vocab_size:
                    continue
                reading.drafts.append(choice.token)
                ended = reading.sequence.params.ends(choice.token)
                if not ended and len(reading.drafts) < lengths[reading.sequence]:
                    going_on.append(reading)
            speaking = going_on


def require_same_vocabulary(model: Tokenizer, draft: Tokenizer) -> None:
    """Raises ModelError unless both name the same tokens by the same ids: else proposals would be other words."""
    expected, found = model.token_ids(), draft.token_ids()
    if len(expected) != len(found):
        raise ModelError(
            f"text.draft: the draft model has another vocabulary, of {len(found)} tokens; the model has {len(expected)}"
        )
    for token, id in expected.items():
        if found.get(token) != id:
            where = f"id {found[token]}" if token in found else "missing"
            raise ModelError(
                f"text.draft: the draft model has another vocabulary: token {token!r} is id {id} in the model, "
                f"{where} in it"
            )
