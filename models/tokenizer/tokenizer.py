"""Text to token ids and back, over `tokenizers.Tokenizer`."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from models.errors import ModelLoadError
from models.files.description import read_json
from models.files.fields import Fields
from models.files.gguf import GGUFFile
from models.tokenizer.borders import Borders
from models.tokenizer.control_tokens import Aliases, added_tokens
from models.tokenizer.token_lengths import TokenLengths, token_lengths
from models.tokenizer.tokenizer_gguf import build_tokenizer, describe_tokenizer

NONE: Mapping[str, str] = {}
_SPACE = "▁"  # sentencepiece's
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """One tokenizer; not to be shared by threads: each takes a `clone`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: frozenset[int],
        bos_id: int | None,
        chat_template: str | None,
        special_tokens: Mapping[str, str],
        token_table: Sequence[bytes] | None = None,
        aliases: Aliases | None = None,
    ) -> None:
        self._backend = backend
        self._table = _token_table(backend) if token_table is None else token_table
        self.vocab_size = len(self._table)
        self.eos_ids = eos_ids  # the tokenizer's own; a generation config may name more
        self.bos_id = bos_id
        special = {id: token for id, token in added_tokens(backend).items() if token.special}
        self.special_ids = frozenset(special)
        self.controls = frozenset(token.content for token in special.values())  # as they are spelled
        self._borders = Borders(backend)
        self._aliases = aliases or Aliases.add(backend, special)
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens)  # bos_token, eos_token, … as chat templates name them

    def encode(self, text: str, *, add_special: bool, literals: Mapping[str, str] = NONE) -> list[int]:
        """Token ids. Special tokens spelled out in `text` become themselves.

        `add_special`: with what the model's own post-processor puts around a text (a BOS, mostly). `literals`:
        characters in `text` that stand for another text, which is ordinary whatever it spells.
        """
        if literals:
            return self._aliases.encode(self._backend, text, literals, add_special=add_special)
        # In a batch of one: `encode` keeps the interpreter lock to its end, tens of milliseconds for a long text.
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special)[0].ids

    def exceeds(self, text: str, limit: int, *, literals: Mapping[str, str] = NONE) -> bool:
        """Whether `text` has more than `limit` tokens, as far as that can be told without reading all of it.

        Where tokens have a greatest length, one look at the text's own tells it of the longest texts. Of others it is
        told where the tokenizer splits at spaces, in about the time that it takes to encode `limit` tokens.
        """
        if len(text) > limit and self._lengths.least(text) > limit:
            return True
        for part in self._borders.parts(text, limit, "start"):
            if len(part) == len(text):
                break
            if len(self.encode(part, add_special=False, literals=literals)) > limit:
                return True
        return False

    @cached_property
    def _lengths(self) -> TokenLengths:
        spelled = {byte: character for character, byte in byte_alphabet().items()}
        alphabet = spelled if _is_byte_level(self._backend) else None
        return token_lengths(self._backend, self._table, alphabet, self._aliases)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def token_ids(self) -> dict[str, int]:
        """Each token as the tokenizer spells it, special ones included -> its id."""
        vocab: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return {token: id for token, id in vocab.items() if token not in self._aliases}

    def spelling(self, id: int) -> str:
        """The token as the tokenizer spells it, "" for an id that none has."""
        token: str | None = self._backend.id_to_token(id)
        return token or ""

    def token_bytes(self, id: int) -> bytes:
        """The raw bytes that a token stands for, maybe a part of a character; b"" for special tokens.

        Sentencepiece tokens that open a word start with a space, also where `decode` would drop a text's first one.
        """
        return self._table[id]

    def clone(self) -> "Tokenizer":
        """The same tokenizer with its own state, for another thread."""
        return Tokenizer(
            tokenizers.Tokenizer.from_str(self._backend.to_str()),
            eos_ids=self.eos_ids,
            bos_id=self.bos_id,
            chat_template=self.chat_template,
            special_tokens=self.special_tokens,
            token_table=self._table,
            aliases=self._aliases,
        )


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: character -> byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


def _token_table(backend: tokenizers.Tokenizer) -> list[bytes]:
    """Of each id its bytes; ids that no token has stay empty."""
    vocab = backend.get_vocab(with_added_tokens=False)
    added = added_tokens(backend)
    table = [b""] * (max([*vocab.values(), *added]) + 1)
    to_bytes = _byte_level() if _is_byte_level(backend) else _sentencepiece
    for token, id in vocab.items():
        table[id] = to_bytes(token)
    for id, whole in added.items():
        table[id] = b"" if whole.special else whole.content.encode()
    return table


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """By the decoder: it is what turns tokens back into bytes."""
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {}
    kinds = [decoder.get("type"), *(part["type"] for part in decoder.get("decoders", []))]
    return "ByteLevel" in kinds


def _byte_level() -> Callable[[str], bytes]:
    alphabet = byte_alphabet()
    foreign = dict.fromkeys(range(256), "\N{REPLACEMENT CHARACTER}")  # in Latin-1, but not of the alphabet
    table = foreign | {ord(char): chr(byte) for char, byte in alphabet.items()}

    def to_bytes(token: str) -> bytes:
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()  # a token that isn't spelled in the alphabet

    return to_bytes


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode()


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model folder (`tokenizer.json`) or of a GGUF file. Raises ModelLoadError."""
    if path.is_file():
        return from_gguf(GGUFFile(path))
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelLoadError(f"{path} has no tokenizer.json; save the model's fast tokenizer there")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        raise ModelLoadError(f"{file} can't be read: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    fields = Fields(read_json(path / "tokenizer_config.json") or {}, "tokenizer_config.json")
    special = {name: token for name in _SPECIAL if (token := _special_token(fields, name))}
    eos = backend.token_to_id(special.get("eos_token", ""))
    return Tokenizer(
        backend,
        eos_ids=frozenset() if eos is None else frozenset((eos,)),
        bos_id=backend.token_to_id(special.get("bos_token", "")),
        chat_template=_chat_template(path, fields),
        special_tokens=special,
    )


def _special_token(fields: Fields, name: str) -> str | None:
    """A text, or a table that has it as its content."""
    if isinstance(fields.get(name), Mapping):
        return fields.within(fields.table(name) or {}).text("content", "") or None
    return fields.text(name, "") or None


def _chat_template(path: Path, fields: Fields) -> str | None:
    """transformers writes it to its own file; before, into the config, where it may be a list of named ones."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    if isinstance(fields.get("chat_template"), list):
        named = [fields.within(each) for each in fields.items("chat_template", Mapping, "named templates") or ()]
        return next((each.text("template") for each in named if each.text("name") == "default"), None)
    return fields.text("chat_template", "") or None


def from_gguf(file: GGUFFile) -> Tokenizer:
    """The tokenizer described by a GGUF file's metadata. Raises ModelLoadError."""
    described = describe_tokenizer(file.metadata)
    backend = build_tokenizer(described)
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = described.ids
    return Tokenizer(
        backend,
        eos_ids=frozenset(ids[name] for name in ("eos", "eot", "eom") if name in ids),
        bos_id=ids.get("bos"),
        chat_template=described.chat_template,
        special_tokens={names[name]: described.tokens[ids[name]] for name in names if name in ids},
    )
