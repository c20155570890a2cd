"""Classes of transformers whose decoder, which is one of a family's, has an encoder of images beside it.

Their `text_config` describes the decoder, and its `model_type` says which family's it is. Where checkpoints of a class
have had their tensors in several places, the hub's come first.
"""

from dataclasses import dataclass

from models.decoder.families.layout import ALONE, Place


@dataclass(frozen=True, slots=True)
class VisionForm:
    """Folders of safetensors with a `config.json` of one such class."""

    architecture: str  # in `architectures`
    model_type: str  # where the config names no class
    decoders: tuple[str, ...]  # the `model_type`s of decoders that it has; of the first where its description has none
    places: tuple[Place, ...]  # of the decoder's tensors


_BESIDE = Place("language_model.model.", "language_model.")
_INSIDE = Place("model.language_model.")
_IDEFICS = Place("model.text_model.")

VISION_FORMS = (
    VisionForm("Idefics3ForConditionalGeneration", "idefics3", ("llama",), (_IDEFICS,)),
    VisionForm("SmolVLMForConditionalGeneration", "smolvlm", ("llama",), (_IDEFICS,)),
    VisionForm("LlavaForConditionalGeneration", "llava", ("llama", "mistral", "qwen2"), (_BESIDE, _INSIDE)),
    VisionForm("LlavaOnevisionForConditionalGeneration", "llava_onevision", ("qwen2",), (_BESIDE, _INSIDE)),
    VisionForm("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", ("qwen2_5_vl_text",), (ALONE, _INSIDE)),
    VisionForm("Qwen3VLForConditionalGeneration", "qwen3_vl", ("qwen3_vl_text",), (_INSIDE,)),
    VisionForm("Gemma3ForConditionalGeneration", "gemma3", ("gemma3_text",), (_BESIDE, _INSIDE)),
)
