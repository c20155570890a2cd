"""Whatever else runs, a request's output is the same: each of the engine's tricks against its plain counterpart."""

import numpy as np
import pytest

from models.decoder.batch import ForwardBatch, Segment
from pipelines.base import StepFailed
from pipelines.messages.frames import Failed
from pipelines.messages.text import TokenPrompt
from tests.pipelines.text.fakes import (
    BLOCK,
    TILE,
    FakeDecoder,
    choices,
    create_pipeline,
    generate,
    only,
    request,
    run,
    submit,
)

PROMPTS = [f"prompt {i} " + "abcdefgh" * (i % 7) for i in range(20)]


def plain_loop(prompt: list[int], tokens: int) -> list[int]:
    """Prefill, then decode one token at a time over one contiguous cache."""
    decoder = FakeDecoder()
    cache = decoder.new_cache(64)
    blocks = range(64)
    ids = list(prompt)
    kind, context = "prefill", 0
    for _ in range(tokens):
        rows = ids[context:]
        batch = ForwardBatch(
            kind,
            np.array(rows),
            np.arange(context, len(ids)),
            [Segment(len(rows), context, blocks)],
            np.array([len(rows) - 1]),
        )
        context = len(ids)
        ids.append(int(decoder.forward(batch, cache).argmax()))
        kind = "decode"
    return ids[len(prompt) :]


def tokens_of(events) -> list[int]:
    return [entry.id for entry in only(events).logprobs]


def alone(prompt: str, **sampling):
    return generate(create_pipeline(), request(prompt, **sampling))


@pytest.mark.parametrize("prompt", PROMPTS[:8])
def test_the_engine_generates_what_a_plain_loop_does(prompt):
    expected = plain_loop(list(prompt.encode()), 12)
    assert tokens_of(alone(prompt, max_tokens=12, logprobs=0)) == expected


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.8, "seed": 3, "top_p": 0.9}]
)
def test_batched_is_alone(settings):
    pipeline = create_pipeline()
    for number, prompt in enumerate(PROMPTS):
        submit(pipeline, str(number), request(prompt, logprobs=2, max_tokens=3 + number, **settings))
    together = run(pipeline)
    for number, prompt in enumerate(PROMPTS):
        single = only(alone(prompt, logprobs=2, max_tokens=3 + number, **settings))
        batched = only(together[str(number)])
        assert (batched.text, batched.logprobs, batched.reason) == (single.text, single.logprobs, single.reason)


@pytest.mark.parametrize("budget", [16, 17, 24, 40, 400])
def test_the_token_budget_makes_no_difference(budget):
    pipeline = create_pipeline(max_num_seqs=8, max_num_batched_tokens=budget)
    for number, prompt in enumerate(PROMPTS):
        submit(pipeline, str(number), request(prompt, logprobs=0))
    for number, events in run(pipeline).items():
        assert only(events).logprobs == only(alone(PROMPTS[int(number)], logprobs=0)).logprobs


