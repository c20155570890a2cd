"""From the emoji pictures and a table of word vectors to what training reads: pictures, tokenizer, text encoder."""

import argparse
import json
import os
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from models.files.source import resolve
from models.privacy import silence
from scripts.training.emoji.concepts import COLOURS, Concept, caption, read_concepts
from scripts.training.emoji.pictures import read_pictures

LENGTH = 24  # tokens
WIDTH = 192
LAYERS, HEADS = 3, 4
TOKENS = 7000
WORDS = range(1996, 29000)  # of the word vectors' vocabulary; what is before are letters and signs
COMMON = 8000  # the first so many of them
NEAR = 2500  # words that mean nearly what a caption says
START, END = "<|startoftext|>", "<|endoftext|>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="an unpacked emoji-datasource-google")
    parser.add_argument("--work", type=Path, required=True, help="where everything is left")
    given = parser.parse_args()
    torch.manual_seed(0)
    concepts = read_concepts()
    pictures = read_pictures(given.source)
    missing = [concept.short_name for concept in concepts if concept.short_name not in pictures]
    if missing:
        raise SystemExit(f"{given.source} has no picture of {', '.join(missing)}")
    given.work.mkdir(parents=True, exist_ok=True)
    _save_pictures(given.work / "pictures.npz", pictures)
    words = WordVectors()
    tokenizer = _train_tokenizer(given.work / "tokenizer", concepts, words)
    _make_text_encoder(given.work / "text_encoder", tokenizer, words)
    print(f"{len(concepts)} concepts, {len(pictures)} pictures, {len(tokenizer)} tokens")


def _save_pictures(file: Path, pictures: dict[str, Image.Image]) -> None:
    arrays: dict[str, Any] = {name: np.asarray(picture) for name, picture in pictures.items()}
    np.savez_compressed(file, **arrays)


def load_pictures(work: Path) -> dict[str, Image.Image]:
    with np.load(work / "pictures.npz") as stored:
        return {name: Image.fromarray(stored[name]) for name in stored.files}


class WordVectors:
    """The input embeddings of all-MiniLM-L6-v2, centred, whitened, cut to their first principal components."""

    def __init__(self) -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        folder = resolve("embedded:all-minilm-l6-v2")
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()  # it pads to 128: the mean over its pieces would be that of the padding
        table = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"].float()
        common = table[WORDS.start : COMMON]
        mean = common.mean(dim=0)
        _, _, axes = torch.linalg.svd(common - mean, full_matrices=False)
        projected = (table - mean) @ axes[:WIDTH].T
        # As wide in one direction as in any other, so that no few of them rule what the encoder sees first.
        self._table = projected / projected[WORDS.start : COMMON].std(dim=0)
        words = [(number, str(self._tokenizer.id_to_token(number))) for number in WORDS]
        self._words = [(number, word) for number, word in words if re.fullmatch("[a-z]{3,}", word)]

    def common(self) -> list[str]:
        return [word for number, word in self._words if number < COMMON]

    def near(self, texts: Sequence[str], count: int) -> list[str]:
        """The words whose vectors are the nearest to that of one of the texts."""
        targets = F.normalize(torch.stack([self.of(text) for text in texts]), dim=1)
        table = F.normalize(self._table[[number for number, _ in self._words]], dim=1)
        closest = (table @ targets.T).amax(dim=1)
        return [self._words[at][1] for at in closest.topk(count).indices.tolist()]

    def of(self, text: str) -> torch.Tensor:
        """[192]: the mean over its pieces."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._table[ids].mean(dim=0) if ids else torch.zeros(WIDTH)


def _train_tokenizer(folder: Path, concepts: list[Concept], words: WordVectors) -> Any:
    """Byte-level BPE as CLIP's: words of captions become one token each, common other words mostly so."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import CLIPTokenizer

    choose = random.Random(0)
    corpus = [caption(concept, choose, background="white") for concept in concepts for _ in range(60)]
    corpus += [name for concept in concepts for name in concept.names for _ in range(60)]
    corpus += [colour for colour in COLOURS for _ in range(60)]
    captioned = sorted({word for concept in concepts for name in concept.names for word in name.split()})
    corpus += [word for word in words.near(captioned, NEAR) for _ in range(20)]
    corpus += words.common()
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=END))
    learner.normalizer = normalizers.Lowercase()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_words_and_signs(), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=TOKENS - 2, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
        ),
    )
    shutil.rmtree(folder, ignore_errors=True)  # a tokenizer.json of before would be read instead of what is learned now
    folder.mkdir(parents=True)
    learned = json.loads(learner.to_str())["model"]
    vocab = dict(learned["vocab"])
    for letter in sorted(alphabet):  # every byte can also end a word
        vocab.setdefault(letter + "</w>", len(vocab))
    for special in (START, END):
        vocab[special] = len(vocab)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in learned["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    tokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=LENGTH)
    # The library writes one file of its own; others read the two above.
    kept = {name: (folder / name).read_bytes() for name in ("vocab.json", "merges.txt")}
    tokenizer.save_pretrained(folder)
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    return tokenizer


def _words_and_signs() -> Any:
    """CLIP's, but for English contractions."""
    from tokenizers import Regex

    return Regex(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")


def _make_text_encoder(folder: Path, tokenizer: Any, words: WordVectors) -> None:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    encoder = CLIPTextModel(config)
    table = encoder.get_input_embeddings().weight
    with torch.no_grad():
        for token, number in tokenizer.get_vocab().items():
            text = token.removesuffix("</w>")
            if text.isascii() and text.isalpha():
                table[number] = words.of(text)
    encoder.save_pretrained(folder)


if __name__ == "__main__":
    silence(os.environ)
    main()
