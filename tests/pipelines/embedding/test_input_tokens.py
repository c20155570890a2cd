import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.embedder.embedder_config import EmbedderConfig
from models.errors import ModelLoadError
from models.tokenizer.borders import Borders
from pipelines.base import InvalidRequest
from pipelines.embedding.input_tokens import InputTokenizer, Limit
from pipelines.messages.embedding import Truncate
from tests.models.checkpoints import word_tokenizer

CLS, SEP, FIRST = 2, 3, 4  # ids: then the words, w0 at 4
DOCUMENTS = ["documents[0]", "documents[1]"]
CONFIG = EmbedderConfig(family="text", dimensions=4, max_tokens=8, vocab_size=204, pad_id=0, token_types=True)


def saved(folder: Path) -> Path:
    tokenizer = word_tokenizer(start="[CLS]", end="[SEP]")
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(5)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def tokenizer(tmp_path: Path) -> InputTokenizer:
    return InputTokenizer(saved(tmp_path), CONFIG)


def words(*numbers: int) -> str:
    return " ".join(f"w{number}" for number in numbers)


def test_padding_and_truncation_of_the_file_are_not_used(tokenizer: InputTokenizer) -> None:
    (short, long) = tokenizer.texts([words(7), words(0, 1, 2, 3, 4, 5)], "none", ["input[0]", "input[1]"])
    assert short.ids.tolist() == [CLS, FIRST + 7, SEP]
    assert long.ids.tolist() == [CLS, *range(FIRST, FIRST + 6), SEP]
    assert (long.count, long.truncated) == (8, False)


def test_an_over_long_text_is_named_unless_it_may_be_cut(tokenizer: InputTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="9 tokens, but the model takes 8") as refused:
        tokenizer.texts([words(1), words(*range(7))], "none", ["input[0]", "input[1]"])
    assert (refused.value.param, refused.value.code) == ("input[1]", "context_length_exceeded")


@pytest.mark.parametrize(("truncate", "kept"), [("end", range(0, 6)), ("start", range(3, 9))])
def test_the_text_is_cut_and_the_special_tokens_are_kept(
    tokenizer: InputTokenizer, truncate: Truncate, kept: range
) -> None:
    for texts in ([words(*range(9))], [words(1), words(*range(9))]):  # the same rule alone and in a list
        cut = tokenizer.texts(texts, truncate, ["input[0]", "input[1]"])[-1]
        assert cut.ids.tolist() == [CLS, *(FIRST + number for number in kept), SEP]
        assert (cut.count, cut.truncated) == (8, True)  # usage has the tokens that were read


def test_token_ids_are_used_as_they_are(tokenizer: InputTokenizer) -> None:
    assert tokenizer.ids([100, 201], "none", "input").ids.tolist() == [100, 201]
    ids = list(range(10, 20))
    assert tokenizer.ids(ids, "end", "input").ids.tolist() == ids[:8]
    assert tokenizer.ids(ids, "start", "input").ids.tolist() == ids[2:]
    with pytest.raises(InvalidRequest, match="10 tokens"):
        tokenizer.ids(ids, "none", "input")


@pytest.mark.parametrize("id", [-1, 204, 100_000])
def test_ids_of_another_tokenizer_are_named(tokenizer: InputTokenizer, id: int) -> None:
    with pytest.raises(InvalidRequest, match="0 to 203") as refused:
        tokenizer.ids([5, id], "end", "input[3]")
    assert refused.value.param == "input[3][1]"


def test_pairs_tell_their_texts_apart_and_only_documents_are_cut(tokenizer: InputTokenizer) -> None:
    (short, long) = tokenizer.pairs(words(1, 2), [words(3), words(*range(10, 20))], "end", DOCUMENTS)
    assert short.ids.tolist() == [CLS, FIRST + 1, FIRST + 2, SEP, FIRST + 3, SEP]
    assert short.types is not None
    assert short.types.tolist() == [0, 0, 0, 0, 1, 1]
    assert long.ids.tolist() == [CLS, FIRST + 1, FIRST + 2, SEP, FIRST + 10, FIRST + 11, FIRST + 12, SEP]
    assert long.types is not None
    assert long.types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert long.truncated


def test_pairs_that_do_not_fit_are_named(tokenizer: InputTokenizer) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tokenizer.pairs(words(1, 2), [words(3), words(*range(10))], "none", DOCUMENTS)
    assert refused.value.param == "documents[1]"
    assert tokenizer.pairs(words(1), [words(*range(10))], "end", DOCUMENTS, 2)[0].count == 6


@pytest.mark.parametrize("count", [5, 9])
def test_a_query_that_leaves_no_document_a_token_is_told_how_long_it_may_be(
    tokenizer: InputTokenizer, count: int
) -> None:
    """Its own tokens, beside three special ones and one of a document. No setting would cut it."""
    with pytest.raises(InvalidRequest) as refused:
        tokenizer.pairs(words(*range(count)), [words(3)], "end", DOCUMENTS)
    assert refused.value.param == "query"
    assert f"has {count} tokens, but beside a document the model takes 4; " in refused.value.message
    assert "truncate" not in refused.value.message
    assert tokenizer.pairs(words(*range(4)), [words(3, 5)], "end", DOCUMENTS)[0].count == 8