def test_chunks_end_on_tiles_or_with_the_prompt_and_keep_to_the_budget():
    decoder = FakeDecoder()
    pipeline = create_pipeline(decoder, max_num_seqs=4, max_num_batched_tokens=21)
    for number, prompt in enumerate(PROMPTS):
        submit(pipeline, str(number), request(prompt))
    decoder.forwards.clear()
    lengths = {len(prompt) for prompt in PROMPTS}
    while pipeline.busy:
        report = pipeline.step().report
        assert report is not None
        assert report.tokens <= 21
    for batch in decoder.forwards:
        for segment in batch.segments:
            end = segment.context + segment.length
            assert batch.kind == "decode" or end % TILE == 0 or end in lengths


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.2, "seed": 11}])
def test_put_back_for_others_and_put_off_is_not(settings):
    """Batch sequences and further choices, while interactive requests come in every few steps."""
    pipeline = create_pipeline(max_num_seqs=8, kv_cache_tokens=256 * BLOCK)
    large = {"batch": ("batch", PROMPTS[3]), "wide": ("interactive", PROMPTS[5])}
    for id, (priority, prompt) in large.items():
        submit(pipeline, id, request(prompt, n=10, logprobs=1, max_tokens=40, **settings), priority)
    events = {id: [] for id in (*large, *map(str, range(len(PROMPTS))))}
    for number, prompt in enumerate(PROMPTS):
        submit(pipeline, str(number), request(prompt, logprobs=1, max_tokens=20, **settings))
        for _ in range(3):
            for event in pipeline.step().events:
                events[event.id].append(event)
    for id, rest in run(pipeline).items():
        events[id] += rest
    assert pipeline.stats().counters["preemptions"] > 5
    for number, prompt in enumerate(PROMPTS):
        assert only(events[str(number)]).logprobs == only(alone(prompt, logprobs=1, max_tokens=20, **settings)).logprobs
    for id, (_, prompt) in large.items():
        plain = choices(generate(create_pipeline(), request(prompt, n=10, logprobs=1, max_tokens=40, **settings)))
        assert {index: choice.logprobs for index, choice in choices(events[id]).items()} == {
            index: choice.logprobs for index, choice in plain.items()
        }


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.2, "seed": 11}, {"frequency_penalty": 0.5, "temperature": 0.7, "seed": 1}]
)
def test_preempted_is_not(settings):
    pipeline = create_pipeline(kv_cache_tokens=40 * BLOCK, max_num_seqs=8)
    for number, prompt in enumerate(PROMPTS):
        submit(pipeline, str(number), request(prompt, logprobs=1, max_tokens=40, **settings))
    together = run(pipeline)
    assert pipeline.stats().counters["preemptions"] > 5
    for number, prompt in enumerate(PROMPTS):
        assert (
            only(together[str(number)]).logprobs == only(alone(prompt, logprobs=1, max_tokens=40, **settings)).logprobs
        )


def test_a_long_replay_is_cut_and_leaves_the_others_their_row():
    decoder = FakeDecoder(context=256)
    pipeline = create_pipeline(decoder, kv_cache_tokens=256, max_num_seqs=2, max_num_batched_tokens=32)
    submit(pipeline, "a", request("a" * 9, logprobs=0, max_tokens=150))
    submit(pipeline, "b", request("b" * 9, logprobs=0, max_tokens=150))
    together = run(pipeline)
    assert pipeline.stats().counters["preemptions"] == 1
    replays = [s.length for f in decoder.forwards if f.kind == "decode" for s in f.segments if s.length > 1]
    assert sum(replays) > 100
    assert max(replays) <= 32
    for id in "ab":
        single = create_pipeline(FakeDecoder(context=256), kv_cache_tokens=256)
        assert (
            only(together[id]).logprobs == only(generate(single, request(id * 9, logprobs=0, max_tokens=150))).logprobs
        )


@pytest.mark.parametrize("length", [TILE - 1, TILE, TILE + 1, 3 * TILE, 3 * TILE + 5])
def test_a_prefix_hit_is_a_cold_prompt(length):
    prompt = ("the same prompt over and over again")[:length]
    pipeline = create_pipeline()
    cold = generate(pipeline, request(prompt, logprobs=3))
    hit = generate(pipeline, request(prompt, logprobs=3))
    assert only(cold).logprobs == only(hit).logprobs
    assert cold[-1].usage.cached_tokens == 0
    assert hit[-1].usage.cached_tokens == (length - 1) // TILE * TILE


def test_a_longer_prompt_hits_the_blocks_of_a_shorter_one():
    pipeline = create_pipeline()
    first = generate(pipeline, request("0123456789abcdef and"))
    longer = "0123456789abcdef and" + only(first).text + "then more"
    hit = generate(pipeline, request(longer, logprobs=0))
    assert hit[-1].usage.cached_tokens == 2 * TILE  # never the blocks that decode wrote
    assert only(hit).logprobs == only(alone(longer, logprobs=0)).logprobs


