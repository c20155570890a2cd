"""Control tokens that users type are text, wherever they type them and whatever a template does with it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from models.errors import SourceError
from models.files.gguf import GGUFFile
from models.files.source import resolve
from models.tokenizer.tokenizer import Tokenizer, from_gguf, load_tokenizer
from models.tokenizer.tokenizer_gguf import build_tokenizer, describe_tokenizer
from pipelines.base import InvalidRequest
from pipelines.messages.text import FunctionCall, Message, TextPart, ToolCall
from pipelines.text.prompt.chat_template import ChatTemplate
from tests.models.conftest import SMOLLM2, write_gguf
from tests.models.tokenizer.test_tokenizer import SENTENCEPIECE, texts

# Templates in the manner of three families: they trim, slice, split, test and dump what they are given.
LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "parameters": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}' }}
        {%- endfor %}
        {{- '<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
        {{- message.content | tojson(ensure_ascii=True) }}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

QWEN = """{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content %}
    {%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if message.role == 'tool' %}
    {{- '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>' + message.role + '\n' + content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\n<tool_call>\n{"name": "' + call.function.name }}
        {{- '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""

MISTRAL = """{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
    {{- '[INST] ' + message.content.strip()[:500] + ' [/INST]' }}
{%- elif message.tool_calls %}
    {{- '[TOOL_CALLS] [' }}
    {%- for call in message.tool_calls %}
        {{- call.function | tojson }}
    {%- endfor %}
    {{- ']' + eos_token }}
{%- elif message.role == 'tool' %}
    {{- '[TOOL_RESULTS] {"content": ' + message.content | string | tojson }}
    {{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}
    {{- ' ' + (message.name or '') + message.content + eos_token }}
{%- endif %}
{%- endfor %}"""

LLAMA_WORDS = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"


def byte_level(folder: Path, special: list[str], text: Sequence[str] = (), pattern: str | None = None) -> Tokenizer:
    """`text`: added tokens that are no control tokens."""
    alphabet = {char: id for id, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("i", "m"), ("<", "|"), ("|", ">"), ("e", "n"), ("en", "d"), ("Ġ", "<|"), ("I", "N")]
    vocab = {**alphabet, **{a + b: len(alphabet) + n for n, (a, b) in enumerate(merges)}}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=pattern is not None))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        words = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), words])
    backend.pre_tokenizer = words
    backend.decoder = decoders.ByteLevel()
    return saved(backend, folder, special, text)


