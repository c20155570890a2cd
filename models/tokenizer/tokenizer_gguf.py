"""A `tokenizers.Tokenizer` from GGUF metadata."""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from models.errors import UPSTREAM, ModelLoadError
from models.files.fields import Fields

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # token types
_NAMED = ("bos", "eos", "eot", "eom", "unknown", "padding")
_UNUSED: Mapping[str, frozenset[str]] = {"llama": frozenset(("padding",)), "gpt2": frozenset(("unknown", "padding"))}

log = logging.getLogger(__name__)

MOST_PIECE = 1024  # characters of a sentencepiece token, whose merges take the square of that

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

# How a vocabulary's texts were cut before its merges were learned, by `tokenizer.ggml.pre`.
_SPLITS: Mapping[str, str] = {
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
}
_DIGIT_BY_DIGIT = frozenset(("smollm",))
_GPT2_SPLIT = frozenset(("default", "gpt-2", "smollm"))


@dataclass(frozen=True, slots=True)
class TokenizerDescription:
    """A tokenizer by its metadata, each value of the type and in the range that it has to be."""

    kind: str
    pre: str
    tokens: Sequence[str]  # by id
    types: Sequence[int]  # by id; empty: all are ordinary
    merges: Sequence[str]
    scores: Sequence[float]  # by id; empty: there are none
    ids: Mapping[str, int]  # of those among bos, eos, eot, eom, unknown and padding that there are
    added: Mapping[str, bool]  # whether bos and eos are put around a text, where it is said
    space_prefix: bool
    chat_template: str | None


def describe_tokenizer(metadata: Mapping[str, Any]) -> TokenizerDescription:
    """Raises ModelLoadError naming a key whose value can't be a tokenizer's."""
    fields = Fields(metadata, "the GGUF file", "tokenizer.ggml.")
    tokens = fields.items("tokens", str, "texts")
    if not tokens:
        raise ModelLoadError(f"the GGUF file has no tokens in {fields.name('tokens')}")
    types = fields.items("token_type", int, "integers") or ()
    scores = fields.items("scores", int | float, "numbers") or ()
    for key, values in ("token_type", types), ("scores", scores):
        if values and len(values) != len(tokens):
            raise ModelLoadError(f"{fields.name(key)} has {len(values)} values for {len(tokens)} tokens")
    if any(map(math.isnan, scores)):
        raise ModelLoadError(f"{fields.name('scores')} has values that are no numbers")
    kind = fields.text("model", "")
    return TokenizerDescription(
        kind=kind,
        pre=fields.text("pre", "default"),
        tokens=tokens,
        types=types,
        merges=fields.items("merges", str, "texts") or (),
        scores=scores,
        ids=_special_ids(fields, _UNUSED.get(kind, frozenset()), len(tokens)),
        added={
            name: fields.boolean(f"add_{name}_token")
            for name in ("bos", "eos")
            if fields.get(f"add_{name}_token") is not None
        },
        space_prefix=fields.boolean("add_space_prefix", True),
        chat_template=Fields(metadata, "the GGUF file").text("tokenizer.chat_template", "") or None,
    )


def _special_ids(fields: Fields, unused: Collection[str], num_tokens: int) -> dict[str, int]:
    """By their names. Those that nothing here is made with are left out where no token has them: fine-tunes pad with
    the size of their vocabulary, old files with -1."""
    ids: dict[str, int] = {}
    for name in _NAMED:
        key = f"{name}_token_id"
        value = fields.get(key)
        if name in unused and isinstance(value, int) and not 0 <= value < num_tokens:
            log.warning("%s is %d, where there are %d tokens: it is left out", fields.name(key), value, num_tokens)
        elif (id := fields.maybe_integer(key, least=0, most=num_tokens - 1)) is not None:
            ids[name] = id
    return ids