def test_without_a_prefix_cache_nothing_is_hit():
    pipeline = create_pipeline(prefix_cache=False)
    for _ in range(2):
        events = generate(pipeline, request("0123456789abcdef and", n=2))
        assert events[-1].usage.cached_tokens == 0
    assert pipeline.stats().counters["prefix_query_tokens"] == 0


@pytest.mark.parametrize(("one", "other"), [("alpha", "beta"), ("beta", "alpha"), ("", "beta"), ("alpha", "")])
def test_salts_keep_tenants_apart(one, other):
    pipeline = create_pipeline()
    prompt = "a secret of sixteen bytes or more"
    generate(pipeline, request(prompt, salt=one))
    assert generate(pipeline, request(prompt, salt=other))[-1].usage.cached_tokens == 0
    assert generate(pipeline, request(prompt, salt=one))[-1].usage.cached_tokens > 0
    assert generate(pipeline, request(prompt, salt=other))[-1].usage.cached_tokens > 0


def test_choices_share_their_prompts_blocks():
    pipeline = create_pipeline()
    prompt = "a prompt that three choices share"
    events = generate(pipeline, request(prompt, n=3, temperature=1.0, seed=5))
    assert pipeline.stats().counters["prefix_hit_tokens"] == 2 * (len(prompt) - 1) // TILE * TILE
    assert events[-1].usage.prompt_tokens == len(prompt)
    assert events[-1].usage.cached_tokens == 0
    texts = [choice.text for _, choice in sorted(choices(events).items())]
    assert len(set(texts)) == 3
    assert texts == [only(alone(prompt, temperature=1.0, seed=5 + k)).text for k in range(3)]


def test_choice_i_belongs_to_prompt_i_over_n():
    prompts = [TokenPrompt(list(b"first prompt")), TokenPrompt(list(b"the second"))]
    found = choices(generate(create_pipeline(), request(prompts, n=2, temperature=1.0, seed=9)))
    assert sorted(found) == [0, 1, 2, 3]
    for index, choice in found.items():
        single = alone(["first prompt", "the second"][index // 2], temperature=1.0, seed=9 + index % 2)
        assert choice.text == only(single).text


def test_a_failed_step_leaves_its_requests_as_they_were():
    decoder = FakeDecoder()
    pipeline = create_pipeline(decoder)
    for number, prompt in enumerate(PROMPTS[:5]):
        submit(pipeline, str(number), request(prompt, logprobs=0, temperature=1.0, seed=4))
    submit(pipeline, "bad", request(TokenPrompt([*b"bad", 200]), logprobs=0))
    decoder.fail_on = 200
    events = {}
    while pipeline.busy:
        try:
            results = [pipeline.step()]
        except StepFailed as failure:
            results = []
            for id in failure.request_ids:
                if id == "bad":
                    with pytest.raises(StepFailed) as alone_again:
                        pipeline.step(only=id)
                    assert alone_again.value.request_ids == ("bad",)
                    pipeline.abort(id)
                else:
                    results.append(pipeline.step(only=id))
        for result in results:
            for event in result.events:
                events.setdefault(event.id, []).append(event)
    assert sorted(events) == ["0", "1", "2", "3", "4"]
    for number in range(5):
        single = alone(PROMPTS[number], logprobs=0, temperature=1.0, seed=4)
        assert only(events[str(number)]).logprobs == only(single).logprobs
    assert pipeline.stats().gauges["kv_blocks_used"] == 0


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.0, "seed": 1}, {"logprobs": 2}, {"logprobs": 2, "echo": True}]
)
def test_logits_that_are_not_finite_fail_only_their_request(settings):
    pipeline = create_pipeline(FakeDecoder(poison=200))
    submit(pipeline, "good", request(PROMPTS[3], logprobs=0))
    submit(pipeline, "bad", request(TokenPrompt([*b"bad", 200]), n=2, **settings))
    events = run(pipeline)
    assert isinstance(events["bad"][-1], Failed)
    assert events["bad"][-1].code == "invalid_output"
    assert sum(isinstance(event, Failed) for event in events["bad"]) == 1
    assert only(events["good"]).logprobs == only(alone(PROMPTS[3], logprobs=0)).logprobs
