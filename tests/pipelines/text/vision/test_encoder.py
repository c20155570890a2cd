"""Steps that encode images: which, how often, in whose turn, and for how long they are kept."""

import random

import pytest

from pipelines.base import ModelError, StepFailed, Ticket
from pipelines.messages.frames import Done, Failed
from pipelines.text.vision import encoder as encoder_module
from tests.pipelines.text.fakes import choices, create_pipeline, generate, only, request, run
from tests.pipelines.text.vision.seeing import FAMILIES, Model, chat, picture, submit

LARGE = picture(3, 24, 24)  # 36 rows of 16 bytes
LARGE_BYTES = 36 * 16


def step_kinds(pipeline) -> list[str]:
    kinds = []
    while pipeline.busy:
        report = pipeline.step().report
        if report is not None:
            kinds.append(report.kind)
    return kinds


def test_the_tower_is_loaded_at_the_first_image():
    model = Model()
    pipeline = model.pipeline()
    generate(pipeline, request("text"))
    assert model.loads == 0
    generate(pipeline, chat(LARGE))
    generate(pipeline, chat(picture(4)))
    assert model.loads == 1


def test_or_at_start_with_all_else_that_an_image_needs():
    model = Model()
    pipeline = model.pipeline(preload_vision=True)
    assert model.loads == 1
    assert pipeline._preparer._images._processor is model.processor
    with pytest.raises(ModelError, match="safetensors is not there"):
        Model(loadable=False).pipeline(preload_vision=True)
    with pytest.raises(ModelError, match="preload_vision"):
        create_pipeline(preload_vision=True)


def test_an_image_is_encoded_once_however_many_show_it_at_a_time():
    model = Model()
    pipeline = model.pipeline(prefix_cache=False)
    for number in range(4):
        submit(pipeline, str(number), chat(f"{number}", LARGE, LARGE, n=2))
    run(pipeline)
    assert model.tower.encoded == 1
    stats = pipeline.stats()
    assert (stats.counters["encoder_cache_queries"], stats.counters["encoder_cache_hits"]) == (4, 3)
    assert stats.gauges["encoder_cache_bytes"] == LARGE_BYTES


def test_and_not_again_while_it_is_kept():
    model = Model()
    pipeline = model.pipeline(prefix_cache=False)
    first = generate(pipeline, chat("a", LARGE))
    second = generate(pipeline, chat("a", LARGE))
    assert model.tower.encoded == 1
    assert only(first).text == only(second).text


def test_tenants_never_share():
    model = Model()
    pipeline = model.pipeline()
    submit(pipeline, "a", chat("a", LARGE), tenant="a")
    submit(pipeline, "b", chat("a", LARGE), tenant="b")
    together = run(pipeline)
    submit(pipeline, "c", chat("a", LARGE), tenant="c")
    after = run(pipeline)
    assert model.tower.encoded == 3
    assert pipeline.stats().counters["encoder_cache_hits"] == 0
    assert [events[-1].usage.cached_tokens for events in (together | after).values()] == [0, 0, 0]


