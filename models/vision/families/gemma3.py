"""Gemma 3: a picture in one size, whose rows attend to each other in both directions."""

from collections.abc import Sequence

from models.errors import require
from models.vision.families.family import LLAVA_WEIGHTS, SIGLIP, Description, Family, ImageTokens, Inputs


def _tokens(description: Description) -> ImageTokens:
    fields = description.config
    begin = description.token("boi_token_index", 255_999)
    end = description.token("eoi_token_index", 256_000)
    row = description.token("image_token_index", 262_144)
    tokens = (begin, *[row] * fields.integer("mm_tokens_per_image", 256, most=1 << 16), end)
    require(not description.processor.boolean("do_pan_and_scan"), fields.where, "do_pan_and_scan=true")

    def expand(_: Inputs) -> Sequence[int]:
        return tokens

    return ImageTokens(begin, row, expand)


GEMMA3 = Family(
    "gemma3",
    classes="Gemma3",
    architecture="Gemma3ForConditionalGeneration",
    model_type="gemma3",
    processors=("Gemma3ImageProcessor",),
    weights=LLAVA_WEIGHTS,
    tokens=_tokens,
    towers={"siglip_vision_model": SIGLIP},
    config=("mm_tokens_per_image",),
    bidirectional=True,
    around=("\n\n", "\n\n"),
)
