"""A `tokenizers.Tokenizer` from GGUF metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from models.errors import UPSTREAM, ModelLoadError

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # token types

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


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Raises ModelLoadError naming a tokenizer that is not supported."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata)
    else:
        raise ModelLoadError(f"GGUF tokenizer {kind} is not supported (supported: gpt2, llama); {UPSTREAM}")
    _add_tokens(tokenizer, metadata)
    _add_post_processor(tokenizer, metadata, bos_by_default=kind == "llama")
    return tokenizer


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have it."""
    pre = metadata.get("tokenizer.ggml.pre", "default")
    vocab = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    # Llama 3 takes a word that is a token whole, whatever the merges say.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=_SPLITS.get(pre) == _LLAMA3_SPLIT))
    if pre in _SPLITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    elif pre in _GPT2_SPLIT:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if pre in _DIGIT_BY_DIGIT else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    else:
        known = ", ".join(sorted({*_SPLITS, *_GPT2_SPLIT}))
        raise ModelLoadError(f"GGUF pre-tokenizer {pre} is not supported (supported: {known}); {UPSTREAM}")
    if pre.startswith("qwen2") or pre == "deepseek-r1-qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Mapping[str, Any]) -> Tokenizer:
    """BPE over characters with bytes for what the vocabulary lacks, as Llama 2 has it."""
    tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
    vocab = {token: id for id, token in enumerate(tokens)}
    types = metadata.get("tokenizer.ggml.token_type")
    # What a text is made of: nobody types a control token, or a byte's, by its name.
    pieces = {token: id for token, id in vocab.items() if types is None or types[id] in (_NORMAL, _USER_DEFINED)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_from_scores(pieces, metadata["tokenizer.ggml.scores"]),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
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


def _add_tokens(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Control tokens are special; user-defined ones are matched whole, but are text."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type", ())

    def of_type(wanted: int, *, special: bool) -> list[AddedToken]:
        found = (tokens[id] for id, kind in enumerate(types) if kind == wanted)
        return [AddedToken(token, special=special, normalized=False) for token in found]

    tokenizer.add_special_tokens(of_type(_CONTROL, special=True))
    tokenizer.add_tokens(of_type(_USER_DEFINED, special=False))


def _add_post_processor(tokenizer: Tokenizer, metadata: Mapping[str, Any], *, bos_by_default: bool) -> None:
    """A BOS before and an EOS after a text, where the file says so."""
    tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]

    def added(name: str, default: bool) -> list[tuple[str, int]]:
        id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if id is None or not metadata.get(f"tokenizer.ggml.add_{name}_token", default):
            return []
        return [(tokens[id], id)]

    before, after = added("bos", bos_by_default), added("eos", False)
    if before or after:
        single = [*(token for token, _ in before), "$A", *(token for token, _ in after)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=[*single, "$B:1"], special_tokens=[*before, *after]
        )
