"""What comes out of the loop: texts, ends, usage, counters."""

import pytest

from pipelines.base import ModelError
from pipelines.messages.frames import Done, ModelSpec
from pipelines.messages.text import ChoiceDone, Delta, TextOptions, TokenPrompt
from pipelines.text.pipeline import TextPipeline
from tests.pipelines.text.fakes import (
    EOS,
    TILE,
    VOCAB,
    FakeDecoder,
    choices,
    create_pipeline,
    generate,
    only,
    request,
    run,
    submit,
)


def bias(ids: bytes | list[int]) -> dict[int, float]:
    """Draw among these ids alone."""
    return dict.fromkeys(ids, 100.0)


LETTERS = {"logit_bias": bias(b"abc"), "temperature": 1.0, "seed": 3}


@pytest.mark.parametrize("count", [1, 5, 20])
def test_max_tokens_are_exact(count):
    events = generate(create_pipeline(), request("x", max_tokens=count))
    assert events[-1].usage.completion_tokens == count
    assert only(events).reason == "length"
    assert len(only(events).deltas) == count


def test_the_context_is_filled_to_the_last_token():
    events = generate(create_pipeline(FakeDecoder(context=40)), request("x" * 30, max_tokens=None))
    assert events[-1].usage.completion_tokens == 10
    assert only(events).reason == "length"


def test_a_prompt_as_long_as_the_context_is_scored():
    events = generate(create_pipeline(FakeDecoder(context=40)), request("x" * 40, max_tokens=0, echo=True, logprobs=0))
    assert len(only(events).logprobs) == 40


def test_eos_ends_a_text_and_counts():
    events = generate(create_pipeline(), request("x", logit_bias=bias([EOS]), ignore_eos=False, logprobs=0))
    choice = only(events)
    assert (choice.text, choice.reason, choice.stop) == ("", "stop", None)
    assert events[-1].usage.completion_tokens == 1
    assert [(entry.text, entry.raw) for entry in choice.logprobs] == [("</s>", b"")]


def test_ignored_eos_goes_on():
    choice = only(generate(create_pipeline(), request("x", logit_bias=bias([EOS]), max_tokens=5)))
    assert (choice.text, choice.tokens, choice.reason) == ("", 5, "length")


def test_a_stop_id_ends_a_text_and_is_named():
    settings = {"stop_token_ids": [ord("b")], "logprobs": 0, "max_tokens": 50, **LETTERS}
    choice = only(generate(create_pipeline(), request("x", **settings)))
    assert (choice.reason, choice.stop) == ("stop", ord("b"))
    assert "b" not in choice.text
    assert b"".join(entry.raw for entry in choice.logprobs).decode() == choice.text
    assert choice.tokens == len(choice.text) + 1


def test_min_tokens_come_before_any_stop():
    forced = {"logit_bias": {EOS: 100.0, ord("s"): 90.0, ord("a"): 50.0}, "ignore_eos": False, "max_tokens": 50}
    for minimum in (0, 1, 30):
        events = generate(create_pipeline(), request("x", stop_token_ids=[ord("s")], min_tokens=minimum, **forced))
        assert events[-1].usage.completion_tokens == minimum + 1
        assert only(events).text == "a" * minimum


def test_stop_strings_are_not_looked_for_below_min_tokens():
    text = only(generate(create_pipeline(), request("x", max_tokens=30, **LETTERS))).text
    choice = only(generate(create_pipeline(), request("x", max_tokens=30, stop=list("abc"), min_tokens=7, **LETTERS)))
    assert choice.text == text[:7]
    assert choice.tokens == 8


def test_a_stop_string_over_several_tokens():
    pipeline = create_pipeline()
    text = only(generate(pipeline, request("x", max_tokens=30, **LETTERS))).text
    stop = text[10:14]
    choice = only(generate(pipeline, request("x", max_tokens=30, stop=["zzz", stop], logprobs=0, **LETTERS)))
    assert choice.text == text[: text.index(stop)]
    assert (choice.reason, choice.stop) == ("stop", stop)
    assert choice.tokens == len(choice.text) + 4
    assert b"".join(entry.raw for entry in choice.logprobs).decode() == choice.text
    assert stop[0] not in [delta.text for delta in choice.deltas[-4:]]


def test_a_held_back_beginning_is_flushed_at_the_end():
    pipeline = create_pipeline()
    text = only(generate(pipeline, request("x", max_tokens=10, **LETTERS))).text
    choice = only(generate(pipeline, request("x", max_tokens=10, stop=[text[-2:] + "!"], logprobs=0, **LETTERS)))
    assert (choice.text, choice.reason) == (text, "length")
    assert choice.deltas[-2].text in ("", text[-3:-2])
    assert choice.deltas[-1].text.endswith(text[-2:])
    assert len(choice.logprobs) == 10


