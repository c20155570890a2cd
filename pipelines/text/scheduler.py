"""Which rows of which sequences the next step runs."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from pipelines.text.block_manager import BlockManager
from pipelines.text.sequence import Sequence, State
from pipelines.text.speculative import Want

INTERACTIVE, BATCH = 0, 1
BATCH_SHARE = 8  # of so many admissions, one is of the batch class while any of it waits
MAX_PREEMPTIONS = 2  # of a batch sequence: then it ranks as an interactive one, so that it ends some day
REPLAY_ROWS = 64  # of one sequence in one step
LOGPROB_ROWS = 128  # of a prefill that wants the logits of all its rows: [rows, vocab] float32


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one sequence: its positions `start … start + length - 1`."""

    sequence: Sequence
    start: int
    length: int
    draws: bool  # the last row gives the sequence's next token
    scores: bool = False  # every row gives the log-probability of the prompt token after it
    drafts: tuple[int, ...] = ()  # the tokens of its last rows, to be verified: the row before each draws too

    @property
    def table(self) -> list[int]:
        return self.sequence.table

    @property
    def logits(self) -> int:
        """The number of last rows whose logits are wanted."""
        return self.length if self.scores else int(self.draws) + len(self.drafts)

    @property
    def ids(self) -> list[int]:
        """The tokens of its rows."""
        own = self.length - len(self.drafts)
        return [*self.sequence.tokens[self.start : self.start + own], *self.drafts]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: a decode forward and a prefill forward, either of which may be empty."""

    decode: tuple[Chunk, ...]
    prefill: tuple[Chunk, ...]

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.decode + self.prefill

    @property
    def kind(self) -> str:
        return "mixed" if self.decode and self.prefill else "decode" if self.decode else "prefill"

    @property
    def tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(chunk.sequence.ticket.id for chunk in self.chunks))


class Scheduler:
    """Running decodes first, then prefills that have begun, then waiting sequences, within `max_num_batched_tokens`.

    A prefill ends each step on a border of `tile` or at the prompt's end, so that what it computes does not depend on
    the load. A sequence is admitted when its whole prompt finds blocks; decodes take blocks as they go. When there are
    none, the newest sequence of the lowest rank is put back: it will prefill its prompt again and replay its output as
    decode rows, which gives the same keys, values and tokens.

    Every sequence must fit the cache alone (`max_model_len`); then the first of the highest rank always goes on.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        tile: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        released: Callable[[Sequence], None] | None = None,
    ) -> None:
        """`released` is told of each sequence that gives its blocks back: it has ended or is put back."""
        if max_num_batched_tokens < max_num_seqs + tile:
            raise ValueError(f"a step of {max_num_batched_tokens} tokens has no room for a tile beside all decodes")
        if blocks.blocks_for(max_model_len) > blocks.num_blocks:
            raise ValueError(f"{blocks.num_blocks} blocks can't hold a sequence of {max_model_len} tokens")
        if tile % blocks.block_size and blocks.block_size % tile:
            raise ValueError(f"borders of tiles of {tile} and of blocks of {blocks.block_size} do not meet")
        self._blocks = blocks
        self._tile = tile
        self._granule = max(1, tile // blocks.block_size)  # blocks between two borders that a prefill may start on
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._released = released
        self._running: list[Sequence] = []  # by (rank, order): the last is the first to be put back
        self._waiting: tuple[deque[Sequence], deque[Sequence]] = (deque(), deque())  # by rank
        self._arrivals = 0
        self._interactive_turns = 0  # admissions since the last of the batch class, while that one waited
        self.num_preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting))

    def add(self, sequence: Sequence) -> None:
        sequence.rank = INTERACTIVE if sequence.ticket.priority == "interactive" else BATCH
        sequence.order = self._arrivals
        self._arrivals += 1
        self._waiting[sequence.rank].append(sequence)

    def abort(self, request_id: str) -> None:
        """Drop the sequences of a request, wherever they are."""
        for sequence in [*self._running, *self._waiting[0], *self._waiting[1]]:
            if sequence.ticket.id == request_id:
                self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        """It ends here."""
        if sequence.state is State.RUNNING:
            self._leave(sequence)
        elif sequence.state is State.WAITING:
            self._waiting[sequence.rank].remove(sequence)
        sequence.state = State.FINISHED

    # --- one step -----------------------------------------------------------------------------------------------------

    def drafting(self, only: str | None = None) -> list[Want]:
        """The sequences whose drafts the next step can verify, and how many: with rows that nobody else waits for."""
        wants: list[Want] = []
        for sequence in self._candidates(only):
            # A replay has tokens ahead that are known already.
            if sequence.drafting and not sequence.prefilling and sequence.computed == len(sequence.tokens) - 1:
                left = sequence.params.max_tokens - sequence.num_output - 1
                context = self._max_model_len - len(sequence.tokens)
                room = min(self._spare(self._max_num_batched_tokens), left, context)
                wants.append(Want(sequence, max(0, room)))
        return wants

    def schedule(self, only: str | None = None) -> Plan:
        """The next step; with `only`, of one request. What it takes (blocks, a place among the running) stays taken
        if the step fails: no token depends on it."""
        budget = self._max_num_batched_tokens
        decode: list[Chunk] = []
        prefill: list[Chunk] = []
        for sequence in self._candidates(only):
            if sequence.state is State.RUNNING and not sequence.prefilling:
                chunk = self._decode_chunk(sequence, budget)
                if chunk is not None:
                    decode.append(chunk)
                    budget -= chunk.length
        for sequence in self._candidates(only):
            if sequence.prefilling:
                chunk = self._prefill_chunk(sequence, budget)
                if chunk is not None:
                    prefill.append(chunk)
                    budget -= chunk.length
        while only is None and budget >= self._tile and (newcomer := self._admit()) is not None:
            # Its prompt may be in the cache as a whole, with its output left to replay: that is the next step's.
            chunk = self._prefill_chunk(newcomer, budget) if newcomer.prefilling else None
            if chunk is not None:
                prefill.append(chunk)
                budget -= chunk.length
        return Plan(tuple(decode), tuple(prefill))

    def commit(self, plan: Plan, accepted: Rows[int]) -> None:
        """The step has run: its keys and values are in the cache. `accepted`: drafts of each chunk; those of the others
        will be overwritten."""
        for chunk, right in zip(plan.chunks, accepted, strict=True):
            chunk.sequence.computed += chunk.length - len(chunk.drafts) + right
        for chunk in plan.prefill:
            sequence = chunk.sequence
            if sequence.keys:
                # Whole tiles alone: what follows them is never hit, and free behind the sequence it can be grown into.
                whole = sequence.computed // self._tile * self._tile
                first, last = chunk.start // self._blocks.block_size, whole // self._blocks.block_size
                self._blocks.register(sequence.table, sequence.keys, first, last)

    def check(self) -> None:
        """Verify the block manager's invariants. Raises RuntimeError."""
        self._blocks.check(sequence.table for sequence in self._running)

    def _candidates(self, only: str | None) -> list[Sequence]:
        return [sequence for sequence in self._running if only is None or sequence.ticket.id == only]

    # --- running ------------------------------------------------------------------------------------------------------

    def _decode_chunk(self, sequence: Sequence, budget: int) -> Chunk | None:
        """The next token's row, or rows of a replay; None where the sequence had to be put back itself."""
        ahead = len(sequence.tokens) - sequence.computed
        # A replay leaves every other running sequence its row.
        length = min(ahead, REPLAY_ROWS, max(1, budget - len(self._running)))
        if not self._grow(sequence, sequence.computed + length):
            return None
        drafts = self._drafts(sequence, budget) if ahead == 1 else ()
        return Chunk(sequence, sequence.computed, length + len(drafts), draws=length == ahead, drafts=drafts)

    def _drafts(self, sequence: Sequence, budget: int) -> tuple[int, ...]:
        """What was proposed for after the next token, with the blocks and the budget that nobody else waits for."""
        if sequence.drafting is None:
            return ()
        drafts = sequence.drafting.drafts[: self._spare(budget)]
        missing = self._blocks.blocks_for(sequence.computed + 1 + len(drafts)) - len(sequence.table)
        if missing > 0:
            if not self._blocks.can_append(missing + len(self._running)):
                return ()
            self._blocks.append(sequence.table, missing)
        return drafts

    def _spare(self, budget: int) -> int:
        """Rows for drafts of each running sequence, beside the one that each of them gets."""
        return max(0, budget - len(self._running)) // max(1, len(self._running))

    def _prefill_chunk(self, sequence: Sequence, budget: int) -> Chunk | None:
        """As much of the prompt as the budget allows; None where that is less than a tile."""
        if sequence.wants_prompt_logits:
            budget = min(budget, max(LOGPROB_ROWS, self._tile))
        remaining = sequence.prompt_length - sequence.computed
        length = remaining if remaining <= budget else budget // self._tile * self._tile
        if length == 0:
            return None
        draws = length == remaining and sequence.num_output == 0 and sequence.params.max_tokens > 0
        return Chunk(sequence, sequence.computed, length, draws, sequence.wants_prompt_logits)

    def _grow(self, sequence: Sequence, positions: int) -> bool:
        """Blocks for so many positions, if need be another sequence's. False: it was this one's turn to go."""
        missing = self._blocks.blocks_for(positions) - len(sequence.table)
        while missing > 0 and not self._blocks.can_append(missing):
            # In the order of `_running`, whatever this step has scheduled stands before the one to go.
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            self._blocks.append(sequence.table, missing)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.computed = 0
        sequence.state = State.WAITING
        sequence.preemptions += 1
        if sequence.preemptions >= MAX_PREEMPTIONS:
            sequence.rank = INTERACTIVE
        self._waiting[sequence.rank].appendleft(sequence)
        self.num_preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        """Its blocks are free at once, wherever it has some."""
        self._running.remove(sequence)
        self._blocks.release(sequence.table)
        if self._released is not None:
            self._released(sequence)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _admit(self) -> Sequence | None:
        """The next waiting sequence, now running with blocks for its whole prompt; None where that can't be."""
        if len(self._running) == self._max_num_seqs or (sequence := self._next()) is None:
            return None
        prefix = self._match(sequence)
        needed = self._blocks.blocks_for(min(len(sequence.tokens) + 1, self._max_model_len)) - len(prefix)
        # Each running sequence keeps a block to grow into: else the newcomer would be put back at once.
        if not self._blocks.can_allocate(needed + len(self._running), prefix):
            return None
        self._waiting[sequence.rank].popleft()
        overtaking = sequence.rank == INTERACTIVE and self._waiting[BATCH]
        self._interactive_turns = self._interactive_turns + 1 if overtaking else 0
        growth = self._blocks.blocks_for(sequence.params.max_tokens - sequence.num_output)
        sequence.table = self._blocks.allocate(needed, prefix, growth)
        sequence.computed = len(prefix) * self._blocks.block_size
        sequence.state = State.RUNNING
        insort(self._running, sequence, key=lambda other: (other.rank, other.order))
        self._count_hit(sequence)
        return sequence

    def _next(self) -> Sequence | None:
        """The sequence whose turn it is; None where there is none, or it has to wait for its leader's blocks."""
        interactive, batch = self._waiting
        if batch and (not interactive or self._interactive_turns >= BATCH_SHARE - 1):
            sequence = batch[0]
        elif interactive:
            sequence = interactive[0]
        else:
            return None
        # Only for one that gets its rows in every step: a leader that was put back may itself wait behind this one.
        leader = sequence.leader
        if leader is not None and leader.state is State.RUNNING and leader.computed < self._reusable(sequence):
            return None
        return sequence

    def _reusable(self, sequence: Sequence) -> int:
        """Prompt positions that may come from the cache: whole tiles, short of the row whose logits are wanted."""
        if not sequence.keys or sequence.wants_prompt_logits:
            return 0
        end = sequence.prompt_length if sequence.num_output else sequence.prompt_length - 1
        return end // self._tile * self._tile

    def _match(self, sequence: Sequence) -> list[int]:
        prefix = self._blocks.match(sequence.keys[: self._reusable(sequence) // self._blocks.block_size])
        return prefix[: len(prefix) // self._granule * self._granule]

    def _count_hit(self, sequence: Sequence) -> None:
        """A resumed sequence finds its own blocks: that is no hit."""
        if sequence.preemptions:
            return
        if sequence.keys:
            self.prefix_query_tokens += sequence.prompt_length
            self.prefix_hit_tokens += sequence.computed
        if sequence.leads:
            sequence.group.cached_tokens += sequence.computed
