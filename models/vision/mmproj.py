"""The half that sees, described by a GGUF file beside that of the language model, as llama.cpp has it: `mmproj`.

Its keys are gguf's (`gguf.constants.Keys.ClipVision`), and its tensors have gguf's names for those of transformers
(`gguf.tensor_mapping`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import UPSTREAM, ModelLoadError
from models.files.fields import Fields
from models.files.gguf import GGUFFile
from models.tokenizer.tokenizer import Tokenizer
from models.vision.families.idefics3 import IDEFICS3
from models.vision.half import Half, Weights

ARCHITECTURE = "clip"
_IDEFICS3 = "idefics3"  # the kind of projector, of SmolVLM too
_IMAGE = "<image>"
_LANCZOS = 1


def read_mmproj(path: Path, tokenizer: Tokenizer) -> Half | None:
    """None: it is another GGUF file. Raises ModelLoadError."""
    file = GGUFFile(path)
    outer = Fields(file.metadata, str(path))
    if outer.text("general.architecture", "") != ARCHITECTURE:
        return None
    projector = outer.text("clip.vision.projector_type", "") or outer.text("clip.projector_type", "none")
    if projector != _IDEFICS3:
        raise ModelLoadError(
            f"{path}: a projector of the type {projector} is not supported (supported: {_IDEFICS3}); give the model's "
            f"folder of safetensors instead, or {UPSTREAM}"
        )
    fields = Fields(file.metadata, str(path), "clip.vision.")
    config, settings = _config(fields, tokenizer), _settings(fields)

    def open_weights() -> Weights:
        from models.vision.mmproj_weights import MMProjWeights

        return MMProjWeights(file, fields.integer("block_count"))

    return Half(IDEFICS3, str(path), config, config, str(path), settings, None, open_weights)


def _config(fields: Fields, tokenizer: Tokenizer) -> Mapping[str, Any]:
    image = tokenizer.token_ids().get(_IMAGE)
    if image is None:
        raise ModelLoadError(f"{fields.where}: the language model's vocabulary has no {_IMAGE}")
    return {
        "image_token_id": image,
        "scale_factor": fields.integer("projector.scale_factor", 2),
        "text_config": {"hidden_size": fields.maybe_integer("projection_dim")},
        "vision_config": {
            "hidden_size": fields.integer("embedding_length"),
            "intermediate_size": fields.integer("feed_forward_length"),
            "num_hidden_layers": fields.integer("block_count"),
            "num_attention_heads": fields.integer("attention.head_count"),
            "image_size": fields.integer("image_size"),
            "patch_size": fields.integer("patch_size"),
            "layer_norm_eps": fields.number("attention.layer_norm_epsilon", 1e-6),
        },
    }


def _settings(fields: Fields) -> Mapping[str, Any]:
    tile = fields.integer("image_size")
    longest = fields.integer("preproc_image_size", tile)
    mean, std = (fields.items(key, float, "numbers") or [0.5] * 3 for key in ("image_mean", "image_std"))
    return {
        "do_image_splitting": longest > tile,
        "size": {"longest_edge": longest},
        "max_image_size": {"longest_edge": tile},
        "image_mean": list(mean),
        "image_std": list(std),
        "resample": _LANCZOS,
    }
