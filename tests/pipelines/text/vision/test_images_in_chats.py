"""Chats that show images: whatever else runs, the output is what a plain loop over the model gives."""

import numpy as np
import pytest

from models.decoder.batch import ForwardBatch, Segment
from models.vision.vision import PlacedImage
from pipelines.base import Ticket
from pipelines.media.messages import PictureJob
from pipelines.media.pictures import decode_picture
from pipelines.messages.text import TextRequest
from tests.pipelines.text.fakes import BLOCK, TILE, USER, choices, draft_freely, generate, only, run
from tests.pipelines.text.oracle_draft import OracleDraft
from tests.pipelines.text.vision.seeing import (
    FAMILIES,
    IMAGE,
    FakeProcessor,
    FakeTower,
    Family,
    Model,
    SeeingDecoder,
    SeeingTokenizer,
    chat,
    picture,
    rope_positions,
    shown,
    submit,
)

WIDE, TALL, LARGE = picture(1, 40, 8), picture(2, 8, 28), picture(3, 24, 20)
CHATS = [
    chat("no image"),
    chat(WIDE, "one, in front"),
    chat("one ", LARGE, " in the middle"),
    chat("three ", TALL, " of ", LARGE, "different sizes", WIDE),
    chat(TALL, TALL, " the same one twice"),
    chat("text alone, of more than a tile"),
    chat("a", LARGE),
    chat("x" * 20, WIDE, "y" * 20, WIDE),
]


@pytest.fixture(params=FAMILIES)
def family(request) -> Family:
    return FAMILIES[request.param]


def tokens_of(events) -> list[int]:
    return [entry.id for entry in only(events).logprobs]


def plain_loop(family: Family, asked: TextRequest, tokens: int) -> list[int]:
    return whole_loop(family, asked, tokens)[-tokens:]


def whole_loop(family: Family, asked: TextRequest, tokens: int) -> list[int]:
    """Prompt and output: prefill, then decode one token at a time over one contiguous cache."""
    processor, tower, decoder = FakeProcessor(family), FakeTower(family), SeeingDecoder(family)
    ids = [USER, *b"user:"]
    placed: list[PlacedImage] = []
    for part in asked.prompts[0].messages[0].content:
        if hasattr(part, "text"):
            ids += part.text.encode()
        else:
            image = processor.prepare(decode_picture(PictureJob(param="", data=part.data)).rgb, part.detail)
            placed.append(PlacedImage(len(ids), image))
            ids += image.tokens
    ids += [*b".", USER, *b"assistant:"]
    length = len(ids)
    positions, delta = rope_positions(ids, placed) if family.axes > 1 else (np.arange(length), 0)
    embeds, deepstack, spans = [], [], []
    for each in placed:
        encoded = tower.one(each.image)
        for number, row in enumerate(each.image.rows):
            embeds.append((each.start + int(row), encoded.rows[number : number + 1]))
            if encoded.deepstack is not None:
                deepstack.append((each.start + int(row), encoded.deepstack[:, number : number + 1]))
        if family.bidirectional:
            spans.append((each.start, each.start + len(each.image.tokens)))
    cache, blocks = decoder.new_cache(64), range(64)
    segment = Segment(length, 0, blocks, spans)
    batch = ForwardBatch(
        "prefill", np.array(ids), positions, [segment], np.array([length - 1]), embeds=embeds, deepstack=deepstack
    )
    ids.append(int(decoder.forward(batch, cache).argmax()))
    while len(ids) < length + tokens:
        place = len(ids) - 1
        row = ForwardBatch("decode", np.array(ids[-1:]), np.array([place + delta]), [Segment(1, place, blocks)])
        ids.append(int(decoder.forward(row, cache).argmax()))
    return ids


def alone(family: Family, asked: TextRequest):
    return generate(Model(family).pipeline(), asked)


@pytest.mark.parametrize("asked", CHATS)
def test_the_engine_generates_what_a_plain_loop_does(family, asked):
    assert tokens_of(alone(family, asked)) == plain_loop(family, asked, 8)


@pytest.mark.parametrize("budget", [16, 24, 40, 400])
def test_neither_company_nor_the_token_budget_makes_a_difference(family, budget):
    pipeline = Model(family).pipeline(max_num_batched_tokens=budget)
    for number, asked in enumerate(CHATS):
        submit(pipeline, str(number), asked)
    for number, events in run(pipeline).items():
        assert tokens_of(events) == plain_loop(family, CHATS[int(number)], 8)


def test_preempted_is_not(family):
    pipeline = Model(family).pipeline(kv_cache_tokens=40 * BLOCK)
    asked = [chat(*_parts(each), max_tokens=30) for each in CHATS * 2]
    for number, each in enumerate(asked):
        submit(pipeline, str(number), each)
    together = run(pipeline)
    assert pipeline.stats().counters["preemptions"] > 3
    for number, events in together.items():
        assert tokens_of(events) == plain_loop(family, asked[int(number)], 30)


