"""What an embedding checkpoint is made of, read from its JSON files.

A text encoder may be laid out as sentence-transformers does (`modules.json`: a transformer, a pooling, dense layers),
or be a plain checkpoint, which is then pooled by mean. Every vector is brought to unit length, whether or not the
checkpoint has a module for it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from models.errors import ModelLoadError

Family = Literal["text", "cross_encoder", "clip", "siglip"]
Pooling = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "lasttoken"]

DEFAULT_MAX_TOKENS = 512
UNLIMITED = 1_000_000  # tokenizers write 1e30 where they know no limit

CONTRASTIVE: Mapping[str, Family] = {"clip": "clip", "siglip": "siglip"}  # text and images in one space, by model_type


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How pixels are made ready: `[3, height, width]`, scaled, then `(x - mean) / std` for each channel."""

    height: int
    width: int
    shortest_edge: int | None  # resize the shorter side to this, then crop the middle; None: resize to height × width
    resample: int  # PIL.Image.Resampling
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    tokens: int  # positions that one image takes in its encoder


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    family: Family
    dimensions: int  # of a vector; 1 for a cross-encoder's score
    max_tokens: int  # of one text, special tokens among them
    vocab_size: int
    pad_id: int
    token_types: bool  # the encoder tells the two texts of a pair apart by token_type_ids
    masked: bool = True  # the encoder takes an attention mask; without one, padding is part of the text
    fixed_length: bool = False  # every text is padded to max_tokens
    pooling: Pooling = "mean"
    dense: tuple[str, ...] = ()  # folders of sentence-transformers' dense layers, in order
    prompt: str = ""  # what the checkpoint wants before every text whose kind is not told
    prompts: Mapping[str, str] = field(default_factory=dict)  # before a text of a kind: "query", "document", …
    canonical: bool = False  # texts are lower-cased and lose their punctuation before they are tokenised
    image: ImageConfig | None = None


def read_embedder(path: Path) -> EmbedderConfig:
    """The description of the checkpoint in a folder. Raises ModelLoadError where it is none that can be served."""
    config = _read(path / "config.json")
    model_type = str(config.get("model_type", "unknown"))
    if model_type in CONTRASTIVE:
        return _contrastive(path, config, CONTRASTIVE[model_type])
    if any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ()):
        return _cross_encoder(path, config)
    return _text_encoder(path, config)


def _text_encoder(path: Path, config: Mapping[str, Any]) -> EmbedderConfig:
    pooling: Pooling = "mean"
    prompt_pooled = True
    dense: list[str] = []
    dimensions = int(config["hidden_size"] if "hidden_size" in config else config["dim"])
    for module in _modules(path):
        kind, folder = str(module["type"]).rpartition(".")[2], str(module["path"])
        match kind:
            case "Transformer" | "Normalize":
                if folder and kind == "Transformer":
                    raise ModelLoadError(f"{path.name}: a transformer in the sub-folder {folder!r} is not supported")
            case "Pooling":
                pooling = _pooling(path / folder)
                prompt_pooled = bool(_read(path / folder / "config.json").get("include_prompt", True))
            case "Dense":
                dense.append(folder)
                dimensions = int(_read(path / folder / "config.json")["out_features"])
            case _:
                raise ModelLoadError(f"{path.name}: the sentence-transformers module {kind} is not supported")
    default, prompts = _prompts(path)
    if not prompt_pooled:
        if default:
            raise ModelLoadError(f"{path.name}: pooling that leaves out the default prompt is not supported")
        prompts = {}
    return EmbedderConfig(
        family="text",
        dimensions=dimensions,
        pooling=pooling,
        dense=tuple(dense),
        prompt=default,
        prompts=prompts,
        **_encoder(path, config),
    )


def _cross_encoder(path: Path, config: Mapping[str, Any]) -> EmbedderConfig:
    labels = config.get("num_labels") or len(config.get("id2label") or {0: "", 1: ""})
    if labels != 1:
        raise ModelLoadError(f"{path.name}: a classifier of {labels} labels is no cross-encoder; one label is needed")
    return EmbedderConfig(family="cross_encoder", dimensions=1, **_encoder(path, config))


