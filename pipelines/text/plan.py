"""What one step runs."""

from dataclasses import dataclass

from pipelines.text.sequence import Sequence
from pipelines.text.vision.prompt_images import PromptImages


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
    def images(self) -> PromptImages | None:
        return self.sequence.images

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