def test_an_incomplete_character_is_held_and_dropped_at_the_end():
    fox = "🦊".encode()

    class Fox(FakeDecoder):
        def logits(self, seen):
            logits = super().logits(seen)
            logits[fox[(len(seen) - 1) % 4]] = 100.0
            return logits

    events = generate(create_pipeline(Fox()), request("x", max_tokens=6, logprobs=1))
    choice = only(events)
    assert choice.text == "🦊"
    assert [delta.text for delta in choice.deltas] == ["", "", "", "🦊", "", ""]
    assert [delta.tokens for delta in choice.deltas] == [1] * 6
    assert [len(delta.logprobs) for delta in choice.deltas] == [0, 0, 0, 4, 0, 2]
    assert [entry.raw for entry in choice.logprobs] == [fox[i % 4 : i % 4 + 1] for i in range(6)]


def test_a_prompt_that_ends_inside_a_character():
    fox = "🦊".encode()
    prompt = TokenPrompt([*b"x", *fox[:2]])
    script = {3: fox[2], 4: fox[3], 5: ord("!")}

    class Fox(FakeDecoder):
        def logits(self, seen):
            logits = super().logits(seen)
            logits[script.get(len(seen), 65)] = 100.0
            return logits

    assert only(generate(create_pipeline(Fox()), request(prompt, max_tokens=3))).text == "🦊!"
    assert only(generate(create_pipeline(Fox()), request(prompt, max_tokens=3, echo=True))).text == "x🦊!"
    script.clear()
    assert only(generate(create_pipeline(Fox()), request(prompt, max_tokens=3))).text == "AAA"


def test_ids_without_a_token_have_no_text():
    choice = only(generate(create_pipeline(), request("x", logit_bias=bias([VOCAB - 1]), logprobs=1, max_tokens=2)))
    assert choice.text == ""
    assert choice.logprobs[0].id == VOCAB - 1


# --- echo -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [16, 64])
@pytest.mark.parametrize("tokens", [0, 3])
def test_echo_gives_the_prompt_with_its_logprobs(tokens, budget):
    prompt = "a prompt that is echoed, över tiles and chunks"
    pipeline = create_pipeline(max_num_batched_tokens=budget)
    generate(pipeline, request(prompt))  # cached blocks must not take the log-probabilities away
    events = generate(pipeline, request(prompt, echo=True, max_tokens=tokens, logprobs=2))
    choice = only(events)
    length = len(prompt.encode())
    assert choice.text.startswith(prompt)
    assert choice.deltas[0].text == prompt
    assert choice.tokens == tokens == events[-1].usage.completion_tokens
    assert (choice.reason, events[-1].usage.cached_tokens) == ("length", 0)
    assert [entry.id for entry in choice.logprobs[:length]] == list(prompt.encode())
    assert choice.logprobs[0].logprob is None
    assert len(choice.logprobs) == length + tokens
    assert all(entry.logprob < 0 and len(entry.top) == 2 for entry in choice.logprobs[1:])
    # Each position's entry is what the model says after what stands before it.
    for position in (1, TILE, TILE + 1, length - 1):
        shorter = TokenPrompt(list(prompt.encode())[:position])
        first = only(generate(create_pipeline(), request(shorter, max_tokens=1, logprobs=2))).logprobs[0]
        assert choice.logprobs[position].top == first.top


def test_echo_without_logprobs():
    events = generate(create_pipeline(), request("prompt", echo=True, max_tokens=0, n=2))
    assert {index: choice.text for index, choice in choices(events).items()} == {0: "prompt", 1: "prompt"}
    assert events[-1].usage.completion_tokens == 0


def test_stop_strings_are_not_looked_for_in_the_echo():
    choice = only(generate(create_pipeline(), request("abcabc", echo=True, stop=["z", "b"], max_tokens=50, **LETTERS)))
    assert choice.text.startswith("abcabc")
    assert (choice.reason, "b" in choice.text[6:]) == ("stop", False)


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_echoed_scores_survive_a_preemption(steps):
    prompt = "p" * 37
    asked = request(prompt, echo=True, logprobs=1, max_tokens=12)
    pipeline = create_pipeline(max_num_batched_tokens=16)  # three steps of prefill
    submit(pipeline, "r", asked)
    events = [event for _ in range(steps) for event in pipeline.step().events]
    pipeline._scheduler._preempt(pipeline._scheduler._running[0])
    events += run(pipeline)["r"]
    assert only(events).logprobs == only(generate(create_pipeline(), asked)).logprobs


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_every_choice_ends_once_and_the_request_after_them():
    pipeline = create_pipeline(max_num_seqs=3)
    for id in "abcd":
        submit(pipeline, id, request(f"prompt {id}", n=3, max_tokens=5))
    for events in run(pipeline).values():
        assert isinstance(events[-1], Done)
        assert sum(isinstance(event, Done) for event in events) == 1
        assert sorted(event.index for event in events if isinstance(event, ChoiceDone)) == [0, 1, 2]


