"""LLaVA 1.5, and what is built like it: a picture in one size."""

from collections.abc import Sequence

from models.vision.families.family import CLIP, LLAVA_WEIGHTS, SIGLIP, Description, Family, ImageTokens, Inputs

_WITH_CLASS = ("clip_vision_model",)  # towers whose first row is of no patch


def _tokens(description: Description) -> ImageTokens:
    image = description.token("image_token_index", description.config.maybe_integer("image_token_id", least=0))
    patch = description.vision.integer("patch_size")
    drops_first = description.config.text("vision_feature_select_strategy", "default") == "default"
    others = (description.kind in _WITH_CLASS) - drops_first

    def expand(inputs: Inputs) -> Sequence[int]:
        *_, height, width = inputs["pixel_values"].shape
        return [image] * ((height // patch) * (width // patch) + others)

    return ImageTokens(image, image, expand)


LLAVA = Family(
    "llava",
    classes="Llava",
    architecture="LlavaForConditionalGeneration",
    model_type="llava",
    processors=("CLIPImageProcessor", "LlavaImageProcessor", "SiglipImageProcessor"),
    weights=LLAVA_WEIGHTS,
    tokens=_tokens,
    towers={"clip_vision_model": CLIP, "siglip_vision_model": SIGLIP},
    config=(
        "projector_hidden_act",
        "vision_feature_select_strategy",
        "vision_feature_layer",
        "multimodal_projector_bias",
    ),
)
