"""Properties of the text that goes out: for every text, every split and every set of stop strings."""

from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.messages.text import TokenLogprob
from pipelines.text.output.choice_text import Output
from pipelines.text.output.detokenizer import Detokenizer, Utf8Stream, incomplete_tail

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TEXTS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("aab🦊你é ")), max_size=40)
# Few letters: stop strings are met, nearly met, and begun again within themselves.
STOPPED = st.one_of(st.text("ab🦊", max_size=30), st.text("ab", max_size=30))
STOPS = st.lists(st.text("ab", min_size=1, max_size=5) | st.text("ab🦊", min_size=1, max_size=3), max_size=4)


@st.composite
def splits(draw: st.DrawFn, texts: st.SearchStrategy[str] | st.SearchStrategy[bytes]) -> list[bytes]:
    """The bytes of a text, cut anywhere; empty pieces are special tokens."""
    whole = draw(texts)
    data = whole.encode() if isinstance(whole, str) else whole
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def feed(detokenizer: Detokenizer, pieces: list[bytes]) -> list[str]:
    deltas = []
    for piece in pieces:
        deltas.append(detokenizer.feed(piece))
        if detokenizer.stop is not None:
            return deltas
    return [*deltas, detokenizer.finish()]


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first, by looking at every beginning of the text."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(splits(TEXTS))
def test_deltas_add_up_to_the_text_and_none_has_a_broken_character(pieces):
    text = b"".join(pieces).decode()
    deltas = feed(Detokenizer(), pieces)
    assert "".join(deltas) == text
    assert "".join(deltas).count(REPLACEMENT) == text.count(REPLACEMENT)


@given(splits(st.binary(max_size=40)))
@example([b"\xf0\x9f", b"A"])
@example([b"\xf0\x9f\xa6", b"\xf0\x9f\xa6\x8a"])
def test_invalid_bytes_are_replaced_as_a_whole_decode_would_and_an_incomplete_end_is_dropped(pieces):
    data = b"".join(pieces)
    data = data[: len(data) - len(incomplete_tail(data))]
    assert "".join(feed(Detokenizer(), pieces)) == data.decode(errors="replace")


@given(splits(STOPPED), STOPS)
@example([b"ab", b"ab", b"b"], ["abb"])
@example([b"aab"], ["aab", "ab"])
@example([b"aaab"], ["aab"])
@example([b"ababaab", b"abb"], ["abaabab"])
def test_stop_strings_end_the_text_wherever_they_are_split(pieces, stops):
    text, stop = first_stop(b"".join(pieces).decode(), stops)
    detokenizer = Detokenizer(stops)
    deltas = feed(detokenizer, pieces)
    assert ("".join(deltas), detokenizer.stop) == (text, stop)
    assert all(stop not in text for stop in stops)
    released = ""
    for delta in deltas:  # nothing that went out was taken back: each stage is a beginning of the whole
        released += delta
        assert text.startswith(released)


@given(splits(STOPPED), STOPS)
def test_only_what_may_become_a_stop_string_is_held_back(pieces, stops):
    detokenizer = Detokenizer(stops)
    fed, out = b"", ""
    for piece in pieces:
        fed += piece
        out += detokenizer.feed(piece)
        if detokenizer.stop is not None:
            return
        complete = fed[: len(fed) - len(incomplete_tail(fed))].decode()
        held = complete[len(out) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert detokenizer.holding == (bool(held) or bool(incomplete_tail(fed)))


def test_text_that_takes_no_part_in_stop_strings():
    detokenizer = Detokenizer(["ab"])
    assert detokenizer.feed(b"ab a", match=False) == "ab a"
    assert detokenizer.feed(b"b") == "b"  # began before
    assert detokenizer.feed(b"xab") == "x"
    assert detokenizer.stop == "ab"


@given(TEXTS, st.integers(0, 200), splits(TEXTS))
def test_a_character_that_a_prompt_began_is_completed(text, cut, pieces):
    data = text.encode()
    cut = min(cut, len(data))
    lead = incomplete_tail(data[:cut])
    stream = Utf8Stream(lead)
    out = "".join(map(stream.feed, [data[cut:], *pieces]))
    assert out == (lead + data[cut:] + b"".join(pieces)).decode()
    assert not stream.pending


@given(st.sampled_from([b"\xf0", b"\xf0\x9f", b"\xf0\x9f\xa6", b"\xe4\xbd"]), splits(TEXTS))
def test_a_character_that_is_not_completed_leaves_no_trace(lead, pieces):
    stream = Utf8Stream(lead)
    assert "".join(map(stream.feed, pieces)) == b"".join(pieces).decode()


def test_generated_bytes_that_do_not_complete_the_prompts_character_are_not_lost():
    stream = Utf8Stream(b"\xf0\x9f")
    assert stream.feed(b"\xa6") == ""
    assert stream.pending
    assert stream.feed(b"A") == REPLACEMENT + "A"


def entry(number: int, data: bytes) -> TokenLogprob:
    return TokenLogprob(number, "", -1.0, data)


@given(splits(STOPPED), STOPS)
def test_bytes_of_the_released_entries_are_those_of_the_text(pieces, stops):
    output = Output(tuple(stops))
    text, entries = "", []
    for number, piece in enumerate(pieces):
        said, own = output.push(piece, entry(number, piece), match=True)
        text += said
        entries += own
        released = b"".join(own.raw for own in entries)
        assert released.startswith(text.encode())  # no text without its entry
        if output.stop is not None:
            break
    rest, own = output.finish() if output.stop is None else ("", [])
    text, entries = text + rest, entries + own
    assert [own.id for own in entries] == list(range(len(entries)))
    if output.stop is None:
        assert len(entries) == len(pieces)
        assert b"".join(own.raw for own in entries).decode() == text
    else:  # but for the token in which both the text's end and the stop string's beginning lie
        assert b"".join(own.raw for own in entries[:-1]).decode(errors="ignore") in text
        assert b"".join(own.raw for own in entries).startswith(text.encode())
