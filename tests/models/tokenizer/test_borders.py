"""Parts of a text have the tokens that they have in the whole."""

from itertools import pairwise

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from models.files.source import resolve
from models.tokenizer.borders import Borders, _is_border
from models.tokenizer.tokenizer import load_tokenizer

CORPUS = [
    "the old lighthouse keeper wrote down every ship that passed along the northern coast that winter",
    "São Paulo, café e étude; 12,345 km² — МОСКВА и Ёлка 東京 タワー the theory of the thing in 1999",
] * 4
GPT = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def trained(normalizer: object, pre_tokenizer: object, kind: str = "bpe") -> tokenizers.Tokenizer:
    made = {"bpe": models.BPE, "unigram": models.Unigram, "wordpiece": models.WordPiece}[kind]()
    backend = tokenizers.Tokenizer(made)
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    special = ["<unk>", "[UNK]", "<mask>"]
    trainer = {
        "bpe": trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
        "unigram": trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>"),
        "wordpiece": trainers.WordPieceTrainer(vocab_size=300, special_tokens=special),
    }[kind]
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
KNOWN = {
    "byte-level": trained(None, pre_tokenizers.ByteLevel()),
    "digits first": trained(
        None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel()])
    ),
    "GPT's expression": trained(normalizers.NFC(), pre_tokenizers.Sequence([split(GPT), BYTES])),
    "sentencepiece": trained(
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]),
        pre_tokenizers.Metaspace(),
        "unigram",
    ),
    "BERT": trained(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), "wordpiece"),
}
UNKNOWN = {
    "words are not split": trained(normalizers.Replace(" ", "▁"), None),
    "spaces are taken away": trained(normalizers.Replace(" ", ""), pre_tokenizers.WhitespaceSplit()),
    "one word": trained(None, pre_tokenizers.Metaspace(split=False)),
    "another expression": trained(None, split(r"\w+ \w+")),
    "something in front": trained(normalizers.Prepend("▁"), pre_tokenizers.WhitespaceSplit()),
}

WORDS = st.sampled_from(
    ["the", "Straße", "naïve", "e\u0301tude", "МОСКВА", "東京", "한국어", "ﬁne", "x1", "<mask>", "don't"]
)
TEXTS = st.lists(
    st.one_of(WORDS, st.text(max_size=6), st.sampled_from([" ", "  ", "\n", "\t ", " ", "\u0301", "."])), max_size=40
).map(" ".join)


def ids(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    found: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return found


SMOLLM2 = load_tokenizer(resolve("embedded:smollm2-135m-instruct"))
MINILM = tokenizers.Tokenizer.from_file(str(resolve("embedded:all-minilm-l6-v2") / "tokenizer.json"))
MINILM.no_truncation()
MINILM.no_padding()
REAL = (SMOLLM2._backend, MINILM)


def test_tokenizers_that_split_at_spaces_are_known() -> None:
    assert {name for name, backend in KNOWN.items() if not Borders(backend).known} == set()
    assert {name for name, backend in UNKNOWN.items() if Borders(backend).known} == set()
    assert all(Borders(backend).known for backend in REAL)


def test_an_added_token_that_takes_a_space_makes_a_tokenizer_unknown() -> None:
    for token in (
        tokenizers.AddedToken("New York"),
        tokenizers.AddedToken("stop", lstrip=True),
        tokenizers.AddedToken("stop", rstrip=True),
    ):
        backend = tokenizers.Tokenizer.from_str(KNOWN["byte-level"].to_str())
        backend.add_tokens([token])
        assert not Borders(backend).known


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_both_sides_of_a_border_have_the_tokens_of_the_whole(text: str) -> None:
    borders = [at for at, character in enumerate(text) if character == " " and _is_border(text, at)]
    for backend in (*KNOWN.values(), *REAL):
        whole = ids(backend, text)
        for at in borders:
            assert ids(backend, text[:at]) + ids(backend, text[at:]) == whole


def test_parts_grow_to_the_whole() -> None:
    text = " ".join(f"word{number}" for number in range(10_000))
    borders = Borders(KNOWN["byte-level"])
    for side in ("start", "end"):
        parts = list(borders.parts(text, 10, side))
        assert parts[-1] == text
        assert len(parts) > 3
        assert len(parts[0]) <= 81
        assert all(text.startswith(part) if side == "start" else text.endswith(part) for part in parts)
        assert all(8 * len(shorter) >= len(longer) for shorter, longer in pairwise(parts))


def test_a_text_without_borders_is_one_part() -> None:
    for text in ("x" * 100_000, "+ " * 50_000, ""):
        assert list(Borders(KNOWN["byte-level"]).parts(text, 10, "start")) == [text]
    assert len(list(Borders(UNKNOWN["one word"]).parts("a b " * 1_000, 10, "end"))) == 1


def test_what_has_too_many_tokens_is_seen_early() -> None:
    tokenizer = load_tokenizer(resolve("embedded:smollm2-135m-instruct"))
    read: list[int] = []
    encode = tokenizer.encode

    def counted(text: str, **options: bool) -> list[int]:
        read.append(len(text))
        return encode(text, **options)

    tokenizer.encode = counted  # type: ignore[method-assign]
    words = " ".join(["lighthouse"] * 200_000)
    assert tokenizer.exceeds(words, 100)
    assert sum(read) < 10_000
    read.clear()
    assert tokenizer.exceeds("x" * 10_000_000, 100)  # no borders, but tokens are not that long
    assert read == []
    assert not tokenizer.exceeds(words[:600], 100)
    assert not tokenizer.exceeds("", 0)


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="ab 1é\n", max_size=600), st.integers(1, 60))
def test_what_is_said_to_have_too_many_tokens_has(text: str, limit: int) -> None:
    tokenizer = SMOLLM2
    if tokenizer.exceeds(text, limit):
        assert len(tokenizer.encode(text, add_special=False)) > limit