def test_an_abort_frees_blocks_before_the_next_step():
    pipeline = create_pipeline()
    for id in "abc":
        submit(pipeline, id, request("x" * 20, n=2))
    pipeline.step()
    for id in ("a", "a", "unknown", "c"):
        pipeline.abort(id)
    assert {event.id for event in pipeline.step().events} == {"b"}
    pipeline.abort("b")
    assert not pipeline.busy
    assert pipeline.step().events == ()
    assert pipeline.stats().gauges["kv_blocks_used"] == 0


def test_a_step_reports_what_it_did():
    pipeline = create_pipeline()
    submit(pipeline, "a", request("x" * 10))
    reports = [pipeline.step().report]
    submit(pipeline, "b", request("y" * 5))
    reports += [pipeline.step().report, pipeline.step().report]
    assert [(r.kind, r.rows, r.tokens) for r in reports] == [("prefill", 1, 10), ("mixed", 2, 6), ("decode", 2, 2)]
    assert all(report.seconds > 0 for report in reports)


def test_timing_adds_up():
    pipeline = create_pipeline()
    done = generate(pipeline, request("x" * 10))[-1]
    timing = done.timing
    assert timing.prepare + timing.queue + timing.compute == pytest.approx(timing.total)
    assert timing.prefill + timing.decode == pytest.approx(timing.compute)
    assert min(timing.prepare, timing.queue, timing.prefill, timing.decode) > 0


def test_deltas_carry_when_their_step_ended():
    deltas = [event.at for event in generate(create_pipeline(), request("x")) if isinstance(event, Delta)]
    assert deltas == sorted(deltas)
    assert len(set(deltas)) == len(deltas)


def test_stats():
    pipeline = create_pipeline(max_num_seqs=1)
    for id in "ab":
        submit(pipeline, id, request("x" * 20))
    pipeline.step()
    stats = pipeline.stats()
    assert (stats.running, stats.waiting) == (1, 1)
    assert stats.gauges == {"kv_blocks": 64, "kv_blocks_used": 6, "kv_blocks_cached": 0}
    run(pipeline)
    stats = pipeline.stats()
    assert stats.counters == {"prefix_query_tokens": 40, "prefix_hit_tokens": 16, "preemptions": 0}
    assert (stats.running, stats.waiting, stats.gauges["kv_blocks_cached"]) == (0, 0, 4)


def test_blocks_that_do_not_come_back_are_noticed():
    pipeline = create_pipeline()
    generate(pipeline, request("x" * 20))
    pipeline._blocks.allocate(1)
    pipeline._unchecked = True
    with pytest.raises(RuntimeError, match="references"):
        pipeline.stats()


def test_ready_tells_slots_and_context():
    ready = create_pipeline(max_num_seqs=8).ready()
    assert (ready.slots, ready.context_length) == (10, 128)
    assert ready.details["kv_cache_tokens"] == "256"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_num_batched_tokens": 9, "max_num_seqs": 2}, "max_num_batched_tokens"),
        ({"kv_cache_tokens": 2}, "kv_cache_tokens"),
        ({"kv_cache_tokens": 64, "max_model_len": 100}, "kv_cache_tokens"),
        ({"max_model_len": 129}, "max_model_len"),
    ],
)
def test_options_that_can_not_hold_are_named(options, named):
    from models.decoder.loading import GenerationDefaults, LoadedModel
    from tests.pipelines.text.fakes import ByteTokenizer

    model = LoadedModel(decoder=FakeDecoder(), tokenizer=ByteTokenizer(), generation=GenerationDefaults())
    with pytest.raises(ModelError, match=named):
        TextPipeline(model, TextOptions(**options))


def test_a_model_that_is_not_there_is_a_model_error(tmp_path):
    spec = ModelSpec(name="m", kind="text", pipeline="", source=str(tmp_path / "nothing"), options=TextOptions())
    with pytest.raises(ModelError, match="nothing"):
        TextPipeline.load(spec)
