"""Put what was trained together as a folder that holds the half of a model that sees, in bfloat16."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from models.privacy import silence
from scripts.training.emoji import EMBEDDED
from scripts.training.vision import EDGE, NAME
from scripts.training.vision.chats import TEMPLATE
from scripts.training.vision.language import load_tokenizer
from scripts.training.vision.tower import AROUND, GLOBAL, HIDDEN, IMAGE, SHUFFLE, VISION, Tower

LOG = "training.jsonl"
PROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "do_convert_rgb": True,
    "do_image_splitting": False,
    "do_resize": True,
    "size": {"longest_edge": EDGE},
    "max_image_size": {"longest_edge": EDGE},
    "resample": 1,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_pad": True,
    "pad_to_square": [255, 255, 255],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=EMBEDDED / NAME)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    state = torch.load(given.work / "tuned.pt", weights_only=True)
    Tower().load_state_dict(state, strict=True)
    weights = {f"model.{name}": value.to(torch.bfloat16).contiguous() for name, value in state.items()}
    file = given.out / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)  # it is written for its owner alone
    _write(given.out / "config.json", describe())
    _write(given.out / "preprocessor_config.json", PROCESSOR)
    (given.out / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with (given.out / LOG).open("w", encoding="utf-8") as written:
        for stage in ("align", "tune"):
            written.write((given.work / f"{stage}.jsonl").read_text(encoding="utf-8"))
    size = sum(file.stat().st_size for file in given.out.rglob("*") if file.is_file())
    print(f"{given.out}: {size / 1e6:.1f} MB")


def describe() -> dict[str, Any]:
    """`config.json`. The language model is not in the folder: `text_config` says what must fit."""
    ids = load_tokenizer().token_ids()
    return {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "dtype": "bfloat16",
        "image_token_id": ids[IMAGE],
        "fake_image_token_id": ids[AROUND],
        "global_image_token_id": ids[GLOBAL],
        "scale_factor": SHUFFLE,
        "text_config": {"model_type": "llama", "hidden_size": HIDDEN},
        "vision_config": {"model_type": "idefics3_vision", **VISION},
    }


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    silence(os.environ)
    main()