def test_documents_are_cut_to_their_own_limit(tokenizer: InputTokenizer) -> None:
    (short, cut) = tokenizer.documents([words(1), words(1, 2, 3, 4)], "end", DOCUMENTS, 2)
    assert (short.count, cut.ids.tolist()) == (3, [CLS, FIRST + 1, FIRST + 2, SEP])
    with pytest.raises(InvalidRequest, match=r"'documents\[0\]' has 5 tokens, but with 'max_tokens_per_doc' .* 4"):
        tokenizer.documents([words(1, 2, 3)], "none", DOCUMENTS, 2)
    with pytest.raises(InvalidRequest, match=r"'documents\[0\]' has 11 tokens, but the model takes 8"):
        tokenizer.documents([words(*range(9))], "none", DOCUMENTS, 100)


def test_texts_of_a_fixed_length_are_padded_and_counted_without_it(tmp_path: Path) -> None:
    config = EmbedderConfig(
        family="siglip",
        dimensions=4,
        max_tokens=8,
        vocab_size=204,
        pad_id=0,
        token_types=False,
        fixed_length=True,
        canonical=True,
    )
    (tokens,) = InputTokenizer(saved(tmp_path), config).texts(["  W1,  (w2)!\n"], "none", ["input[0]"])
    assert tokens.ids.tolist() == [CLS, FIRST + 1, FIRST + 2, SEP, 0, 0, 0, 0]
    assert tokens.count == 4


def test_a_default_prompt_comes_before_every_text(tmp_path: Path) -> None:
    config = EmbedderConfig(
        family="text", dimensions=4, max_tokens=8, vocab_size=204, pad_id=0, token_types=True, prompt="w9 "
    )
    (tokens,) = InputTokenizer(saved(tmp_path), config).texts(["w1"], "none", ["input[0]"])
    assert tokens.ids.tolist() == [CLS, FIRST + 9, FIRST + 1, SEP]


@pytest.mark.parametrize(("truncate", "kept"), [("end", range(0, 4)), ("start", range(5, 9))])
def test_a_prompt_stays_before_a_text_that_is_cut(tokenizer: InputTokenizer, truncate: Truncate, kept: range) -> None:
    prompt = words(100, 101) + " "
    (tokens,) = tokenizer.texts([words(*range(9))], truncate, ["input[0]"], prompt=prompt)
    assert tokens.ids.tolist() == [CLS, FIRST + 100, FIRST + 101, *(FIRST + number for number in kept), SEP]
    (tokens,) = tokenizer.documents([words(*range(9))], truncate, DOCUMENTS, 4, prompt=prompt)
    assert tokens.ids.tolist() == [CLS, FIRST + 100, FIRST + 101, *(FIRST + number for number in kept), SEP]


@pytest.mark.parametrize(("truncate", "kept"), [("end", range(0, 2)), ("start", range(7, 9))])
def test_a_caller_may_have_texts_cut_shorter(tokenizer: InputTokenizer, truncate: Truncate, kept: range) -> None:
    (tokens,) = tokenizer.texts([words(*range(9))], truncate, ["input[0]"], limit=Limit(4))
    assert tokens.ids.tolist() == [CLS, *(FIRST + number for number in kept), SEP]
    assert tokenizer.ids(range(10, 20), truncate, "input", limit=Limit(4)).count == 4


LONG = " ".join(f"w{number % 200}" for number in range(5_000))


@pytest.mark.parametrize("truncate", ["start", "end"])
def test_a_long_text_is_cut_as_if_all_of_it_had_been_read(
    tokenizer: InputTokenizer, truncate: Truncate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = "w1" + " \t" * 2_000 + LONG + ", " * 2_000 + "w7"  # little of its first part, or of its last one, is tokens

    def read() -> list[list[int]]:
        texts = [LONG, words(3), gaps, "-" * 10_000]
        found = tokenizer.texts(texts, truncate, [""] * 4) + tokenizer.texts(texts, truncate, [""] * 4, prompt="w9 ")
        found += tokenizer.pairs(words(1, 2), texts, truncate, [""] * 4)
        found += tokenizer.documents(texts, truncate, [""] * 4, 3)
        return [each.ids.tolist() for each in found]

    parts = read()
    monkeypatch.setattr(Borders, "known", False)
    assert read() == parts


def test_a_long_text_is_not_read_to_its_end(tokenizer: InputTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    parts = Borders.parts

    def counted(self: Borders, *arguments: Any) -> Iterator[str]:
        for part in parts(self, *arguments):
            asked.append(len(part))
            yield part

    monkeypatch.setattr(Borders, "parts", counted)
    with pytest.raises(InvalidRequest, match="more than 8 tokens, but the model takes 8"):
        tokenizer.texts([LONG], "none", ["input[0]"])
    with pytest.raises(InvalidRequest, match="'query' has more than"):
        tokenizer.pairs(LONG, [words(1)], "end", ["documents[0]"])
    tokenizer.texts([LONG], "end", ["input[0]"])
    tokenizer.pairs(words(1), [LONG] * 3, "end", [""] * 3)
    assert sum(asked) < 1_000


def test_threads_do_not_share_a_tokenizer(tokenizer: InputTokenizer) -> None:
    """A shared one raises "Already borrowed"."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                found = tokenizer.texts([words(*range(9))] * 20, "end", [f"input[{i}]" for i in range(20)])
                assert [each.count for each in found] == [8] * 20
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_folder_without_a_fast_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        InputTokenizer(tmp_path, CONFIG)