def build_tokenizer(described: TokenizerDescription) -> Tokenizer:
    """Raises ModelLoadError naming a tokenizer that is not supported, or whose parts don't go together."""
    kind = described.kind
    if kind not in ("gpt2", "llama"):
        raise ModelLoadError(f"GGUF tokenizer {kind or 'none'} is not supported (supported: gpt2, llama); {UPSTREAM}")
    try:
        tokenizer = _byte_level(described) if kind == "gpt2" else _sentencepiece(described)
        _add_tokens(tokenizer, described)
        _add_post_processor(tokenizer, described, bos_by_default=kind == "llama")
    except ModelLoadError:
        raise
    except Exception as error:  # the library's own have no type of their own
        raise ModelLoadError(f"the GGUF file's tokenizer.ggml.* make no tokenizer: {error}") from error
    return tokenizer


def _byte_level(described: TokenizerDescription) -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have it."""
    pre = described.pre
    if pre not in _SPLITS and pre not in _GPT2_SPLIT:
        known = ", ".join(sorted({*_SPLITS, *_GPT2_SPLIT}))
        raise ModelLoadError(f"GGUF pre-tokenizer {pre} is not supported (supported: {known}); {UPSTREAM}")
    vocab = {token: id for id, token in enumerate(described.tokens)}
    merges = [_pair(merge) for merge in described.merges]
    if not merges:
        raise ModelLoadError("the GGUF file lacks tokenizer.ggml.merges")
    # Llama 3 takes a word that is a token whole, whatever the merges say.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=_SPLITS.get(pre) == _LLAMA3_SPLIT))
    if pre in _SPLITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if pre in _DIGIT_BY_DIGIT else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    if pre.startswith("qwen2") or pre == "deepseek-r1-qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ModelLoadError(f"tokenizer.ggml.merges has {merge[:40]!r}, which is no pair of tokens")
    return left, right


def _sentencepiece(described: TokenizerDescription) -> Tokenizer:
    """BPE over characters with bytes for what the vocabulary lacks, as Llama 2 has it."""
    tokens = described.tokens
    vocab = {token: id for id, token in enumerate(tokens)}
    types = described.types
    # What a text is made of: nobody types a control token, or a byte's, by its name.
    pieces = {token: id for token, id in vocab.items() if not types or types[id] in (_NORMAL, _USER_DEFINED)}
    if not described.scores:
        raise ModelLoadError("the GGUF file lacks tokenizer.ggml.scores")
    longest = max(map(len, vocab))
    if longest > MOST_PIECE:
        raise ModelLoadError(f"tokenizer.ggml.tokens has a token of {longest} characters")
    unknown = described.ids.get("unknown", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_from_scores(pieces, described.scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = described.space_prefix
    scheme = "first" if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefix else steps)
    return tokenizer


def _merges_from_scores(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Sentencepiece keeps a score a piece, not merges: a piece is merged from any two pieces, best score first."""
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, id in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                merges.append((-scores[id], vocab[left], vocab[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _add_tokens(tokenizer: Tokenizer, described: TokenizerDescription) -> None:
    """Control tokens are special; user-defined ones are matched whole, but are text."""

    def of_type(wanted: int, *, special: bool) -> list[AddedToken]:
        found = (described.tokens[id] for id, kind in enumerate(described.types) if kind == wanted)
        return [AddedToken(token, special=special, normalized=False) for token in found]

    tokenizer.add_special_tokens(of_type(_CONTROL, special=True))
    tokenizer.add_tokens(of_type(_USER_DEFINED, special=False))


def _add_post_processor(tokenizer: Tokenizer, described: TokenizerDescription, *, bos_by_default: bool) -> None:
    """A BOS before and an EOS after a text, where the file says so."""

    def added(name: str, default: bool) -> list[tuple[str, int]]:
        id = described.ids.get(name)
        if id is None or not described.added.get(name, default):
            return []
        return [(described.tokens[id], id)]

    before, after = added("bos", bos_by_default), added("eos", False)
    if before or after:
        single = [*(token for token, _ in before), "$A", *(token for token, _ in after)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=[*single, "$B:1"], special_tokens=[*before, *after]
        )
