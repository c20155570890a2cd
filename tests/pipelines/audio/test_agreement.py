"""Words are committed that two runs agree on."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.audio.agreement import Agreement


def spoken(text: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(f" {word}", (hash(word) % 1000,)) for word in text.split()]


def test_words_two_runs_agree_on_are_committed_but_for_the_last() -> None:
    agreement = Agreement()
    assert agreement.update(spoken("and mister"), 1)[0] == []
    fresh, rest = agreement.update(spoken("And Mister, John Dash"), 2)
    assert (fresh, rest) == (spoken("And"), spoken("Mister, John Dash"))
    fresh, rest = agreement.update(spoken("Mister John Dashwood had then"), 3)
    assert fresh == spoken("Mister John")
    assert agreement.until == 2  # what was committed had been heard by then
    assert agreement.tokens == tuple(t for _, tokens in spoken("And Mister John") for t in tokens)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), max_size=8))
def test_committed_words_never_change(runs: list[list[str]]) -> None:
    agreement = Agreement()
    before: list[object] = []
    for position, run in enumerate(runs):
        agreement.update(spoken(" ".join(run)), position)
        assert agreement.committed[: len(before)] == before
        before = list(agreement.committed)
