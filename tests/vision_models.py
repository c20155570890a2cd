"""Tiny random checkpoints of the families that see, whole as transformers saves them, and transformers' own processors.

Each has a language model, its tokenizer, a chat template and the settings of its image processor, so that it can be
served from its folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from models.tokenizer.tokenizer import byte_alphabet
from tests.models.checkpoints import write

START, END, PAD = "<|im_start|>", "<|im_end|>", "<pad>"
_BASIC = (PAD, START, END)
_NEWLINES = ("Ċ", "ĊĊ", "ĊĊĊ")  # runs of which become one token, as in most vocabularies

HIDDEN = 64
# Weights wide enough apart that what a picture shows makes a difference to what is said of it.
_SPREAD = {"initializer_range": 0.2}
_TEXT = {
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    **_SPREAD,
}
_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, **_SPREAD}
_SQUARE = {**_VISION, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8}
_QWEN_VISION = {**_VISION, "depth": 3, "num_heads": 2, "patch_size": 8, "out_hidden_size": HIDDEN}
_QWEN_VISION.pop("num_attention_heads")
_SCALING = {"image_mean": [0.5, 0.4, 0.6], "image_std": [0.3, 0.25, 0.35]}
_TILE_ROWS = tuple(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))  # others are spelled as text


@dataclass(frozen=True, slots=True)
class Tiny:
    """How the checkpoint of one family is made."""

    classes: str  # of transformers
    special: tuple[str, ...]  # tokens
    picture: str  # what the chat template writes for one
    placeholder: str
    image_processor: str
    settings: Mapping[str, Any]
    config: Callable[[Mapping[str, int]], Mapping[str, Any]]  # ids of tokens -> keys of config.json
    tokenizer: Mapping[str, str] = field(default_factory=dict)  # special tokens that the processor asks it for
    processor: Mapping[str, Any] = field(default_factory=dict)  # its own settings
    processor_class: str = ""  # where it is not the family's


_FAMILIES: Mapping[str, Tiny] = {
    "idefics3": Tiny(
        "Idefics3",
        special=("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *_TILE_ROWS),
        picture="<image>",
        placeholder="<image>",
        image_processor="Idefics3ImageProcessorPil",
        settings={"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}, "resample": 1, **_SCALING},
        config=lambda ids: {
            "image_token_id": ids["<image>"],
            "scale_factor": 2,
            "text_config": {"model_type": "llama", **_TEXT},
            "vision_config": _SQUARE,
        },
        processor={"image_seq_len": 4},
    ),
    "llava": Tiny(
        "Llava",
        special=("<image>",),
        picture="<image>\n",
        placeholder="<image>",
        image_processor="CLIPImageProcessorPil",
        settings={"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, **_SCALING},
        config=lambda ids: {
            "image_token_index": ids["<image>"],
            "image_seq_length": 16,
            "text_config": {"model_type": "llama", **_TEXT},
            "vision_config": {"model_type": "clip_vision_model", **_SQUARE},
        },
        processor={
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "llava_onevision": Tiny(
        "LlavaOnevision",
        special=("<image>", "<video>"),
        picture="<image>\n",
        placeholder="<image>",
        image_processor="LlavaOnevisionImageProcessorPil",
        settings={
            "size": {"height": 32, "width": 32},
            "image_grid_pinpoints": [[32, 32], [32, 64], [64, 32], [64, 64], [32, 96], [96, 32]],
            **_SCALING,
        },
        config=lambda ids: {
            "image_token_index": ids["<image>"],
            "video_token_index": ids["<video>"],
            "image_grid_pinpoints": [[32, 32], [32, 64], [64, 32], [64, 64], [32, 96], [96, 32]],
            "vision_aspect_ratio": "anyres_max_2",
            "text_config": {"model_type": "qwen2", **_TEXT},
            "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False, **_SQUARE},
        },
        processor={
            "num_image_tokens": 16,
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_2",
        },
    ),
    "qwen2.5-vl": Tiny(
        "Qwen2_5_VL",
        special=("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        picture="<|vision_start|><|image_pad|><|vision_end|>",
        placeholder="<|image_pad|>",
        image_processor="Qwen2VLImageProcessorPil",
        settings={"size": {"shortest_edge": 32 * 32, "longest_edge": 96 * 96}, "patch_size": 8, **_SCALING},
        config=lambda ids: {
            **_qwen_ids(ids),
            "text_config": {
                "model_type": "qwen2_5_vl_text",
                **_TEXT,
                "use_sliding_window": False,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]},
            },
            "vision_config": {**_QWEN_VISION, "window_size": 32, "fullatt_block_indexes": [1]},
        },
    ),
    "qwen3-vl": Tiny(
        "Qwen3VL",
        special=("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        picture="<|vision_start|><|image_pad|><|vision_end|>",
        placeholder="<|image_pad|>",
        image_processor="Qwen2VLImageProcessorPil",
        settings={"size": {"shortest_edge": 32 * 32, "longest_edge": 96 * 96}, "patch_size": 8, **_SCALING},
        config=lambda ids: {
            **_qwen_ids(ids),
            "text_config": {
                "model_type": "qwen3_vl_text",
                **_TEXT,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "mrope_section": [6, 5, 5],
                    "mrope_interleaved": True,
                },
            },
            "vision_config": {**_QWEN_VISION, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]},
        },
    ),
    "gemma3": Tiny(
        "Gemma3",
        special=("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        picture="<start_of_image>",
        placeholder="<start_of_image>",
        image_processor="Gemma3ImageProcessorPil",
        settings={"size": {"height": 32, "width": 32}, **_SCALING},
        config=lambda ids: {
            "boi_token_index": ids["<start_of_image>"],
            "eoi_token_index": ids["<end_of_image>"],
            "image_token_index": ids["<image_soft_token>"],
            "mm_tokens_per_image": 4,
            "text_config": {"model_type": "gemma3_text", **_TEXT, "sliding_window": 512, "query_pre_attn_scalar": 32},
            "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False, **_SQUARE},
        },
        tokenizer={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        processor={"image_seq_length": 4},
    ),
}


FAMILIES: Mapping[str, Tiny] = {
    **_FAMILIES,
    "smolvlm": replace(
        _FAMILIES["idefics3"],
        classes="SmolVLM",
        image_processor="SmolVLMImageProcessorPil",
        processor_class="Idefics3Processor",  # its own does the same, but wants a package for videos
    ),
}


def _qwen_ids(ids: Mapping[str, int]) -> dict[str, int]:
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


def build(family: str, folder: Path, *, seed: int = 0) -> Path:
    """A whole checkpoint in `folder`, which is there."""
    tiny = FAMILIES[family]
    tokenizer = save_tokenizer(folder, tiny.special, tiny.tokenizer)
    ids = tokenizer.get_vocab()
    (folder / "chat_template.jinja").write_text(chat_template(tiny.picture))
    made = dict(tiny.config(ids))
    shared = {"bos_token_id": None, "eos_token_id": ids[END], "pad_token_id": ids[PAD]}
    made["text_config"] = {**made["text_config"], **shared, "vocab_size": len(ids)}
    torch.manual_seed(seed)
    config = getattr(transformers, f"{tiny.classes}Config")(**made, tie_word_embeddings=True)
    model = getattr(transformers, f"{tiny.classes}ForConditionalGeneration")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.any():  # what is zeros when it is made would hide what it does
                parameter.normal_(std=0.2)
            elif name.endswith("image_newline"):
                parameter.mul_(2)
    model.save_pretrained(folder)
    image_processor(family).save_pretrained(folder)
    return folder


def chat_template(picture: str) -> str:
    return (
        "{% for message in messages %}"
        f"{START}{{{{ message['role'] }}}}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}"
        f"{{% if part['type'] == 'image' %}}{picture}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}"
        "{% endfor %}{% endif %}"
        f"{END}\n"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
    )


def save_tokenizer(folder: Path, special: tuple[str, ...], named: Mapping[str, str] | None = None) -> Tokenizer:
    """Bytes, runs of newlines, and special tokens. `named`: of these, what a processor asks for by a name."""
    characters = [*sorted(byte_alphabet()), *_NEWLINES[1:]]
    merges = [(_NEWLINES[0], _NEWLINES[0]), (_NEWLINES[1], _NEWLINES[0])]
    tokenizer = Tokenizer(models.BPE({text: id for id, text in enumerate(characters)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*_BASIC, *special)])
    tokenizer.save(str(folder / "tokenizer.json"))
    basic = {"eos_token": END, "pad_token": PAD, "tokenizer_class": "PreTrainedTokenizerFast"}
    write(folder / "tokenizer_config.json", {**basic, "extra_special_tokens": dict(named or {})})
    return tokenizer


def image_processor(family: str) -> Any:
    """transformers' own."""
    tiny = FAMILIES[family]
    return getattr(transformers, tiny.image_processor)(**tiny.settings)


def processor(family: str, folder: Path) -> Any:
    """transformers' own, of text and pictures: what it makes of a prompt is what ours have to make of it."""
    tiny = FAMILIES[family]
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    kind = getattr(transformers, tiny.processor_class or f"{tiny.classes}Processor")
    # Some want a processor of videos too, all of which want torchvision.
    unchecked = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    return unchecked(image_processor=image_processor(family), tokenizer=tokenizer, **tiny.processor)


def reference(family: str, folder: Path) -> Any:
    """transformers' own model."""
    kind = getattr(transformers, f"{FAMILIES[family].classes}ForConditionalGeneration")
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def picture(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth colours with a few edges: [height, width, 3]."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    found = np.array(coarse.resize((width, height), Image.Resampling.BICUBIC))
    found[height // 3 : height // 2, width // 4 : width // 2] = random.integers(0, 256, 3)
    return found
