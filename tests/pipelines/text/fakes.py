"""A decoder whose output depends on all that the real one's does, and on nothing else; and a tokenizer of bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from models.decoder.batch import ForwardBatch
from models.decoder.loading import GenerationDefaults
from models.vision.vision import Vision
from pipelines.base import Ticket
from pipelines.messages.frames import Done, Event
from pipelines.messages.sampling import SamplingOptions
from pipelines.messages.text import Prompt, Sampling, StringPrompt, TextOptions, TextRequest
from pipelines.text.pipeline import TextPipeline
from pipelines.text.results import Draw
from pipelines.text.sample.sampler import Choice
from pipelines.text.step_cost import StepCost

BOS, EOS, USER = 256, 257, 258
VOCAB = 264  # padded: the tokenizer has no tokens for the last ones
BLOCK, TILE, CONTEXT = 4, 8, 128
HIDDEN = 4
TEMPLATE = (
    "{% for message in messages %}<user>{{ message.role }}:{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<user>assistant:{% endif %}"
)


class FakeCache:
    """One cell a position: the token there, and which kind of forward wrote it. Cells start as garbage."""

    def __init__(self, num_blocks: int) -> None:
        self.block_size = BLOCK
        self.num_blocks = num_blocks
        self.bytes_per_block = BLOCK * 1024
        self.cells = np.full((num_blocks * BLOCK, 2), -7, dtype=np.int64)


@dataclass
class FakeDecoder:
    """Logits are a hash of what the row's positions hold in the cache, read through the block table.

    As in a real decoder, prefill and decode leave different bits behind, and a prefill must start on a tile.
    """

    tile: int = TILE
    context: int = CONTEXT
    scale: float = 2.0
    fail_on: int | None = None  # a token id that breaks the forward
    poison: int | None = None  # a token id whose rows have NaN logits
    forwards: list[ForwardBatch] = field(default_factory=list)
    gpu: None = None
    captures: bool = False

    def __post_init__(self) -> None:
        self.config = SimpleNamespace(vocab_size=VOCAB, max_position_embeddings=self.context, hidden_size=HIDDEN)

    def details(self) -> dict[str, str]:
        return {"decoder": "fake"}

    def new_cache(self, num_blocks: int) -> FakeCache:
        return FakeCache(num_blocks)

    def forward(self, batch: ForwardBatch, cache: FakeCache) -> NDArray[np.float32]:
        self.forwards.append(batch)
        ids = batch.ids.tolist()
        if self.fail_on in ids:
            raise RuntimeError("the forward broke")
        kind = ("prefill", "decode").index(batch.kind)
        rows: list[NDArray[np.float32]] = []
        first = 0
        values = self.read(batch)
        for segment in batch.segments:
            positions = range(segment.context, segment.context + segment.length)
            assert batch.kind == "decode" or segment.context % self.tile == 0
            cells = [segment.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(positions.stop)]
            for offset, position in enumerate(positions):
                cache.cells[cells[position]] = values[first + offset], kind
            seen = cache.cells[cells]
            rows.extend(self.logits(seen[: position + 1]) for position in positions)
            first += segment.length
        wanted = range(len(rows)) if batch.logit_rows is None else batch.logit_rows.tolist()
        return np.stack([rows[row] for row in wanted]) if wanted else np.empty((0, VOCAB), np.float32)

    def read(self, batch: ForwardBatch) -> list[int]:
        """What each row's cell is to hold."""
        places = [place for s in batch.segments for place in range(s.context, s.context + s.length)]
        assert batch.positions.tolist() == places
        assert not batch.embeds
        return batch.ids.tolist()

    def logits(self, seen: np.ndarray) -> NDArray[np.float32]:
        digest = blake2b(seen.tobytes(), digest_size=8).digest()
        values = np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(VOCAB, np.float32)
        if self.poison is not None and seen[-1, 0] == self.poison:
            values[3] = np.nan
        return values * np.float32(self.scale)