def test_without_a_cache_of_prefixes_all_is_the_same(family):
    pipeline = Model(family).pipeline(prefix_cache=False, kv_cache_tokens=40 * BLOCK)
    for number, asked in enumerate(CHATS):
        submit(pipeline, str(number), asked)
    for number, events in run(pipeline).items():
        assert tokens_of(events) == plain_loop(family, CHATS[int(number)], 8)


def test_drafts_make_no_difference(family):
    wanted = [chat("a", WIDE, "b", max_tokens=20), chat(LARGE, "c", max_tokens=20)]
    draft = OracleDraft([whole_loop(family, asked, 20) for asked in wanted], wrong=3)
    options = {"draft": draft, "draft_tokenizer": SeeingTokenizer(), "speculation": "draft"}
    pipeline = Model(family).pipeline(kv_cache_tokens=25 * BLOCK, **options)
    draft_freely(pipeline)
    for number, asked in enumerate(wanted):
        submit(pipeline, str(number), asked)
    events = run(pipeline)
    assert min(each[-1].usage.accepted_tokens for each in events.values()) > 5
    for number, asked in enumerate(wanted):
        assert tokens_of(events[str(number)]) == plain_loop(family, asked, 20)


def test_further_choices_share_the_images_and_the_prompt(family):
    model = Model(family)
    pipeline = model.pipeline()
    found = choices(generate(pipeline, chat("what is ", LARGE, "?", n=4)))
    expected = plain_loop(family, chat("what is ", LARGE, "?"), 8)
    assert [[entry.id for entry in choice.logprobs] for choice in found.values()] == [expected] * 4
    assert model.tower.encoded == 1


def test_a_prefix_that_ends_inside_an_image_is_hit(family):
    model = Model(family)
    pipeline = model.pipeline()
    first, second = chat("ab", LARGE, "c"), chat("ab", LARGE, "d" * 9)
    assert generate(pipeline, first)[-1].usage.cached_tokens == 0
    done = generate(pipeline, second)
    assert tokens_of(done) == plain_loop(family, second, 8)
    begin, length = len("<user:ab"), 30 + 5 * family.separated
    shared = begin + length
    assert shared % TILE
    # What has both directions is reused as a whole, or not at all.
    expected = begin // TILE * TILE if family.bidirectional else shared // TILE * TILE
    assert done[-1].usage.cached_tokens == expected
    assert model.tower.encoded == 1


def test_chunks_have_all_of_an_image_that_is_read_in_both_directions():
    model = Model(FAMILIES["both directions"])
    pipeline = model.pipeline(max_num_batched_tokens=16)
    model.decoder.forwards.clear()
    generate(pipeline, chat("x" * 13, LARGE, "y" * 20))
    ends = [segment.context + segment.length for batch in model.decoder.forwards for segment in batch.segments][:4]
    # <user>user: is 6 tokens, so the image takes places 19 to 48.
    assert ends == [16, 56, 72, 81]


def test_graphs_of_decode_steps_are_told_the_positions_behind_images():
    told: list[tuple[list[int], list[int]]] = []

    class Graphs:
        def run(self, ids, segments, positions):
            told.append(([segment.context for segment in segments], list(positions)))

    pipeline = Model(FAMILIES["several axes"]).pipeline()
    pipeline._runner._graphs = Graphs()
    submit(pipeline, "image", chat(LARGE, max_tokens=4))
    submit(pipeline, "text", chat("a", max_tokens=4))
    run(pipeline)
    # 30 rows of 5 by 6 take 6 positions.
    shifts = {place - position for places, positions in told for place, position in zip(places, positions, strict=True)}
    assert shifts == {0, 24}


def test_usage_counts_the_tokens_of_images():
    done = generate(Model().pipeline(), chat("a", LARGE, "b"))[-1]
    assert done.usage.prompt_tokens == len("<user:ab.<assistant:") + 30 + 5


def test_the_time_to_encode_is_told():
    timing = generate(Model().pipeline(), chat("a", LARGE))[-1].timing
    assert min(timing.encode, timing.prepare, timing.queue) > 0
    assert timing.prepare + timing.encode + timing.queue + timing.compute == pytest.approx(timing.total)
    assert generate(Model().pipeline(), chat("a"))[-1].timing.encode == 0


def test_typed_placeholders_are_text():
    asked = chat("<image>", LARGE, "<image><image>")
    (sequence, *_) = Model().pipeline().prepare(Ticket("r", "interactive", 0.0), asked)
    text = bytes(id for id in sequence.tokens if id < 256).decode()
    assert text.replace("|", "") == "user:<image><image><image>.assistant:"
    assert sequence.tokens.count(IMAGE) == 30
    assert len(shown(asked)) == 1


def _parts(asked: TextRequest) -> list[str | bytes]:
    return [getattr(part, "text", None) or part.data for part in asked.prompts[0].messages[0].content]
