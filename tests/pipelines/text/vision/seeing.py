"""A model that sees: its rows are hashes of an image's pixels, and its output depends on all that it is given."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import ClassVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from PIL import Image

from models.decoder.batch import ForwardBatch
from models.errors import ModelLoadError
from models.vision.image import EncodedImage, PreparedImage
from models.vision.vision import PlacedImage, Vision
from pipelines.base import Ticket
from pipelines.media.pictures import decode_picture
from pipelines.messages.text import ChatPrompt, ImagePart, Message, TextPart, TextRequest
from pipelines.text.pipeline import TextPipeline
from tests.pipelines.text.fakes import HIDDEN, USER, ByteTokenizer, FakeDecoder, create_pipeline, request

IMAGE = 259
PATCH = 4  # pixels of a row, each way
TEMPLATE = (
    "{% for message in messages %}<user>{{ message.role }}:{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% elif message.role != 'tool' %}<image>{% endif %}{% endfor %}{% endif %}.{% endfor %}<user>assistant:"
)


class SeeingTokenizer(ByteTokenizer):
    vocab_size = 260
    names: ClassVar[dict[str, int]] = {**ByteTokenizer.names, "<image>": IMAGE}

    def __init__(self, chat_template: str | None = TEMPLATE, bos_id: int | None = None) -> None:
        super().__init__(chat_template, bos_id)


@dataclass(frozen=True)
class Family:
    axes: int = 1
    bidirectional: bool = False
    layers: int = 0  # of deepstack
    separated: bool = True  # a byte behind each line of rows


FAMILIES = {
    "plain": Family(),
    "several axes": Family(axes=3, layers=2, separated=False),
    "both directions": Family(bidirectional=True, separated=False),
}


@dataclass
class FakeProcessor:
    family: Family

    def prepare(self, rgb: NDArray[np.uint8], detail: str) -> PreparedImage:
        height, width = (size // PATCH for size in rgb.shape[:2])
        if height * width == 0:
            raise ValueError("it is too small")
        line = [IMAGE] * width + [ord("|")] * self.family.separated
        tokens = line * height
        rows = np.flatnonzero(np.array(tokens) == IMAGE)
        identity = blake2b(rgb.tobytes() + str((rgb.shape, detail)).encode(), digest_size=16).digest()
        inputs = {"pixel_values": rgb}
        return PreparedImage(inputs, tuple(tokens), rows, (1, height, width), identity, rgb.shape[0] * rgb.shape[1])


@dataclass
class FakeTower:
    family: Family
    batches: list[list[bytes]] = field(default_factory=list)  # identities
    broken: set[bytes] = field(default_factory=set)

    def encode(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        self.batches.append([image.identity for image in images])
        if self.broken.intersection(self.batches[-1]):
            raise RuntimeError("the tower broke")
        return [self.one(image) for image in images]

    def one(self, image: PreparedImage) -> EncodedImage:
        digest = blake2b(image.inputs["pixel_values"].tobytes(), digest_size=8).digest()
        random = np.random.default_rng(int.from_bytes(digest, "little"))
        rows = random.standard_normal((len(image.rows), HIDDEN), np.float32)
        shape = self.family.layers, *rows.shape
        return EncodedImage(rows, random.standard_normal(shape, np.float32) if self.family.layers else None)

    @property
    def encoded(self) -> int:
        return sum(map(len, self.batches))


class SeeingDecoder(FakeDecoder):
    """A cell holds a hash of the token or its embedding, what is added in later layers, the rope's positions, and all
    that the row attends to ahead of it."""

    def __init__(self, family: Family, **options) -> None:
        super().__init__(**options)
        self.family = family

    def read(self, batch: ForwardBatch) -> list[int]:
        states = [str(id).encode() for id in batch.ids.tolist()]
        for first, rows in batch.embeds:
            for offset, row in enumerate(rows):
                assert batch.ids[first + offset] == IMAGE
                states[first + offset] = row.tobytes()
        for first, stacked in batch.deepstack:
            assert len(stacked) == self.family.layers
            for offset in range(stacked.shape[1]):
                states[first + offset] += stacked[:, offset].tobytes()
        if batch.positions.ndim == 2:
            assert len(batch.positions) == self.family.axes
        positions = np.broadcast_to(batch.positions, (self.family.axes, len(states)))
        states = [state + positions[:, row].tobytes() for row, state in enumerate(states)]
        first = 0
        for segment in batch.segments:
            for begin, end in segment.spans:
                assert segment.context <= begin < end <= segment.context + segment.length
                inside = slice(first + begin - segment.context, first + end - segment.context)
                states[inside] = [state + b"".join(states[inside]) for state in states[inside]]
            first += segment.length
        return [int.from_bytes(blake2b(state, digest_size=7).digest(), "little") for state in states]


def rope_positions(ids: Sequence[int], placed: Sequence[PlacedImage]) -> tuple[NDArray[np.int64], int]:
    """As Qwen2-VL's: rows of an image spread over the axes, what follows goes on from the largest."""
    columns: list[NDArray[np.int64]] = []
    at = place = 0
    for each in placed:
        between = each.start - place
        columns.append(np.broadcast_to(np.arange(at, at + between), (3, between)))
        at, place = at + between, each.start + len(each.image.tokens)
        assert each.image.grid is not None
        columns.append(np.indices(each.image.grid).reshape(3, -1) + at)
        at += max(each.image.grid)
    rest = len(ids) - place
    columns.append(np.broadcast_to(np.arange(at, at + rest), (3, rest)))
    return np.concatenate(columns, axis=1), at + rest - len(ids)


