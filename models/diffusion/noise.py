"""Noise schedulers: which there are by name, and one for each image, since they keep state from step to step."""

import inspect
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from models.diffusion.checkpoint import Checkpoint
from models.errors import ModelLoadError

# Name in a request -> class of diffusers and what is set beside the model's own betas, spacing and prediction type.
NAMED: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "ddim": ("DDIMScheduler", {}),
    "euler": ("EulerDiscreteScheduler", {"use_karras_sigmas": False}),
    "euler_a": ("EulerAncestralDiscreteScheduler", {}),
    "dpmpp_2m": ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver++", "use_karras_sigmas": False}),
    "dpmpp_2m_karras": ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver++", "use_karras_sigmas": True}),
    "unipc": ("UniPCMultistepScheduler", {}),
    "lcm": ("LCMScheduler", {}),
    "flow_match_euler": ("FlowMatchEulerDiscreteScheduler", {}),
}
FLOW = "FlowMatchEulerDiscreteScheduler"

# Cosine betas end with a signal-to-noise ratio of about 0, where the solver's exponential steps lose all precision.
LAMBDA_MIN = -5.1


class UnknownScheduler(ValueError):
    """No such name, or none that fits the model."""


@dataclass(slots=True, eq=False)
class NoiseScheduler:
    """One image's: the order of its timesteps, and what the solver remembers. Works on latents [1, C, h, w]."""

    scheduler: Any
    timesteps: torch.Tensor  # [steps], those that are left to do at the start
    stochastic: bool  # whether a step takes a generator
    flow: bool

    @property
    def steps(self) -> int:
        return len(self.timesteps)

    @property
    def initial_scale(self) -> float:
        """What pure noise is multiplied by before the first step."""
        return 1.0 if self.flow else float(self.scheduler.init_noise_sigma)

    def scale(self, latents: torch.Tensor, at: int) -> torch.Tensor:
        """Latents as the denoiser reads them before step `at`."""
        if self.flow:
            return latents
        scaled: torch.Tensor = self.scheduler.scale_model_input(latents, self.timesteps[at])
        return scaled

    def add_noise(self, clean: torch.Tensor, noise: torch.Tensor, at: int) -> torch.Tensor:
        """Clean latents with as much noise as there is before step `at`."""
        noisy: torch.Tensor = self.scheduler.add_noise(clean, noise, self.timesteps[at : at + 1])
        return noisy

    def step(
        self, output: torch.Tensor, at: int, latents: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents after step `at`, and the clean ones that the step was aimed at."""
        extra = {"generator": generator} if self.stochastic else {}
        result = self.scheduler.step(output, self.timesteps[at], latents, **extra)
        return result.prev_sample, self._aim(result, output, latents)

    def _aim(self, result: Any, output: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        for name in ("pred_original_sample", "denoised"):
            aim: torch.Tensor | None = getattr(result, name, None)
            if aim is not None:
                return aim
        if self.flow:
            sigma = float(self.scheduler.sigmas[self.scheduler.step_index - 1])
            return latents - sigma * output
        history = getattr(self.scheduler, "model_outputs", None)  # solvers of data prediction keep just that
        if history and history[-1] is not None:
            last: torch.Tensor = history[-1]
            return last
        after: torch.Tensor = result.prev_sample
        return after


class NoiseSchedulers:
    """Makes a model's noise schedulers. Any thread may ask for one: nothing is shared between two of them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises ModelLoadError."""
        import diffusers

        name = checkpoint.class_name("scheduler")
        found = getattr(diffusers, name, None)
        if not name or not isinstance(found, type) or not issubclass(found, diffusers.SchedulerMixin):
            raise ModelLoadError(f"{checkpoint.folder}: the scheduler {name or '(none)'} is none of diffusers")
        self._lock = threading.Lock()  # of the process's warning filters
        kind: Any = found
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._own: Any = kind.from_pretrained(checkpoint.folder / "scheduler")
        except (OSError, ValueError, TypeError) as error:
            raise ModelLoadError(f"{checkpoint.folder / 'scheduler'} can't be loaded: {error}") from error
        self._classes: dict[str, Any] = {key: getattr(diffusers, named) for key, (named, _) in NAMED.items()}
        self.class_name = name
        self.flow = name.startswith("FlowMatch")
        self.names = tuple(key for key, (named, _) in NAMED.items() if (named == FLOW) == self.flow)

    def new(self, name: str | None, steps: int, *, skip: int = 0, tokens: int = 0) -> NoiseScheduler:
        """A scheduler of `steps` steps without the first `skip`. None: the model's own.

        `tokens`: how many a transformer makes of the latents, which a flow's shift depends on. Raises UnknownScheduler,
        and ValueError where a scheduler can't do so many steps.
        """
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how diffusers turns tensors into arrays is not ours to mend
            scheduler = self._make(name)
            if self.flow:
                scheduler.set_timesteps(**self._flow(scheduler.config, steps, tokens))
            else:
                scheduler.set_timesteps(steps)
        order = int(getattr(scheduler, "order", 1))
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(skip * order)
        stochastic = "generator" in inspect.signature(scheduler.step).parameters
        return NoiseScheduler(scheduler, scheduler.timesteps[skip * order :], stochastic, self.flow)

    def _make(self, name: str | None) -> Any:
        if name is None:
            return type(self._own).from_config(self._own.config)
        if name not in NAMED:
            raise UnknownScheduler(f"there is no scheduler {name!r}; this model takes {', '.join(self.names)}")
        if name not in self.names:
            raise UnknownScheduler(f"{name} does not fit this model, which takes {', '.join(self.names)}")
        _, settings = NAMED[name]
        if name.startswith("dpmpp") and self._own.config.get("beta_schedule") == "squaredcos_cap_v2":
            settings = {**settings, "lambda_min_clipped": LAMBDA_MIN}
        return self._classes[name].from_config(self._own.config, **settings)

    def _flow(self, config: Mapping[str, Any], steps: int, tokens: int) -> dict[str, Any]:
        """Evenly spaced sigmas, shifted by the number of tokens as Flux's authors do (`calculate_shift`)."""
        first, last = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
        low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
        mu = low + (high - low) / (last - first) * (tokens - first)
        if config.get("use_flow_sigmas"):
            return {"num_inference_steps": steps, "mu": mu}
        return {"sigmas": np.linspace(1.0, 1 / steps, steps), "mu": mu}
