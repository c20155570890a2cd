"""What is refused by its length alone would have had too many tokens."""

from math import inf

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from models.tokenizer.tokenizer import Tokenizer
from models.tokenizer.tokenizer_gguf import build_tokenizer, describe_tokenizer
from tests.models.tokenizer.test_tokenizer import SENTENCEPIECE

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["a", "b", "▁", "ab", "▁▁", "▁▁▁▁", "▁ab", "é"]
MERGES = [("a", "b"), ("▁", "▁"), ("▁▁", "▁▁"), ("▁", "ab")]
LLAMA = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
GEMMA = pre_tokenizers.Split(" ", "merged_with_previous")
ONE_WORD = pre_tokenizers.Metaspace(split=False)


def sentencepiece(
    normalizer: object = None,
    pre_tokenizer: object = None,
    added: tuple[AddedToken, ...] = (),
    pieces: list[str] = [*BYTES, *PIECES],  # noqa: B006 (never changed)
    **options: object,
) -> tokenizers.Tokenizer:
    vocab = {piece: id for id, piece in enumerate(["<unk>", *pieces])}
    made = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **options}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=MERGES, **made))
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    backend.add_tokens(list(added))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def byte_level(lacking: str = "", pre_tokenizer: object = None, added: tuple[AddedToken, ...] = ()) -> object:
    alphabet = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter not in lacking]
    vocab = {piece: id for id, piece in enumerate([*alphabet, "ab"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(list(added))
    return backend


def tokenizer(backend: object) -> Tokenizer:
    return Tokenizer(backend, eos_ids=frozenset(), bos_id=None, chat_template=None, special_tokens={})


BOUNDED = {
    "of a GGUF file": build_tokenizer(describe_tokenizer(SENTENCEPIECE)),
    "of Llama 2": sentencepiece(LLAMA),
    "of Mistral": sentencepiece(None, ONE_WORD, (AddedToken("[INST]", special=True),)),
    "of Gemma": sentencepiece(normalizers.Replace(" ", "▁"), GEMMA),
    "normalised added tokens": sentencepiece(LLAMA, None, (AddedToken("a b é a b é", normalized=True),)),
    "byte-level": byte_level(added=(AddedToken("a longer"),)),
    "a byte-level one that lacks letters": byte_level(lacking="\u0104\u0105x"),  # a stands for byte 4, and 5
}
UNBOUNDED = {
    "blanks left of a token": sentencepiece(LLAMA, None, (AddedToken("<m>", lstrip=True, normalized=False),)),
    "blanks right of a token": byte_level(added=(AddedToken("<m>", rstrip=True),)),
    "unknown characters are fused": sentencepiece(LLAMA, byte_fallback=False),
    "bytes are missing": sentencepiece(LLAMA, pieces=[*BYTES[1:], *PIECES]),
    "the normaliser drops": sentencepiece(normalizers.Strip()),
    "the normaliser joins": sentencepiece(normalizers.Replace(tokenizers.Regex(" +"), "▁")),
    "the splitter drops": sentencepiece(None, pre_tokenizers.Split(" ", "removed")),
    "byte-level, and the splitter drops": byte_level(
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])
    ),
    "byte-level without the bytes in characters": byte_level(lacking="Ģ"),
}
TOKENIZERS = {name: tokenizer(backend) for name, backend in {**BOUNDED, **UNBOUNDED}.items()}


@pytest.mark.parametrize("name", BOUNDED)
def test_tokens_have_a_length_where_no_character_gets_lost(name: str) -> None:
    assert TOKENIZERS[name]._lengths.longest < 20


@pytest.mark.parametrize("name", UNBOUNDED)
def test_they_have_none_where_any_number_may_become_one_or_none(name: str) -> None:
    assert TOKENIZERS[name]._lengths.longest == inf


def test_a_long_prompt_of_one_word_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode", None)
    for name in BOUNDED:
        assert TOKENIZERS[name].exceeds("ab " * 100_000, 1000)


PARTS = [
    "ab",
    " ",
    "        ",
    "▁",
    "é",
    "€",
    "🎉",
    "x",
    "\x04",
    "\x05",
    "[INST]",
    "a b é a b é",
    "<m>",
    "a longer",
]
TEXTS = st.lists(st.tuples(st.sampled_from(PARTS), st.integers(1, 30)), max_size=12).map(
    lambda parts: "".join(part * count for part, count in parts)
)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(0, 40))
def test_what_fits_is_never_refused(text: str, limit: int) -> None:
    for name, each in TOKENIZERS.items():
        if each.exceeds(text, limit):
            assert len(each.encode(text, add_special=False)) > limit, name
