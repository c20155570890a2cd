"""Ids are transformers' own; every token's bytes add up to the text."""

import random
import string
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from models.errors import ModelLoadError
from models.files.gguf import GGUFFile
from models.tokenizer.tokenizer import Tokenizer, from_gguf, load_tokenizer
from models.tokenizer.tokenizer_gguf import build_tokenizer, describe_tokenizer
from tests.models.conftest import write_gguf

ALPHABETS = (
    string.ascii_letters + " ",
    string.printable,
    string.digits + " .,-/",
    "éüñçßøåÆŒ ",
    "中文字符测试，。",
    "こんにちは世界",
    "🎉😀👨\u200d👩\u200d👧🇩🇪",
    "\n\t  \r ",
    "مرحبا بالعالم",
    "Привет мир ",
    "한국어 텍스트",
    "ﬁﬀ½²①Ⅷ ",
    "a\u0301e\u0308 ",
)
CASES = (
    "",
    "Don't I'll we'VE",
    "price 12345.67, 2024-01-01",
    "  leading",
    "trailing  ",
    "\t\tif x:\n        return 1\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|><|im_end|",
)


def texts(count: int) -> list[str]:
    chance = random.Random(0)

    def text() -> str:
        return "".join(
            "".join(chance.choices(chance.choice(ALPHABETS), k=chance.randrange(1, 8)))
            for _ in range(chance.randrange(1, 20))
        )

    return [*CASES, *(text() for _ in range(count - len(CASES)))]


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Any:
    """transformers' own conversion of the same metadata, cut digit by digit as this model's tokenizer.json says."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

    metadata = GGUFFile(smollm2).metadata
    names = GGUF_TOKENIZER_MAPPING["tokenizer"]
    stored = {name: metadata[f"tokenizer.{key}"] for key, name in names.items() if f"tokenizer.{key}" in metadata}
    backend, _ = convert_gguf_tokenizer("llama", stored)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return backend


@pytest.mark.requires_weights
def test_ids_are_those_of_transformers(smollm2_tokenizer: Tokenizer, reference: Any) -> None:
    for text in texts(1000):
        assert smollm2_tokenizer.encode(text, add_special=True) == reference.encode(text).ids, text


@pytest.mark.requires_weights
def test_what_the_file_says_about_its_tokens(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.vocab_size == 49152
    assert smollm2_tokenizer.eos_ids == {2}
    assert smollm2_tokenizer.bos_id == 1
    assert {0, 1, 2} <= smollm2_tokenizer.special_ids
    assert smollm2_tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert smollm2_tokenizer.chat_template is not None
    assert "<|im_start|>" in smollm2_tokenizer.chat_template


@pytest.mark.requires_weights
def test_token_bytes_add_up_to_the_text(smollm2_tokenizer: Tokenizer) -> None:
    for text in texts(200):
        ids = smollm2_tokenizer.encode(text, add_special=False)
        plain = text.replace("<|im_start|>", "").replace("<|im_end|>", "")
        assert b"".join(map(smollm2_tokenizer.token_bytes, ids)).decode() == plain
        assert smollm2_tokenizer.decode(ids) == plain


@pytest.mark.requires_weights
def test_a_clone_is_the_same_tokenizer_with_its_own_state(smollm2_tokenizer: Tokenizer) -> None:
    clone = smollm2_tokenizer.clone()
    assert clone._backend is not smollm2_tokenizer._backend
    for text in texts(50):
        assert clone.encode(text, add_special=True) == smollm2_tokenizer.encode(text, add_special=True)
    assert clone.special_ids == smollm2_tokenizer.special_ids
    assert clone.chat_template == smollm2_tokenizer.chat_template


# A sentencepiece vocabulary in small: controls, bytes, then pieces with their scores.
PIECES = ["h", "e", "l", "o", "▁", "he", "ll", "hell", "hello", "▁hello", "▁h"]
SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES],
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}


def test_sentencepiece_vocabularies_merge_by_score_and_fall_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = from_gguf(GGUFFile(write_gguf(tmp_path / "m.gguf", metadata=SENTENCEPIECE)))
    tokens = SENTENCEPIECE["tokenizer.ggml.tokens"]

    def spelled(text: str) -> list[str]:
        return [tokens[id] for id in tokenizer.encode(text, add_special=True)]

    assert spelled("hello") == ["<s>", "▁hello"]
    assert spelled("hello hello") == ["<s>", "▁hello", "▁hello"]
    assert spelled("hé") == ["<s>", "▁h", "<0xC3>", "<0xA9>"]
    assert spelled("</s>o") == ["<s>", "</s>", "o"]
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("hé o", add_special=True))) == " hé o".encode()
    assert tokenizer.decode(tokenizer.encode("hé o", add_special=True)) == "hé o"


def test_a_file_says_whether_a_bos_is_added(tmp_path: Path) -> None:
    metadata = {**SENTENCEPIECE, "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    tokenizer = from_gguf(GGUFFile(write_gguf(tmp_path / "m.gguf", metadata=metadata)))
    assert tokenizer.encode("hello", add_special=True)[-1] == 2
    assert 1 not in tokenizer.encode("hello", add_special=True)
    assert tokenizer.encode("hello", add_special=False) == tokenizer.encode("hello", add_special=True)[:-1]


BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
}


@pytest.mark.parametrize("id", [300, 2**32 - 1, -1])
def test_ids_that_nothing_is_made_with_may_be_no_token_s(id: int, caplog: pytest.LogCaptureFixture) -> None:
    for metadata, unused in ((SENTENCEPIECE, ["padding"]), (BYTE_LEVEL, ["unknown", "padding"])):
        caplog.clear()
        named = {f"tokenizer.ggml.{name}_token_id": id for name in unused}
        described = describe_tokenizer({**metadata, **named})
        assert described.ids == describe_tokenizer(metadata).ids
        assert [record.args and record.args[0] for record in caplog.records] == list(named)  # type: ignore[index]
        for name in {"bos", "eos", "eot", "eom", "unknown"} - set(unused):
            with pytest.raises(ModelLoadError, match=f"{name}_token_id is {id}"):
                describe_tokenizer({**metadata, f"tokenizer.ggml.{name}_token_id": id})


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"tokenizer.ggml.model": "t5"}, "t5"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "tekken"}, "tekken"),
    ],
)
def test_tokenizers_that_are_not_supported_are_named(metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{named}.*upstream"):
        build_tokenizer(describe_tokenizer({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": [], **metadata}))


def byte_level_folder(folder: Path) -> Path:
    alphabet = {char: id for id, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    backend.add_tokens([AddedToken("<tool é>", special=False)])
    backend.enable_truncation(4)
    backend.save(str(folder / "tokenizer.json"))
    config = '{"eos_token": {"content": "<eos>"}, "chat_template": [{"name": "default", "template": "T"}]}'
    (folder / "tokenizer_config.json").write_text(config)
    return folder


def test_a_folder_brings_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_level_folder(tmp_path))
    assert tokenizer.special_ids == {256}
    assert tokenizer.eos_ids == {256}
    assert tokenizer.special_tokens == {"eos_token": "<eos>"}
    assert tokenizer.chat_template == "T"
    assert len(tokenizer.encode("longer than four", add_special=True)) == 16
    assert tokenizer.token_bytes(256) == b""
    assert tokenizer.token_bytes(257) == "<tool é>".encode()
    (tmp_path / "chat_template.jinja").write_text("U")
    assert load_tokenizer(tmp_path).chat_template == "U"


def test_a_folder_without_a_readable_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="can't be read"):
        load_tokenizer(tmp_path)