@dataclass
class Model:
    """Of a family, with its tower at hand."""

    family: Family = FAMILIES["plain"]
    loadable: bool = True

    def __post_init__(self) -> None:
        self.tower = FakeTower(self.family)
        self.processor = FakeProcessor(self.family)
        self.decoder = SeeingDecoder(self.family, context=256)
        self.loads = 0
        several = self.family.axes > 1
        self.vision = Vision(
            family="fake",
            placeholder=IMAGE,
            bidirectional=self.family.bidirectional,
            chat_template=None,
            positions=rope_positions if several else None,
            load_processor=lambda: self.processor,
            load_tower=self.load_tower,
        )

    def load_tower(self) -> FakeTower:
        self.loads += 1
        if not self.loadable:
            raise ModelLoadError("vision.safetensors is not there")
        return self.tower

    def pipeline(self, tokenizer: ByteTokenizer | None = None, **options) -> TextPipeline:
        pipeline = create_pipeline(self.decoder, tokenizer or SeeingTokenizer(), vision=self.vision, **options)
        pipeline._preparer._images._decode = decode_picture  # in this process
        return pipeline


def picture(seed: int, width: int = 12, height: int = 8, *, changed: bool = False) -> bytes:
    """A PNG of random pixels; `changed`: one of them a little."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    if changed:
        pixels[height // 2, width // 2, 1] += 1
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def chat(*parts: str | bytes, role: str = "user", **asked) -> TextRequest:
    """Greedy, of 8 tokens: one turn of texts and pictures."""
    content = [
        TextPart(part)
        if isinstance(part, str)
        else ImagePart(part, field=f"messages[0].content[{index}].image_url.url")
        for index, part in enumerate(parts)
    ]
    return request(ChatPrompt([Message(role, content)]), **{"logprobs": 0, **asked})


def shown(asked: TextRequest) -> list[bytes]:
    (prompt,) = asked.prompts
    return [part.data for message in prompt.messages for part in message.content if isinstance(part, ImagePart)]


def submit(pipeline: TextPipeline, id: str, asked: TextRequest, *, tenant: str = "", received: float = 0.0) -> None:
    ticket = Ticket(id, "interactive", received, tenant=tenant)
    pipeline.admit(pipeline.prepare(ticket, replace(asked, salt=tenant) if tenant else asked))


__all__ = ["FAMILIES", "IMAGE", "USER", "Model", "chat", "picture", "shown", "submit"]