def test_one_changed_pixel_never_hits():
    model = Model()
    pipeline = model.pipeline()
    generate(pipeline, chat("ab", LARGE))
    done = generate(pipeline, chat("ab", picture(3, 24, 24, changed=True)))
    assert model.tower.encoded == 2
    assert done[-1].usage.cached_tokens == 8 * (len("<user:ab") // 8)


def test_as_many_are_kept_as_there_are_bytes_for():
    model = Model()
    pipeline = model.pipeline(prefix_cache=False, encoder_cache_bytes=2 * LARGE_BYTES + 1)
    pictures = [picture(number, 24, 24) for number in range(4)]
    for each in pictures:
        generate(pipeline, chat(each))
        assert pipeline.stats().gauges["encoder_cache_bytes"] <= 2 * LARGE_BYTES
    assert model.tower.encoded == 4
    for number in (3, 2, 3):  # these are there
        generate(pipeline, chat(pictures[number]))
    assert model.tower.encoded == 4
    generate(pipeline, chat(pictures[0]))  # the longest unused goes for it
    generate(pipeline, chat(pictures[3]))
    assert model.tower.encoded == 5
    generate(pipeline, chat(pictures[2]))
    assert model.tower.encoded == 6


def test_what_is_needed_is_never_dropped_and_others_wait_for_its_room():
    model = Model(FAMILIES["plain"])
    pipeline = model.pipeline(prefix_cache=False, encoder_cache_bytes=2 * LARGE_BYTES, kv_cache_tokens=160)
    for number in range(6):
        submit(pipeline, str(number), chat(f"{number}", picture(number, 24, 24), max_tokens=40))
    events: dict[str, list] = {}
    while pipeline.busy:
        for event in pipeline.step().events:
            events.setdefault(event.id, []).append(event)
        assert pipeline.stats().gauges["encoder_cache_bytes"] <= 2 * LARGE_BYTES
    assert pipeline.stats().counters["preemptions"] > 0
    assert model.tower.encoded == 6  # those that were put back had theirs still
    for number in range(6):
        alone = generate(Model().pipeline(), chat(f"{number}", picture(number, 24, 24), max_tokens=40))
        assert only(events[str(number)]).text == only(alone).text


def test_what_is_larger_than_the_cache_goes_alone():
    pipeline = Model().pipeline(encoder_cache_bytes=LARGE_BYTES // 2)
    for number in range(3):
        submit(pipeline, str(number), chat(picture(number, 24, 24)))
    assert all(isinstance(events[-1], Done) for events in run(pipeline).values())
    pipeline.stats()
    assert pipeline.stats().gauges["encoder_cache_bytes"] == 0


def test_running_sequences_wait_for_one_batch_at_a_time():
    pipeline = Model().pipeline(max_encoder_pixels=1)
    submit(pipeline, "text", request("a", max_tokens=20))
    pipeline.step()
    for number in range(3):
        submit(pipeline, str(number), chat(picture(number, 24, 24), picture(10 + number), max_tokens=1))
    kinds = step_kinds(pipeline)
    assert kinds.count("encode") == 6
    assert "encode encode" not in " ".join(kinds)


def test_a_step_has_no_more_pixels_than_allowed_or_one_image():
    model = Model()
    pipeline = model.pipeline(max_encoder_pixels=3 * 12 * 8)
    submit(pipeline, "r", chat(LARGE, *(picture(number) for number in range(7))))
    run(pipeline)
    assert [len(batch) for batch in model.tower.batches] == [1, 3, 3, 1]


def test_images_of_several_requests_are_encoded_together():
    model = Model()
    pipeline = model.pipeline(max_encoder_pixels=10**6)
    for number in range(4):
        submit(pipeline, str(number), chat(picture(number)))
    report = pipeline.step().report
    assert (report.kind, report.rows, report.tokens) == ("encode", 4, 4 * (6 + 2))
    run(pipeline)
    assert len(model.tower.batches) == 1


def test_steps_take_as_long_as_they_should(monkeypatch):
    clock = iter(range(1000))
    model = Model()
    pipeline = model.pipeline()
    monkeypatch.setattr(encoder_module, "monotonic", lambda: next(clock) * 0.05)  # each step takes so long
    submit(pipeline, "r", chat(*(picture(number) for number in range(8))))
    while pipeline.busy:
        pipeline.step()
    # The first is one image; then 0.1 s have room for two of them, as far as is known.
    assert [len(batch) for batch in model.tower.batches][:2] == [1, 2]


def test_tenants_take_turns():
    model = Model()
    pipeline = model.pipeline(max_encoder_pixels=1)
    order = []
    encode = model.tower.encode
    model.tower.encode = lambda images: order.append(images[0].pixels) or encode(images)
    for number in range(4):
        submit(pipeline, f"a{number}", chat(picture(number, 8, 8)), tenant="a")
    submit(pipeline, "b", chat(picture(9, 12, 8)), tenant="b", received=1.0)
    run(pipeline)
    assert order.index(12 * 8) == 1


def test_what_lacks_little_passes_what_lacks_much_for_a_while():
    model = Model()
    pipeline = model.pipeline(max_encoder_pixels=1)
    submit(pipeline, "many", chat(*(picture(number, 8, 8) for number in range(6))))
    submit(pipeline, "one", chat(picture(9, 12, 8)), received=1.0)
    submit(pipeline, "late", chat(picture(9, 12, 12)), received=5.0)
    order = []
    encode = model.tower.encode
    model.tower.encode = lambda images: order.append(images[0].pixels) or encode(images)
    run(pipeline)
    assert order == [12 * 8, *[8 * 8] * 6, 12 * 12]


def test_aborted_while_it_waits_and_while_it_runs():
    model = Model()
    pipeline = model.pipeline(max_encoder_pixels=1)
    submit(pipeline, "a", chat(picture(1), picture(2)))
    submit(pipeline, "b", chat(picture(2), picture(3)))
    pipeline.step()
    pipeline.abort("a")
    pipeline.abort("a")
    pipeline.step()
    events = run(pipeline)
    assert list(events) == ["b"]
    submit(pipeline, "c", chat(picture(4)))
    while pipeline.stats().running == 0:
        pipeline.step()
    pipeline.abort("c")
    assert not pipeline.busy
    pipeline.stats()  # verifies that nobody holds an image


def test_an_image_that_breaks_the_tower_fails_those_that_show_it():
    model = Model()
    pipeline = model.pipeline(max_encoder_pixels=10**6)
    bad = picture(1)
    submit(pipeline, "bad", chat(picture(2), bad))
    submit(pipeline, "good", chat(picture(3)))
    submit(pipeline, "text", request("a"))
    (sequence, *_) = pipeline.prepare(Ticket("x", "interactive", 0.0), chat(bad))
    model.tower.broken = {sequence.images.keys[0].identity}
    with pytest.raises(StepFailed) as failure:
        pipeline.step()
    assert set(failure.value.request_ids) == {"bad", "good"}
    with pytest.raises(StepFailed) as failure:
        pipeline.step(only="bad")
    assert failure.value.request_ids == ("bad",)
    pipeline.abort("bad")
    assert pipeline.step(only="good").report.kind == "encode"
    assert sorted(run(pipeline)) == ["good", "text"]


def test_a_tower_that_can_not_be_loaded_fails_who_shows_images():
    model = Model(loadable=False)
    pipeline = model.pipeline()
    for id in "ab":
        submit(pipeline, id, chat(picture(1)))
    submit(pipeline, "text", request("a"))
    events = run(pipeline)
    for id in "ab":
        (failed,) = events[id]
        assert isinstance(failed, Failed)
        assert failed.code == "model_unavailable"
        assert "can't be loaded" in failed.message
    assert isinstance(events["text"][-1], Done)
    assert generate(pipeline, chat(picture(1)))[-1].code == "model_unavailable"
    assert model.loads == 1


def test_eight_chats_with_images_beside_eight_of_text():
    model = Model(FAMILIES["several axes"])
    pipeline = model.pipeline(max_num_seqs=16, kv_cache_tokens=100 * 4)
    asked = {f"image {number}": chat(f"{number} ", picture(number % 5, 24, 16)) for number in range(8)}
    asked |= {f"text {number}": chat(f"text {number}") for number in range(8)}
    for id, each in asked.items():
        submit(pipeline, id, each)
    together = run(pipeline)
    assert model.tower.encoded == 5
    for id, each in asked.items():
        assert only(together[id]).text == only(generate(Model(model.family).pipeline(), each)).text


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_comes_and_goes_all_that_ends_is_as_if_it_were_alone(family):
    """Requests of three tenants over a few pictures, with little room for anything; now and then one is given up."""
    rng = random.Random(7)
    pictures = [picture(number, 8 + 4 * number, 12) for number in range(5)]

    def asked(number: int):
        own = random.Random(number)
        parts = [own.choice(pictures) if own.random() < 0.5 else "text" * own.randint(1, 4) for _ in range(4)]
        return chat("r", *parts, n=own.choice((1, 1, 2)), max_tokens=own.randint(1, 25))

    model = Model(FAMILIES[family])
    pipeline = model.pipeline(encoder_cache_bytes=60 * 16, max_encoder_pixels=300, kv_cache_tokens=160, max_num_seqs=4)
    events: dict[str, list] = {}
    gone: set[str] = set()

    def step() -> None:
        running = pipeline._scheduler._running
        if len(running) > 1 and rng.random() < 0.1:
            pipeline._scheduler._preempt(running[-1])
        for event in pipeline.step().events:
            events.setdefault(event.id, []).append(event)

    for number in range(30):
        submit(pipeline, str(number), asked(number), tenant=rng.choice("abc"), received=float(number))
        for _ in range(rng.randint(0, 12)):
            step()
        if rng.random() < 0.2:
            id = str(rng.randrange(number + 1))
            if not isinstance(events.get(id, [None])[-1], Done):
                gone.add(id)
            pipeline.abort(id)
    while pipeline.busy:
        step()
    counters = pipeline.stats().counters  # verifies that nobody holds anything
    assert min(len(gone), counters["preemptions"], counters["encoder_cache_hits"]) > 2
    for number in range(30):
        if str(number) not in gone:
            alone = choices(generate(Model(model.family).pipeline(), asked(number)))
            assert {i: each.text for i, each in choices(events[str(number)]).items()} == {
                i: each.text for i, each in alone.items()
            }
