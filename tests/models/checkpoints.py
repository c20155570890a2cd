"""Tiny random checkpoints in the layouts that are served, and what transformers itself makes of them."""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = [f"w{number}" for number in range(200)]


def word_tokenizer(
    *, start: str, end: str, pad: str = "[PAD]", unknown: str = "[UNK]", words: int = len(WORDS)
) -> Tokenizer:
    """One token a word, special ones around the text; pairs are told apart by type ids."""
    special = list(dict.fromkeys([pad, unknown, start, end]))
    vocabulary = {word: id for id, word in enumerate([*special, *WORDS[:words]])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(start, vocabulary[start]), (end, vocabulary[end])],
    )
    return tokenizer


def bert(folder: Path, *, labels: int | None = None, seed: int = 0, max_tokens: int = 64) -> Path:
    """An encoder, or with `labels` a sequence classifier."""
    torch.manual_seed(seed)
    tokenizer = word_tokenizer(start="[CLS]", end="[SEP]")
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=max_tokens,
        pad_token_id=0,
        num_labels=labels or 2,
    )
    kind = transformers.BertModel if labels is None else transformers.BertForSequenceClassification
    kind(config).save_pretrained(folder)
    tokenizer.enable_padding(length=16)  # as many published files have it
    tokenizer.enable_truncation(8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def clip(folder: Path) -> Path:
    torch.manual_seed(1)
    tokenizer = word_tokenizer(start="<|start|>", end="<|end|>", pad="!", unknown="[UNK]")
    # The end token has the highest id, as in the published checkpoints.
    serialized = json.loads(tokenizer.to_str())
    end = len(WORDS) + 3
    vocabulary = serialized["model"]["vocab"]
    last = next(word for word, id in vocabulary.items() if id == end)
    vocabulary[last], vocabulary["<|end|>"] = vocabulary["<|end|>"], end
    serialized["post_processor"]["special_tokens"]["<|end|>"]["ids"] = [end]
    (folder / "tokenizer.json").write_text(json.dumps(serialized))
    shared = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={
            **shared,
            "vocab_size": end + 1,
            "max_position_embeddings": 20,
            "bos_token_id": vocabulary["<|start|>"],
            "eos_token_id": end,
            "pad_token_id": 0,
        },
        vision_config={**shared, "image_size": 32, "patch_size": 8},
        projection_dim=24,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    write(
        folder / "preprocessor_config.json",
        {
            "crop_size": {"height": 32, "width": 32},
            "do_center_crop": True,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "resample": 3,
            "size": {"shortest_edge": 32},
        },
    )
    return folder


def siglip(folder: Path) -> Path:
    torch.manual_seed(2)
    tokenizer = word_tokenizer(start="</s>", end="</s>", pad="<pad>", unknown="<unk>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"tokenizer_class": "SiglipTokenizer", "model_max_length": 64})
    shared = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.SiglipConfig(
        text_config={
            **shared,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": 64,
            "projection_size": 32,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": 2,
        },
        vision_config={**shared, "image_size": 32, "patch_size": 8},
    )
    transformers.SiglipModel(config).save_pretrained(folder)
    write(
        folder / "preprocessor_config.json",
        {
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "resample": 3,
            "size": {"height": 32, "width": 32},
        },
    )
    return folder


def write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content))


def vocabulary(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return found


def llama(folder: Path, *, layers: int = 2, seed: int = 0, words: int = len(WORDS)) -> Path:
    """A decoder; `words`: of its tokenizer, so that another number gives another vocabulary."""
    torch.manual_seed(seed)
    tokenizer = word_tokenizer(start="<s>", end="</s>", words=words)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=256,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    return folder
