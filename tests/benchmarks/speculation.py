"""Decoding with drafts against plain decoding: where much is copied, and where nothing is.

Drafts are of what came before, or of a draft model. No small model with the embedded one's vocabulary is at hand; its
own first layers stand in for one, and they were never trained to be right: what is measured is whether drafts that are
of no use go off by themselves, not what a good draft model would gain.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from pipelines.messages.text import ProposerKind, TextOptions
from tests.benchmarks.figures import Figure, at_least, ratio
from tests.benchmarks.harness import Bench, Subject, model_file
from tests.benchmarks.processes import Service
from tests.truncated import truncate

DECODED, DRAFT, STREAMS = 192, 8, 16
LAYERS = 10  # of 30, in the draft model

_STORY = (
    "The keeper of the lighthouse counted seven ships before the storm came in from the north. He wrote their names "
    "in a green book, the way his father had done, and lit the lamp an hour early. By midnight the wind had torn the "
    "shutters from the kitchen windows, and two of the ships had turned back to the harbour. The third, a schooner "
    "called Margaret, signalled twice and then went dark. "
)
_CODE = """def total(orders, customer):
    result = 0
    for order in orders:
        if order.customer == customer and not order.cancelled:
            result += order.price * order.quantity
    return result


def average(orders, customer):
    matching = [order for order in orders if order.customer == customer and not order.cancelled]
    if not matching:
        return 0
    return total(orders, customer) / len(matching)
"""
_JSON = (
    '[{"name": "Margaret", "kind": "schooner", "length": 31, "port": "Whitby"}, '
    '{"name": "Perseverance", "kind": "barque", "length": 44, "port": "Leith"}, '
    '{"name": "Two Brothers", "kind": "cutter", "length": 18, "port": "Deal"}, '
    '{"name": "Northern Star", "kind": "brig", "length": 27, "port": "Aberdeen"}]'
)
COPIES = {
    "quotes": f"{_STORY}\n\nThe story once more, word by word:\n\n{_STORY}\n\nAnd a third time:\n\n",
    "code": f"{_CODE}\n\n# The same functions again:\n\n{_CODE}\n\n# And again, with comments:\n\n",
    "json": f"Records: {_JSON}\nThe same records: {_JSON}\nThe same records: ",
}
FREE = [
    "<|im_start|>user\nWhat is a good way to learn to cook?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nTell me a story about a fox and a river.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhy do people travel?<|im_end|>\n<|im_start|>assistant\n",
]


def compare(bench: Bench) -> Iterator[Figure]:
    engine = bench.engine()
    small = truncate(model_file(), bench.logs / "draft.gguf", LAYERS)
    drafting = bench.engine("engine-draft", TextOptions(draft=str(small)))
    tokens = bench.scaled(DECODED, 48)

    def rate(engine: Service, prompts: Sequence[str], proposer: ProposerKind, draft: int, together: bool) -> float:
        """Tokens a second behind the first ones."""
        batches = [list(prompts)] if together else [[prompt] for prompt in prompts]
        seconds = 0.0
        for batch in batches:
            stamps = engine.generate(batch, tokens, proposer=proposer, max_draft=draft)
            seconds += max(each[-1] for each in stamps) - min(each[0] for each in stamps)
        return len(prompts) * (tokens - 1) / seconds

    cases = {
        "copying": (list(COPIES.values()), False, at_least(2.0, 1.6)),
        "free chat": (FREE, False, at_least(0.95)),
        f"{STREAMS} streams": ((FREE + list(COPIES.values())) * 3, True, at_least(0.95)),
    }
    for name, (prompts, together, bounds) in cases.items():
        some = prompts[:STREAMS]
        found = bench.interleave(
            {
                "drafts": Subject(partial(rate, engine, some, "ngram", DRAFT, together), [engine]),
                "drafts of a model": Subject(partial(rate, drafting, some, "draft", DRAFT, together), [drafting]),
                "plain": Subject(partial(rate, engine, some, "ngram", 0, together), [engine]),
            }
        )
        definition = (
            f"{name}: {len(some)} prompts {'at once' if together else 'one after the other'}, {tokens} tokens each, "
            f"greedy; tokens a second behind the first, with drafts of up to {DRAFT} (of what came before; of a model "
            f"that is the first {LAYERS} layers) and without"
        )
        yield ratio(f"{name}, drafts ÷ plain", definition, found["drafts"], found["plain"], bounds)
        yield ratio(
            f"{name}, drafts of a model ÷ plain", definition, found["drafts of a model"], found["plain"], at_least(0.95)
        )
        for kind, values in found.items():
            yield Figure(f"{name}, {kind}", definition, "tokens/s", values)