def _encoder(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that text encoders and cross-encoders share."""
    return {
        "max_tokens": _max_tokens(path, config),
        "vocab_size": int(config["vocab_size"]),
        "pad_id": int(config.get("pad_token_id") or 0),
        "token_types": int(config.get("type_vocab_size") or 0) > 1,
    }


def _max_tokens(path: Path, config: Mapping[str, Any]) -> int:
    """As sentence-transformers has it: its own limit, else the smaller of the model's and the tokenizer's."""
    positions = int(config.get("max_position_embeddings") or UNLIMITED)
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= int(config.get("pad_token_id") or 0) + 1  # position ids begin behind the padding's
    own = _read(path / "sentence_bert_config.json", required=False).get("max_seq_length")
    limit = own or _read(path / "tokenizer_config.json", required=False).get("model_max_length") or UNLIMITED
    found = min(positions, int(min(limit, UNLIMITED)))
    return found if found < UNLIMITED else DEFAULT_MAX_TOKENS


def _prompts(path: Path) -> tuple[str, dict[str, str]]:
    """What comes before a text: by default, and by its kind (sentence-transformers' `prompts`)."""
    config = _read(path / "config_sentence_transformers.json", required=False)
    prompts = {str(kind): str(prompt or "") for kind, prompt in (config.get("prompts") or {}).items()}
    default = config.get("default_prompt_name")
    if default and default not in prompts:
        raise ModelLoadError(f"{path.name}: the default prompt {default!r} is none of {', '.join(prompts) or 'none'}")
    return prompts[default] if default else "", prompts


def _pooling(folder: Path) -> Pooling:
    config = _read(folder / "config.json")
    prefix = "pooling_mode_"
    modes = [key.removeprefix(prefix) for key, value in config.items() if key.startswith(prefix) and value is True]
    if isinstance(named := config.get("pooling_mode"), str):
        modes = [named]
    names: dict[str, Pooling] = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    names |= {mode: mode for mode in get_args(Pooling)}
    if len(modes) != 1 or modes[0] not in names:
        raise ModelLoadError(f"{folder.parent.name}: pooling by {', '.join(modes) or 'nothing'} is not supported")
    return names[modes[0]]


def _contrastive(path: Path, config: Mapping[str, Any], family: Family) -> EmbedderConfig:
    """CLIP (https://arxiv.org/abs/2103.00020) and SigLIP (https://arxiv.org/abs/2303.15343).

    Neither takes a mask: CLIP's text encoder is causal, so it does not see what follows a text's end; SigLIP was
    trained on texts padded to a fixed length, and the padding is part of what it reads.
    """
    text, vision = config.get("text_config") or {}, config.get("vision_config") or {}
    siglip = family == "siglip"
    positions = int(text.get("max_position_embeddings") or (64 if siglip else 77))
    tokenizer = _read(path / "tokenizer_config.json", required=False)
    limit = int(min(tokenizer.get("model_max_length") or positions, positions))
    if siglip:
        dimensions = int(text.get("projection_size") or text.get("hidden_size") or 768)
    else:
        dimensions = int(config.get("projection_dim") or 512)
    return EmbedderConfig(
        family=family,
        dimensions=dimensions,
        max_tokens=limit,
        vocab_size=int(text.get("vocab_size") or (32000 if siglip else 49408)),
        pad_id=int(text.get("pad_token_id", 1)),
        token_types=False,
        masked=False,
        fixed_length=siglip,
        canonical=tokenizer.get("tokenizer_class") == "SiglipTokenizer",
        image=_image(path, vision, siglip),
    )


def _image(path: Path, vision: Mapping[str, Any], siglip: bool) -> ImageConfig:
    config = _read(path / "preprocessor_config.json")
    config = config.get("image_processor") or config
    edge = int(vision.get("image_size") or 224)
    size = config.get("size") or edge
    sizes: Mapping[str, int] = {"shortest_edge": size} if isinstance(size, int) else size
    shortest = sizes.get("shortest_edge") if config.get("do_resize", True) else None
    crop = config.get("crop_size") or edge
    crops: Mapping[str, int] = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    if siglip or not config.get("do_center_crop", True):
        shortest = None
        crops = sizes if "height" in sizes else {"height": edge, "width": edge}
    if (crops["height"], crops["width"]) != (edge, edge):
        raise ModelLoadError(
            f"{path.name}: images are prepared as {dict(crops)}, but the encoder takes {edge} × {edge}"
        )
    normalise = config.get("do_normalize", True)
    half = [0.5, 0.5, 0.5]
    patches = (edge // int(vision.get("patch_size") or (16 if siglip else 32))) ** 2
    return ImageConfig(
        height=crops["height"],
        width=crops["width"],
        shortest_edge=shortest,
        resample=int(config.get("resample", 3)),
        scale=float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
        mean=tuple(config.get("image_mean") or half) if normalise else (0.0, 0.0, 0.0),
        std=tuple(config.get("image_std") or half) if normalise else (1.0, 1.0, 1.0),
        tokens=patches + (0 if siglip else 1),
    )


def _modules(path: Path) -> list[Mapping[str, Any]]:
    file = path / "modules.json"
    if not file.is_file():
        return []
    modules: list[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return modules


def _read(file: Path, *, required: bool = True) -> Mapping[str, Any]:
    if not file.is_file():
        if required:
            raise ModelLoadError(f"{file.parent} has no {file.name}")
        return {}
    try:
        found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{file}: not valid JSON: {error}") from error
    return found