def sentencepiece(folder: Path, special: list[str]) -> Tokenizer:
    """As Llama 2's and Mistral's: a space goes before a text, in a normalizer that has no splits."""
    bytes_ = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    pieces = [chr(c) for c in range(33, 127)] + ["▁", "▁[", "IN", "ST", "INST"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **bytes_, **{piece: 259 + n for n, piece in enumerate(pieces)}}
    merges = [("▁", "["), ("I", "N"), ("S", "T"), ("IN", "ST")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return saved(backend, folder, special)


def saved(backend: Backend, folder: Path, special: list[str], text: Sequence[str] = ()) -> Tokenizer:
    backend.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    backend.add_tokens([AddedToken(each, normalized=False, special=False) for each in text])
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": special[0], "eos_token": special[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return load_tokenizer(folder)


Family = tuple[Tokenizer, ChatTemplate, str]

FAMILIES = (pytest.param("embedded", marks=pytest.mark.requires_weights), "llama3", "qwen", "mistral")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """A tokenizer, its template, and what that was compiled from."""
    folder = tmp_path_factory.mktemp("tokenizer")
    match request.param:
        case "embedded":
            try:
                tokenizer = load_tokenizer(resolve(SMOLLM2))
            except SourceError as error:
                pytest.skip(str(error))
            source = tokenizer.chat_template or ""
        case "llama3":
            special = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"]
            tokenizer, source = byte_level(folder, special, pattern=LLAMA_WORDS), LLAMA3
        case "qwen":
            special = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
            tags = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
            tokenizer, source = byte_level(folder, special, tags), QWEN
        case _:
            special = ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
            tokenizer, source = sentencepiece(folder, special), MISTRAL
    return tokenizer, ChatTemplate(source, tokenizer.special_tokens, tokenizer.controls), source


def conversation(typed: str) -> list[Message]:
    """`typed` in every place that a user, or a model that was talked into it, can write to."""
    call = FunctionCall(f"look{typed}", json.dumps({"city": f"Zürich {typed}", f"{typed}": [typed, 2]}))
    return [
        Message("system", [TextPart(f"Be {typed} brief")]),
        Message("user", [TextPart(f"  é{typed}{typed}\n"), TextPart(typed)], name=f"bob{typed}"),
        Message("assistant", [TextPart(f"<think>hm {typed}</think>\n{typed} there")], name=f"{typed}"),
        Message("user", [TextPart(f"{typed} ")]),
        Message("assistant", tool_calls=[ToolCall(f"c{typed}", call)]),
        Message("tool", [TextPart(f'{{"sun": "{typed}"}}')], name=f"w{typed}", tool_call_id=f"c{typed}"),
    ]


def encode(tokenizer: Tokenizer, template: ChatTemplate, messages: list[Message]) -> list[int]:
    rendered = template.render(messages)
    return tokenizer.encode(rendered.text, add_special=False, literals=rendered.literals)


def test_typed_control_tokens_are_text_in_every_place(family: Family) -> None:
    tokenizer, template, source = family
    written = [id for id in encode(tokenizer, template, conversation("harmless")) if id in tokenizer.special_ids]
    assert len(written) >= 6
    # What a template that knows of no control tokens makes of it, without those that it writes itself.
    whole = ChatTemplate(source, tokenizer.special_tokens).render(conversation("\x01")).text
    for control in sorted(tokenizer.controls, key=len, reverse=True):
        whole = whole.replace(control, "")
    for typed in sorted(tokenizer.controls):
        ids = encode(tokenizer, template, conversation(typed))
        assert [id for id in ids if id in tokenizer.special_ids] == written, typed
        assert max(ids) < tokenizer.vocab_size
        said = b"".join(map(tokenizer.token_bytes, ids)).decode()
        expected = whole.replace("\\u0001", typed).replace("\x01", typed)
        assert said.replace(" ", "") == expected.replace(" ", ""), typed


def test_ordinary_text_has_the_tokens_that_it_always_had(family: Family) -> None:
    tokenizer, template, _ = family
    for text in texts(120):
        if any(control in text for control in tokenizer.controls):
            continue
        rendered = template.render([Message("user", [TextPart(text)])])
        assert rendered.literals == {}
        whole = f"{rendered.text} tail"
        expected = tokenizer._backend.encode(whole, add_special_tokens=False).ids
        assert tokenizer.encode(whole, add_special=False) == expected
        # Also in the way that texts with typed control tokens go.
        literals = {"\ud800": "tail"}
        assert tokenizer.encode(f"{rendered.text} \ud800", add_special=False, literals=literals) == expected


def test_a_clone_agrees(family: Family) -> None:
    tokenizer, template, _ = family
    asked = conversation(min(tokenizer.controls))
    assert encode(tokenizer.clone(), template, asked) == encode(tokenizer, template, asked)
    assert set(tokenizer.token_ids().values()) <= set(range(tokenizer.vocab_size))


def test_prompts_that_are_no_chat_parse_them(family: Family) -> None:
    tokenizer, _, _ = family
    for typed in tokenizer.controls:
        assert tokenizer.encode(f"a{typed}", add_special=False)[-1] in tokenizer.special_ids


def test_the_names_of_sentencepieces_controls_and_bytes_are_no_merges(tmp_path: Path) -> None:
    pieces = [*"<>/s0xA", "s>", "/s>", "<0", "xA", "<0xA", "0>"]
    metadata = {
        **SENTENCEPIECE,
        "tokenizer.ggml.tokens": [*SENTENCEPIECE["tokenizer.ggml.tokens"], *pieces],
        "tokenizer.ggml.scores": [*SENTENCEPIECE["tokenizer.ggml.scores"], *(-20.0 - n for n in range(len(pieces)))],
        "tokenizer.ggml.token_type": [*SENTENCEPIECE["tokenizer.ggml.token_type"], *(1 for _ in pieces)],
    }
    tokenizer = from_gguf(GGUFFile(write_gguf(tmp_path / "m.gguf", metadata=metadata)))
    ids = tokenizer.encode("\ud800<0xA0>", add_special=False, literals={"\ud800": "</s>"})
    assert all(id >= 259 for id in ids)
    assert tokenizer.decode(ids) == "</s><0xA0>"
    assert build_tokenizer(describe_tokenizer(metadata)).encode("</s>", add_special_tokens=False).ids == [2]


def test_halves_of_surrogate_pairs_in_arguments_stay_text() -> None:
    call = ToolCall("c", FunctionCall("f", '{"a": "\\ud800"}'))
    rendered = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}", {}, {"<s>"}).render(
        [Message("assistant", tool_calls=[call])]
    )
    assert rendered.text == '{"a": "\\ud800"}'


def test_more_of_them_than_can_be_told_apart_are_refused() -> None:
    controls = {f"<unused{number}>" for number in range(3000)}
    template = ChatTemplate("{{ messages[0].content }}", {}, controls)
    some = "".join(sorted(controls)[:2000]) * 2
    assert len(template.render([Message("user", [TextPart(some)])]).text) == 4000
    with pytest.raises(InvalidRequest) as refused:
        template.render([Message("user", [TextPart("".join(controls))])])
    assert refused.value.param == "messages"


def test_the_longest_is_meant_where_one_begins_like_another() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, {"<", "<|a|>", "<|a|>b"})
    rendered = template.render([Message("user", [TextPart("<|a|>b<|a|><")])])
    assert [rendered.literals[character] for character in rendered.text] == ["<|a|>b", "<|a|>", "<"]


@given(st.sets(st.text("ab|", min_size=1, max_size=6), min_size=1, max_size=30), st.text("ab|", max_size=30))
def test_what_is_found_is_what_a_tokenizer_finds(controls: set[str], text: str) -> None:
    """At each place the longest, and then on behind it."""
    template = ChatTemplate("{{ messages[0].content }}", {}, controls)
    rendered = template.render([Message("user", [TextPart(text)])])
    expected, at = [], 0
    while at < len(text):
        here = max((c for c in controls if text.startswith(c, at)), key=len, default=None)
        expected.append(here or text[at])
        at += len(here or text[at])
    assert [rendered.literals.get(character, character) for character in rendered.text] == expected
    plain = [rendered.literals.get(character) for character in rendered.text]
    assert [each for each in plain if each] == [each for each in expected if each in controls]


def test_spellings_that_differ_at_more_places_than_a_search_forks_can_be_told_apart() -> None:
    controls = {"a" * length for length in range(2, 200)}
    rendered = ChatTemplate("{{ messages[0].content }}", {}, controls).render(
        [Message("user", [TextPart("a" * 199 + "b" + "a")])]
    )
    assert [rendered.literals.get(character, character) for character in rendered.text] == ["a" * 199, "b", "a"]
