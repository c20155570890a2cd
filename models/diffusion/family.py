"""What the families of models have in common: how a prompt is read, a row denoised and latents made pixels."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from models.diffusion.autoencoder import Autoencoder
from models.diffusion.checkpoint import Checkpoint, Defaults
from models.diffusion.noise import NoiseSchedulers
from models.diffusion.text import Conditioning, Tokens

MAX_EDGE = 8192  # pixels: every file format holds it


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


class Family(ABC):
    """A loaded model. `tokenise` is for any thread, all else for one at a time, in inference mode."""

    edits: bool = False  # whether it starts from a picture, and fills in by a mask
    empty_is_zero: bool = False  # whether zeros stand for an empty negative prompt, instead of the empty text's states
    defaults: Defaults

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises ModelLoadError."""
        self.checkpoint = checkpoint
        self.schedulers = NoiseSchedulers(checkpoint)
        self.autoencoder = Autoencoder(checkpoint)

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """Of a prompt, special ones included."""

    @property
    @abstractmethod
    def takes_negative(self) -> bool:
        """Whether a guided image has an unconditional row, which a negative prompt is for."""

    @property
    @abstractmethod
    def takes_guidance(self) -> bool:
        """Whether the guidance scale has any effect."""

    @property
    @abstractmethod
    def grid(self) -> int:
        """Both edges of an image are multiples of so many pixels."""

    @property
    @abstractmethod
    def least(self) -> int:
        """Pixels that an edge has at least."""

    @abstractmethod
    def tokenise(self, text: str) -> Tokens:
        """Raises PromptTooLong."""

    @abstractmethod
    def encode(self, texts: Sequence[Tokens]) -> list[Conditioning]: ...

    @abstractmethod
    def predict(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        texts: Sequence[Conditioning],
        guidance: Sequence[float],
        size: Size,
    ) -> torch.Tensor:
        """The denoiser's output for latents [rows, C, h, w], each row at its own timestep: of the same shape, float32.

        `guidance` is read by models that were distilled with it as an input.
        """

    def tokens(self, size: Size) -> int:
        """How many a transformer makes of an image."""
        return 0

    def latent_shape(self, size: Size) -> tuple[int, int, int]:
        ratio = self.autoencoder.pixels_per_latent
        return self.autoencoder.channels, size.height // ratio, size.width // ratio

    def nearest(self, size: Size, max_pixels: int) -> Size:
        """The legal size next to this one, which is this one where it is legal."""
        grid = self.grid
        most = MAX_EDGE // grid * grid

        def legal(edge: float) -> int:
            return min(most, max(self.least, math.floor(edge / grid + 0.5) * grid))

        width, height = legal(size.width), legal(size.height)
        while width * height > max_pixels and max(width, height) > self.least:
            # Smaller in proportion, then step by step where rounding up kept it too large.
            ratio = math.sqrt(max_pixels / (width * height))
            smaller = legal(width * ratio), legal(height * ratio)
            if smaller == (width, height):
                smaller = (width - grid, height) if width >= height else (width, height - grid)
            width, height = smaller
        return Size(width, height)