class ByteTokenizer:
    """Ids 0 … 255 are bytes."""

    vocab_size = 259
    eos_ids = frozenset({EOS})
    names: ClassVar[dict[str, int]] = {"<s>": BOS, "</s>": EOS, "<user>": USER}

    def __init__(self, chat_template: str | None = TEMPLATE, bos_id: int | None = BOS) -> None:
        self.chat_template = chat_template
        self.bos_id = bos_id
        self.special_tokens = {"bos_token": "<s>", "eos_token": "</s>"}
        self.special_ids = frozenset(self.names.values())
        self.controls = frozenset(self.names)

    def encode(self, text: str, *, add_special: bool, literals: Mapping[str, str] = MappingProxyType({})) -> list[int]:
        ids: list[int] = []
        while text:
            name = next((name for name in self.names if text.startswith(name)), None)
            ids += list(literals.get(text[0], text[0]).encode()) if name is None else [self.names[name]]
            text = text[1 if name is None else len(name) :]
        return ids

    def exceeds(self, text: str, limit: int, *, literals: Mapping[str, str] = MappingProxyType({})) -> bool:
        return len(text) > 100 * limit

    def decode(self, ids: list[int]) -> str:
        return bytes(id for id in ids if id < 256).decode(errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return bytes([id]) if id < 256 else b""

    def token_ids(self) -> dict[str, int]:
        return {chr(id): id for id in range(self.vocab_size)}

    def spelling(self, id: int) -> str:
        return next(name for name, each in self.names.items() if each == id)

    def clone(self) -> "ByteTokenizer":
        return type(self)(self.chat_template, self.bos_id)


def create_pipeline(
    decoder: FakeDecoder | None = None,
    tokenizer: ByteTokenizer | None = None,
    generation: GenerationDefaults | None = None,
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    kv_cache_tokens: int | None = 64 * BLOCK,
    prefix_cache: bool = True,
    draft: FakeDecoder | None = None,
    draft_tokenizer: ByteTokenizer | None = None,
    vision: Vision | None = None,
    **options: str | int | SamplingOptions | None,
) -> TextPipeline:
    """`draft`: the decoder of a draft model."""
    made = TextOptions(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_tokens=kv_cache_tokens,
        prefix_cache=prefix_cache,
        **options,
    )
    model = SimpleNamespace(
        decoder=decoder or FakeDecoder(),
        tokenizer=tokenizer or ByteTokenizer(),
        generation=generation or GenerationDefaults(),
        vision=vision,
    )
    draft_model = draft and SimpleNamespace(decoder=draft, tokenizer=draft_tokenizer or ByteTokenizer())
    return TextPipeline(model, made, draft_model)


def draft_freely(pipeline: TextPipeline) -> None:
    """Rows and proposals cost nothing: all that is proposed is verified."""
    pipeline._speculation._cost = StepCost(1.0, 0.0)
    if "draft" in pipeline._speculation._proposers:
        pipeline._speculation._proposers["draft"]._cost = StepCost(0.0, 0.0)


def keep_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification keeps one rejected draft in eight."""
    take = Draw.take

    def lenient(draw: Draw, choice: Choice | None) -> bool:
        ahead = draw.num_output - draw.chunk.sequence.num_output
        if choice is not None and ahead < len(draw.chunk.drafts) and draw.params.seed % 8 == 0:
            choice = Choice(draw.chunk.drafts[ahead], choice.logprobs)
        return take(draw, choice)

    monkeypatch.setattr(Draw, "take", lenient)


def request(
    prompt: str | Prompt | list[Prompt], *, n: int = 1, echo: bool = False, salt: str = "", **sampling
) -> TextRequest:
    """Greedy, of 8 tokens and without EOS, unless told otherwise."""
    prompts = prompt if isinstance(prompt, list) else [StringPrompt(prompt) if isinstance(prompt, str) else prompt]
    sampling = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | sampling
    return TextRequest(prompts=prompts, sampling=Sampling(**sampling), n=n, echo=echo, salt=salt)


def submit(pipeline: TextPipeline, id: str, asked: TextRequest, priority: str = "interactive") -> None:
    pipeline.admit(pipeline.prepare(Ticket(id, priority, received=0.0), asked))


def run(pipeline: TextPipeline, limit: int = 10_000) -> dict[str, list[Event]]:
    """Step until nothing is left; events by request. Every block has come back then."""
    events: dict[str, list[Event]] = {}
    while pipeline.busy:
        for event in pipeline.step().events:
            events.setdefault(event.id, []).append(event)
        limit -= 1
        assert limit, "the pipeline does not come to an end"
    assert pipeline.stats().gauges["kv_blocks_used"] == 0
    return events


def generate(pipeline: TextPipeline, asked: TextRequest, id: str = "r") -> list[Event]:
    submit(pipeline, id, asked)
    return run(pipeline)[id]


def choices(events: list[Event]) -> dict[int, SimpleNamespace]:
    """What a client would have of each choice: text, tokens, log-probabilities, reason; `deltas` as they came."""
    assert isinstance(events[-1], Done), events[-1]
    found: dict[int, SimpleNamespace] = {}
    for event in events[:-1]:
        choice = found.setdefault(
            event.index, SimpleNamespace(text="", tokens=0, logprobs=[], reason=None, stop=None, deltas=[])
        )
        assert choice.reason is None, "nothing follows the end of a choice"
        if hasattr(event, "reason"):
            choice.reason, choice.stop = event.reason, event.stop
        else:
            choice.text += event.text
            choice.tokens += event.tokens
            choice.logprobs += event.logprobs
            choice.deltas.append(event)
    assert all(choice.reason for choice in found.values())
    assert sum(choice.tokens for choice in found.values()) == events[-1].usage.completion_tokens
    return found


def only(events: list[Event]) -> SimpleNamespace:
    (choice,) = choices(events).values()
    return choice
