"""What a record of a family says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from models.errors import UPSTREAM, ModelLoadError
from models.files.fields import MOST_HEADS, MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, Fields
from models.tokenizer.tokenizer import Tokenizer
from models.vision.vision import Positions

Inputs = Mapping[str, NDArray[Any]]  # what an image processor gives for one picture, by its names
Overrides = Mapping[str, Any]  # of an image processor's settings

NO_OVERRIDES: Overrides = MappingProxyType({})
MOST_PIXELS = 1 << 15  # of an edge

# Files have these names, transformers' own modules only the last part of them.
LLAVA_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "vision_tower.": (
        "model.vision_tower.",
        "model.vision_tower.vision_model.",
        "vision_tower.vision_model.",
        "vision_tower.",
    ),
    "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
}
# What these classes have where a config leaves it out.
CLIP: Mapping[str, Any] = {"patch_size": 32, "image_size": 224}
SIGLIP: Mapping[str, Any] = {"patch_size": 16, "image_size": 224}


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """How a picture stands in a prompt."""

    placeholder: int  # what the chat template writes for it
    row: int  # of its tokens, the one that stands where the tower's rows come
    expand: Callable[[Inputs], Sequence[int]]  # its tokens. Raises ValueError
    grid: Callable[[Inputs], tuple[int, int, int]] | None = None  # (time, height, width) of its rows
    values: int = 3  # of `pixel_values`, that a pixel has


@dataclass(frozen=True, slots=True)
class Description:
    """What files say of the half that sees, read by its types."""

    config: Fields  # config.json
    vision: Fields  # its vision_config
    processor: Fields  # of the image processor
    tokenizer: Tokenizer  # the language model's, which may come from other files
    kind: str  # of the tower

    def token(self, key: str, default: int | None = None) -> int:
        """The id that the config has for a special token: no text that a caller writes becomes one. Raises
        ModelLoadError."""
        id = self.config.integer(key, default, least=0, most=MOST_TOKENS)
        if id not in self.tokenizer.special_ids:
            raise ModelLoadError(f"{self.config.where}: {key} is {id}, no special token of the tokenizer")
        return id

    def width(self) -> int | None:
        """Of the embeddings that the rows stand beside, where the config says it."""
        text = self.config.table("text_config") or {}
        return Fields(text, f"{self.config.where}, text_config").maybe_integer("hidden_size", most=MOST_WIDTH)


@dataclass(frozen=True, slots=True)
class Features:
    """What a tower gives for several pictures: tensors of torch, in the order of the pictures."""

    rows: Sequence[Any]  # of each picture [n, hidden]
    deepstack: Sequence[Sequence[Any]] = ()  # of each layer, of each picture [n, hidden]


def plain_processing(processor: Any, picture: Any, overrides: Overrides) -> Mapping[str, Any]:
    found: Mapping[str, Any] = processor(picture, **overrides)
    return found


def one_detail(_: Any) -> Overrides:
    return NO_OVERRIDES


def plain_features(model: Any, inputs: Mapping[str, Any]) -> Features:
    return Features(list(model.get_image_features(**inputs).pooler_output))


@dataclass(frozen=True, slots=True)
class Family:
    """What models that see have of their own, by family."""

    name: str  # for people
    classes: str  # of transformers, with "Model" and "Config" behind it
    architecture: str  # in `architectures`
    model_type: str  # where a config names no class
    processors: tuple[str, ...]  # transformers' image processors that it goes with; the first, where files name none
    weights: Mapping[str, tuple[str, ...]]  # what the model's parameters begin with -> with what files have them
    tokens: Callable[[Description], ImageTokens]  # raises ModelLoadError
    towers: Mapping[str, Mapping[str, Any]]  # kinds in vision_config -> what these have by default; "": it names none
    config: tuple[str, ...] = ()  # keys of config.json that the model is made by, beside vision_config
    language: str = "language_model"  # the module that is left out
    inputs: tuple[str, ...] = ("pixel_values",)  # that the model reads
    packs: bool = False  # pictures of any sizes go together, as one sequence
    width: Callable[[Description], int | None] = Description.width  # of the rows; None: as the language model has it
    process: Callable[[Any, Any, Overrides], Mapping[str, Any]] = plain_processing  # (image processor, PIL's image, …)
    low: Callable[[Any], Overrides] = one_detail  # image processor -> what `detail: low` changes
    features: Callable[[Any, Mapping[str, Any]], Features] = plain_features  # (model, inputs of several pictures)
    positions: Positions | None = None
    bidirectional: bool = False
    around: tuple[str, str] = ("", "")  # see Vision


def require_sizes(vision: Fields) -> None:
    """That a tower by this config is of a size that models have. Raises ModelLoadError."""
    limits = {
        "hidden_size": MOST_WIDTH,
        "intermediate_size": MOST_WIDTH,
        "out_hidden_size": MOST_WIDTH,
        "num_hidden_layers": MOST_LAYERS,
        "depth": MOST_LAYERS,
        "num_attention_heads": MOST_HEADS,
        "num_heads": MOST_HEADS,
        "image_size": MOST_PIXELS,
        "patch_size": MOST_PIXELS,
        "num_position_embeddings": MOST_TOKENS,
    }
    for key, most in limits.items():
        vision.maybe_integer(key, most=most)


def kind_of_tower(family: Family, vision: Mapping[str, Any], where: str) -> str:
    """A key of `family.towers`. Raises ModelLoadError."""
    if "" in family.towers:
        return ""
    kind = Fields(vision, where).text("model_type", next(iter(family.towers)))
    if kind not in family.towers:
        known = ", ".join(family.towers)
        raise ModelLoadError(f"{where}: a {kind} is not supported in {family.name} (supported: {known}); {UPSTREAM}")
    return kind
