"""Which rows of which sequences the next step runs."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Rows

from pipelines.text.cache.block_manager import BlockManager
from pipelines.text.plan import Chunk, Plan
from pipelines.text.prefill_budget import PrefillBudget
from pipelines.text.sequence import Rank, Sequence, State
from pipelines.text.speculative import Want
from pipelines.text.waiting import Waiting, due

MAX_PREEMPTIONS = 2  # of a sequence of a lower rank: then it has the highest, so that it ends some day
REPLAY_ROWS = 64  # of one sequence in one step
LOGPROB_ROWS = 128  # of a prefill that wants the logits of all its rows: [rows, vocab] float32
RESERVE = 8  # of so many places in a step, one is kept for small sequences; of twice as many blocks, one
BRIEF = 4  # a prompt of no more than a step's tokens divided by this is computed at once: the others let it pass


class Scheduler:
    """Running decodes first, then prompts in the order in which they are due, those that have begun and those that
    wait, within `max_num_batched_tokens`.

    A prefill ends each step on a border of `tile` or at the prompt's end, so that what it computes does not depend on
    the load; it goes beyond the budget where it would else cut an image that has to be read whole. A sequence is
    admitted when its whole prompt finds blocks; decodes take blocks as they go. When there are none, the newest
    sequence of the lowest rank is put back: it will prefill its prompt again and replay its output as decode rows,
    which gives the same keys, values and tokens.

    Nobody takes everything: long prompts, further choices of a request and the batch class leave places and blocks to
    small sequences, and where those are taken too, further choices and batch sequences are put back for others. A brief
    prompt is computed in a step of its own beside the decodes of its rank, and while such come and go, long ones are
    computed in short steps.

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
        self._waiting = Waiting()
        self._arrivals = 0
        self._prefill_budget = PrefillBudget(tile)
        self._hurried = False  # whether the last step was for brief prompts alone
        self.num_preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        sequence.rank = self._rank(sequence)
        sequence.reserved = sequence.rank is Rank.SMALL
        sequence.order = self._arrivals
        self._arrivals += 1
        self._waiting.add(sequence)
        if self._is_brief(sequence):
            self._prefill_budget.brief(sequence.ticket.received)

    def abort(self, request_id: str) -> None:
        """Drop the sequences of a request, wherever they are."""
        for sequence in [*self._running, *self._waiting]:
            if sequence.ticket.id == request_id:
                self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        """It ends here."""
        if sequence.state is State.RUNNING:
            self._leave(sequence)
        elif sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        sequence.state = State.FINISHED

    def _rank(self, sequence: Sequence) -> Rank:
        if sequence.ticket.priority == "batch":
            return Rank.BATCH
        if sequence.index > 0:
            return Rank.FURTHER
        return Rank.SMALL if sequence.prompt_length <= self._max_num_batched_tokens else Rank.LONG

    def _is_brief(self, sequence: Sequence) -> bool:
        left = sequence.prompt_length - sequence.computed
        return sequence.rank <= Rank.LONG and sequence.index == 0 and left <= self._max_num_batched_tokens // BRIEF

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

    def schedule(self, now: float, only: str | None = None) -> Plan:
        """The next step, at `now` monotonic seconds; with `only`, of one request. What it takes (blocks, a place among
        the running) stays taken if the step fails: no token depends on it."""
        budget = self._max_num_batched_tokens
        if only is None:
            self._welcome()
        hurry = self._hurries(only)
        decode: list[Chunk] = []
        prefill: list[Chunk] = []
        for sequence in self._candidates(only):
            left_out = hurry and sequence.rank >= Rank.FURTHER
            if sequence.state is State.RUNNING and not sequence.prefilling and not left_out:
                chunk = self._decode_chunk(sequence, budget)
                if chunk is not None:
                    decode.append(chunk)
                    budget -= chunk.length
        if any(sequence.brief and sequence.num_output == 0 for sequence in self._running):
            self._prefill_budget.brief(now)
        # Tokens of this step for prompts that are not brief.
        slow = 0 if hurry else self._prefill_budget.tokens(budget, now)
        for sequence in sorted(self._candidates(only), key=lambda each: (each.rank is Rank.BATCH, due(each))):
            if sequence.prefilling:
                chunk = self._prefill_chunk(sequence, budget if sequence.brief else min(budget, slow))
                if chunk is not None:
                    prefill.append(chunk)
                    budget -= chunk.length
                    slow -= 0 if sequence.brief else chunk.length
        while only is None and min(budget, slow) >= self._tile and (newcomer := self._admit()) is not None:
            # Its prompt may be in the cache as a whole, with its output left to replay: that is the next step's.
            chunk = self._prefill_chunk(newcomer, min(budget, slow)) if newcomer.prefilling else None
            if chunk is not None:
                prefill.append(chunk)
                budget -= chunk.length
                slow -= chunk.length
        return Plan(tuple(decode), tuple(prefill))

    def observe(self, plan: Plan, seconds: float) -> None:
        """The step has been run in so many seconds."""
        self._prefill_budget.observe(plan, seconds)

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

    def _hurries(self, only: str | None) -> bool:
        """Whether this step is for brief prompts, and for the decodes that are not put off: every other one at most."""
        brief = any(sequence.prefilling and sequence.brief for sequence in self._running)
        self._hurried = only is None and brief and not self._hurried
        return self._hurried

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
        if length <= 0:
            return None
        if sequence.images is not None:
            end = sequence.images.chunk_end(sequence.computed, sequence.computed + length, self._tile)
            length = min(end - sequence.computed, remaining)
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
        sequence.brief = False
        if sequence.preemptions >= MAX_PREEMPTIONS:
            sequence.rank = Rank.SMALL
        self._waiting.put_back(sequence)
        self.num_preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        """Its blocks are free at once, wherever it has some."""
        self._running.remove(sequence)
        self._blocks.release(sequence.table)
        if self._released is not None:
            self._released(sequence)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _welcome(self) -> None:
        """Admit interactive sequences that the others make room for: before anything is scheduled, since whoever is
        put back takes no part in the step. Of long prompts one at a time is computed, so one at a time is let in. A
        batch sequence whose turn it is goes first where it finds room, and holds nobody up where it does not."""
        computing = any(s.prefilling and not s.brief and s.rank < Rank.BATCH for s in self._running)
        batch_turn = self._waiting.batch_turn

        def welcome(sequence: Sequence) -> bool:
            return batch_turn if sequence.rank is Rank.BATCH else not computing or self._is_brief(sequence)

        while (newcomer := self._admit(welcome, preempt=True)) is not None:
            if newcomer.rank is Rank.BATCH:
                return  # whoever came now would put it back at once
            computing = computing or (newcomer.prefilling and not newcomer.brief)
            batch_turn = self._waiting.batch_turn

    def _admit(self, welcome: Callable[[Sequence], bool] | None = None, *, preempt: bool = False) -> Sequence | None:
        """The next waiting sequence, of those that are welcome: now running with blocks for its whole prompt. None
        where that can't be. `preempt`: others of lower ranks are put back for it."""
        full = len(self._running) == self._max_num_seqs
        if not len(self._waiting) or (full and (not preempt or self._running[-1].rank < Rank.FURTHER)):
            return None
        lacking: Rank | None = None  # the blocks that come free are for one of this rank, but for the reserve
        for sequence in self._waiting.in_turn(self._running):
            passes = sequence.reserved or lacking is None or sequence.rank < lacking
            if not passes or (welcome is not None and not welcome(sequence)) or not self._has_leader(sequence):
                continue
            yielding = self._yielding(sequence) if preempt else []
            if self._places(reserved=sequence.reserved, without=len(yielding)) <= 0:
                continue  # those behind it may have places that it may not take
            prefix = self._match(sequence)
            needed = self._blocks.blocks_for(min(len(sequence.tokens) + 1, self._max_model_len)) - len(prefix)
            victims = self._victims(sequence, needed, prefix, yielding)
            if victims is not None:
                for victim in victims:
                    self._preempt(victim)
                self._start(sequence, needed, prefix)
                return sequence
            if sequence.reserved:
                return None
            # A batch sequence that has its turn stands before the interactive ones: it keeps blocks from its own class.
            lacking = Rank.BATCH if sequence.rank is Rank.BATCH else Rank.SMALL
        return None

    def _start(self, sequence: Sequence, needed: int, prefix: list[int]) -> None:
        self._waiting.admit(sequence)
        growth = self._blocks.blocks_for(sequence.params.max_tokens - sequence.num_output)
        sequence.table = self._blocks.allocate(needed, prefix, growth)
        sequence.computed = len(prefix) * self._blocks.block_size
        sequence.state = State.RUNNING
        sequence.brief = self._is_brief(sequence)
        insort(self._running, sequence, key=lambda other: (other.rank, other.order))
        self._count_hit(sequence)

    def _places(self, *, reserved: bool, without: int) -> int:
        """Free places among the running, `without` so many of those that yield; some are `reserved` for small ones."""
        free = self._max_num_seqs - len(self._running) + without
        if reserved:
            return free
        others = sum(not each.reserved for each in self._running) - without
        return min(free, self._max_num_seqs - self._max_num_seqs // RESERVE - others)

    def _victims(
        self, sequence: Sequence, needed: int, prefix: list[int], yielding: list[Sequence]
    ) -> list[Sequence] | None:
        """The first of those that yield, no more than it takes to have a place and blocks for a sequence. None where
        all of them are too few."""

        def suffices(count: int) -> bool:
            if self._places(reserved=sequence.reserved, without=count) <= 0:
                return False
            remaining = len(self._running) - count
            reserve = self._blocks.num_blocks // (2 * RESERVE) if remaining and not sequence.reserved else 0
            # Each running sequence keeps a block to grow into: else the newcomer would be put back at once.
            wanted = needed + reserve + remaining
            return self._blocks.can_allocate(wanted, prefix, [each.table for each in yielding[:count]])

        counts = range(len(yielding) + 1)
        count = 0 if suffices(0) else bisect_left(counts, True, key=suffices)  # more never do worse
        return yielding[:count] if count in counts else None

    def _yielding(self, to: Sequence) -> list[Sequence]:
        """Those that may be put back for a sequence, the first to go first: of the batch class, and further choices of
        requests that keep another one running."""
        left = Counter(each.ticket.id for each in self._running)
        found: list[Sequence] = []
        for each in reversed(self._running):
            if each.rank < Rank.FURTHER or each.rank <= to.rank:
                break
            if each.rank is Rank.BATCH or left[each.ticket.id] > 1:
                left[each.ticket.id] -= 1
                found.append(each)
        return found

    def _has_leader(self, sequence: Sequence) -> bool:
        """False where it has to wait for its leader's blocks: only for one that gets its rows in every step; a leader
        that was put back may itself wait behind this one."""
        leader = sequence.leader
        return leader is None or leader.state is not State.RUNNING or leader.computed >= self._reusable(sequence)

    def _reusable(self, sequence: Sequence) -> int:
        """Prompt positions that may come from the cache: whole tiles, short of the row whose logits are wanted."""
        if not sequence.keys or sequence.wants_prompt_logits:
            return 0
        end = sequence.prompt_length if sequence.num_output else sequence.prompt_length - 1
        return end // self._tile * self._tile

    def _match(self, sequence: Sequence) -> list[int]:
        prefix = self._blocks.match(sequence.keys[: self._reusable(sequence) // self._blocks.block_size])
        count = len(prefix) // self._granule * self._granule
        if sequence.images is not None:
            size = self._blocks.block_size
            count = sequence.images.border(count * size, self._granule * size) // size
        return prefix[:count]

    def _count_hit(self, sequence: Sequence) -> None:
        """A resumed sequence finds its own blocks: that is no hit."""
        if sequence.preemptions:
            return
        if sequence.keys:
            self.prefix_query_tokens += sequence.prompt_length
            self.prefix_hit_tokens += sequence.computed
        if sequence.leads:
            sequence.group.cached_tokens += sequence.computed
