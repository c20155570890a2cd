"""Each rule by itself, and many at once: what they make of a row."""

import math
from collections.abc import Sequence as Rows

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipelines.messages.grammar import Grammar
from pipelines.text.grammar.compiler import Grammars
from pipelines.text.sample.grammar import KeepsToGrammar
from pipelines.text.sample.logit_bias import LogitBias
from pipelines.text.sample.min_tokens import MinTokens
from pipelines.text.sample.penalties import Penalties
from pipelines.text.sample.rules import KINDS, Rules
from pipelines.text.sample.sampling import SamplingParams
from tests.pipelines.text.fakes import ByteTokenizer

VOCAB = 1000
PLAIN = SamplingParams(max_tokens=10)
AUTOMATON = Grammars(ByteTokenizer(), VOCAB, frozenset({257})).compile(
    Grammar("regex", "x7+[0-9\u03e7-\u03ea]*"), "grammar"
)


def rules(prompt: Rows[int] = (), output: Rows[int] = (), **settings: object) -> Rules:
    made = Rules.of(replace(PLAIN, **settings), prompt)
    for token in output:
        made.accept(token)
    return made


def applied(made: Rules, row: Rows[float]) -> list[float]:
    values = np.array(row, dtype=np.float32)
    made.apply(values)
    return values.tolist()


# --- which rules a sequence has ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({}, []),
        ({"temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 3}, []),
        ({"logprobs": 3, "stop": ("end",), "stop_ids": frozenset({3}), "eos_ids": frozenset({4})}, []),
        ({"repetition_penalty": 1.1}, [Penalties]),
        ({"presence_penalty": -0.5}, [Penalties]),
        ({"frequency_penalty": 0.5}, [Penalties]),
        ({"logit_bias": {3: 1.0}}, [LogitBias]),
        ({"min_tokens": 2}, []),  # there is nothing that could end it
        ({"min_tokens": 2, "stop_ids": frozenset({3})}, [MinTokens]),
        (
            {"min_tokens": 2, "eos_ids": frozenset({3}), "logit_bias": {3: 1.0}, "frequency_penalty": 0.5},
            [Penalties, LogitBias, MinTokens],
        ),
        ({"grammar": AUTOMATON}, [KeepsToGrammar]),
    ],
)
def test_a_sequence_has_the_rules_that_its_settings_ask_for(settings: dict[str, object], kinds: list[type]) -> None:
    made = rules(**settings)
    assert [type(rule) for rule in made] == kinds
    assert bool(made) == bool(kinds)


# --- each by itself ---------------------------------------------------------------------------------------------------


def test_penalties() -> None:
    # Token 1 was only in the prompt: repeated, but not generated.
    made = rules([1, 2], [2, 3, 3, 3], repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    assert applied(made, [1.0, 2.0, -2.0, 4.0, 0.5]) == [1.0, 1.0, -4.0 - 0.5 - 0.25, 2.0 - 0.5 - 0.75, 0.5]


@given(st.lists(st.integers(0, 40), max_size=30), st.lists(st.integers(0, 40), max_size=100))
def test_counts_are_those_of_the_whole_output(prompt: list[int], output: list[int]) -> None:
    made = rules(prompt, output, frequency_penalty=1.0)
    assert applied(made, [0.0] * 41) == [-output.count(token) for token in range(41)]


def test_logit_bias_is_added() -> None:
    assert applied(rules(logit_bias={0: 100.0, 2: -1.5}), [1.0, 2.0, 3.0]) == [101.0, 2.0, 1.5]


def test_min_tokens_bans_eos_and_stop_ids_until_there_are_so_many() -> None:
    made = rules(min_tokens=2, eos_ids=frozenset({1}), stop_ids=frozenset({2, VOCAB + 5}))
    for _ in range(2):
        assert applied(made, [0.0] * 4) == [0.0, -math.inf, -math.inf, 0.0]
        made.accept(3)
    assert not made  # from here on its rows are plain


def test_a_grammar_bans_what_it_does_not_take_next() -> None:
    made = rules(grammar=AUTOMATON, eos_ids=frozenset({257}))
    assert not made.may_end
    assert [token for token, value in enumerate(applied(made, [0.0] * VOCAB)) if value == 0] == [ord("x")]
    for token in b"x7":
        made.accept(token)
    assert made.may_end
    allowed = [token for token, value in enumerate(applied(made, [0.0] * VOCAB)) if value == 0]
    assert allowed == [*b"0123456789", 0xCF, 257]
    assert not Rules.of(replace(PLAIN, grammar=AUTOMATON), []).may_end


# --- what every rule keeps to -----------------------------------------------------------------------------------------

MANY = [
    rules(range(30), [3, 3, 40], repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25),
    rules(range(20, 25), [], repetition_penalty=0.7),
    rules([7], [7, 7, 900], presence_penalty=-1.5, logit_bias={7: 3.0, 8: -100.0}),
    rules([1, 2], range(60), frequency_penalty=2.0, min_tokens=99, eos_ids=frozenset({5})),
    rules(logit_bias={id: id / 7 for id in range(200)}),
    rules(min_tokens=3, stop_ids=frozenset({3, 4, VOCAB})),
    rules([], b"x7", grammar=AUTOMATON, eos_ids=frozenset({257})),
    rules([5] * 9, [5] * 9, repetition_penalty=1.1, min_tokens=20, stop_ids=frozenset({5}), logit_bias={5: 1.0}),
]


def test_all_kinds_are_tried() -> None:
    assert {type(rule) for made in MANY for rule in made} == set(KINDS)


@pytest.mark.parametrize("made", MANY)
def test_a_fork_goes_its_own_way_and_applying_leaves_no_trace(made: Rules) -> None:
    row = np.random.default_rng(0).standard_normal(VOCAB, np.float32)
    before = applied(made, row)
    fork = made.fork()
    assert applied(fork, row) == applied(made, row) == before
    for token in (7, 999, 7):
        fork.accept(token)
    assert applied(made, row) == before
    other = made.fork()
    for token in (7, 999, 7):
        other.accept(token)
        applied(other, row)
    assert applied(fork, row) == applied(other, row)
