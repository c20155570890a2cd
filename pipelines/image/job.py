"""One request for images, and one image of it: what the stages hand on to each other."""

from dataclasses import dataclass, field

import torch

from models.diffusion.family import Size
from models.diffusion.noise import NoiseScheduler
from models.diffusion.text import Conditioning, Tokens
from pipelines.base import Ticket
from pipelines.messages.frames import Done, Timing, Usage
from pipelines.messages.image import OutputFormat

# A step of a batch-class image counts as so many: it is served a quarter as often while interactive ones wait.
WEIGHTS = {"interactive": 1.0, "batch": 4.0}
BRIEF_STEPS = 8  # an interactive image of so few passes long ones


@dataclass(frozen=True, slots=True)
class Source:
    """What an edit starts from."""

    pixels: torch.Tensor  # [1, 3, H, W], -1…1
    mask: torch.Tensor | None  # [1, 1, h, w] of latents: 1 where the picture is drawn anew
    strength: float


@dataclass(frozen=True, slots=True)
class Output:
    """How pictures are told."""

    format: OutputFormat
    compression: int | None
    previews: int  # of each image
    progress: bool


@dataclass(slots=True, eq=False)
class Order:
    """A request. What is prepared does not change; texts are encoded once for all of its images."""

    ticket: Ticket
    size: Size
    guidance: float
    prompt: Tokens
    negative: Tokens | None  # None: no unconditional row, or one that needs no text
    guided: bool  # whether each image has an unconditional row
    prompt_tokens: int  # of both texts, as far as the caller wrote them
    output: Output
    source: Source | None = None
    jobs: "list[ImageJob]" = field(default_factory=list)
    conditional: Conditioning | None = None
    unconditional: Conditioning | None = None
    left: int = 0  # images that were not delivered yet
    gone: bool = False  # it has ended, in whatever way: what still comes of it is dropped
    prepared: float = 0.0  # monotonic seconds, as below
    started: float = 0.0

    @property
    def id(self) -> str:
        return self.ticket.id

    @property
    def texts(self) -> list[Tokens]:
        return [self.prompt] if self.negative is None else [self.prompt, self.negative]

    def done(self, now: float) -> Done:
        received = self.ticket.received
        timing = Timing(
            prepare=self.prepared - received,
            queue=self.started - self.prepared,
            compute=now - self.started,
            total=now - received,
        )
        return Done(self.id, Usage(prompt_tokens=self.prompt_tokens), timing)


@dataclass(slots=True, eq=False)
class ImageJob:
    """An image on its way. It owns its noise scheduler and its generator: nobody else's steps can reach them."""

    order: Order
    index: int  # among the request's images
    seed: int
    noise: NoiseScheduler
    generator: torch.Generator
    brief: bool = False  # it has few steps, and is interactive
    at: int = 0  # steps that are done
    latents: torch.Tensor | None = None  # [1, C, h, w] float32; None until the texts are encoded
    aim: torch.Tensor | None = None  # the clean latents that the last step was aimed at
    clean: torch.Tensor | None = None  # of the source, where a mask keeps some of it
    drawn: torch.Tensor | None = None  # the noise that it got
    number: int = 0  # in order of arrival
    service: float = 0.0  # latents that it has had denoised, weighted, on the scale of the queue's clock

    @property
    def ticket(self) -> Ticket:
        return self.order.ticket

    @property
    def prompt_tokens(self) -> int:
        return self.order.prompt_tokens if self.index == 0 else 0

    @property
    def rows(self) -> int:
        """Of a denoiser call."""
        return 2 if self.order.guided else 1

    @property
    def work(self) -> int:
        """Latents in its rows of one step."""
        assert self.latents is not None
        return self.rows * self.latents.shape[-1] * self.latents.shape[-2]

    @property
    def finished(self) -> bool:
        return self.at >= self.noise.steps

    def previews_due(self) -> range:
        """Numbers of the previews that the step just done has: all of them come, also where steps are fewer."""
        wanted, steps = self.order.output.previews, self.noise.steps

        def told(step: int) -> int:
            """How many there are after so many steps: number k comes with step ceil((k + 1) · steps / (wanted + 1))."""
            return min(wanted, step * (wanted + 1) // steps)

        return range(told(self.at - 1), told(self.at))
