"""Words become sentences, and none is lost."""

from hypothesis import example, given
from hypothesis import strategies as st

from models.whisper.model import AlignedWord, Hypothesis
from pipelines.audio.cuts import Cut
from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.stitching import segments
from pipelines.audio.vad import Span


class Letters:
    """Stands for a model: one token a word."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def words(self, *timed: tuple[str, float, float]) -> list[AlignedWord]:
        found = []
        for text, start, end in timed:
            self._texts.append(text)
            found.append(AlignedWord(text, (len(self._texts) - 1,), start, end, 0.9))
        return found

    def decode_text(self, tokens: list[int]) -> str:
        return "".join(self._texts[token] for token in tokens)

    def hypothesis(self) -> Hypothesis:
        return Hypothesis(tuple(range(len(self._texts))), "".join(self._texts), -0.1, 0.0, 0.0)


def test_words_become_sentences_and_none_is_lost() -> None:
    model = Letters()
    words = model.words(
        (" And", 0.0, 0.4), (" Mr", 0.4, 0.6), (".", 0.6, 0.6), (" John", 0.6, 1.0), (" left", 1.0, 1.4),
        (".", 1.4, 1.4), (' "', 1.4, 1.4), ("Why", 1.4, 3.9), ("?", 3.9, 3.9), (" Who", 6.0, 6.4), (" knows", 6.4, 7.5),
    )  # fmt: skip
    where = Cut((Span(0, 8 * SAMPLE_RATE),))
    speaking = [Span(0, int(1.5 * SAMPLE_RATE)), Span(int(3.5 * SAMPLE_RATE), 8 * SAMPLE_RATE)]
    found = segments(model, model.hypothesis(), words, where, speaking)  # type: ignore[arg-type]
    assert [each.text for each in found] == [" And Mr. John left.", ' "Why?', " Who knows"]
    assert "".join(each.text for each in found) == model.hypothesis().text
    assert [word.text for word in found[0].words] == ["And", "Mr.", "John", "left."]
    assert found[1].words[0].start == 3.5  # not in the silence that the alignment stretched it over


@given(st.lists(st.tuples(st.text("ab .,?¿", min_size=1, max_size=4), st.floats(0, 30), st.floats(0, 30)), max_size=25))
@example([("?", 0.0, 0.0), (" ", 0.0, 0.0), ("a", 1.0, 0.0)])
def test_times_are_ordered_and_inside_the_window(timed: list[tuple[str, float, float]]) -> None:
    model = Letters()
    words = model.words(*timed)
    where = Cut((Span(16_000, 160_000), Span(320_000, 400_000)))
    found = segments(model, model.hypothesis(), words, where, [Span(20_000, 100_000), Span(330_000, 390_000)])  # type: ignore[arg-type]
    if model.hypothesis().text.strip() and any(segment.text.strip() for segment in found):
        said = "".join(segment.text for segment in found).split()
        assert said == [word for word in "".join(text for text, _, _ in timed).split() if word in said][: len(said)]
    edge = 1.0
    for segment in found:
        assert segment.text.strip()
        for word in segment.words:
            assert edge <= word.start <= word.end <= 25.0
            edge = word.end
