"""The half that sees: transformers' Idefics3 vision transformer and connector, built without a language model."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from scripts.training.vision import EDGE

HIDDEN = 576  # of the language model
ROWS = 16  # of a picture, which the language model reads as tokens
SHUFFLE = 2
VISION = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": EDGE,
    "patch_size": 8,
}
# The reserved tokens of the language model's vocabulary that stand around a picture and for it. No embedding is new.
AROUND, GLOBAL, IMAGE = "<jupyter_start>", "<jupyter_output>", "<empty_output>"


def describe() -> Any:
    from transformers import Idefics3Config

    config = Idefics3Config(
        vision_config=VISION,
        text_config={"model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": 9},
        scale_factor=SHUFFLE,
    )
    config.vision_config._attn_implementation = "eager"  # backwards on a CPU, at 64 patches, faster than the fused one
    return config


class Tower(nn.Module):
    """Pictures to rows, as Idefics3ForConditionalGeneration's `get_image_features` gives them."""

    def __init__(self) -> None:
        from transformers.models.idefics3.modeling_idefics3 import Idefics3Connector, Idefics3VisionTransformer

        super().__init__()
        config = describe()
        self.vision_model = Idefics3VisionTransformer(config.vision_config)
        self.connector = Idefics3Connector(config)

    def forward(self, signal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, 3, 64, 64] in -1…1 → ([n, 64, 256] of the patches, [n, 16, 576] rows)."""
        patches = self.vision_model(pixel_values=signal).last_hidden_state
        return patches, self.connector(patches)


def to_signal(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """[n, 64, 64, 3] → [n, 3, 64, 64] in -1…1, as the image processor gives it."""
    return torch.from_numpy(np.array(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def start(tower: Tower, sample: torch.Tensor) -> None:
    """Begin where little is to be learned: patches whitened, places as waves. `sample`: [n, 3, 64, 64]."""
    embeddings = tower.vision_model.embeddings
    kernel = embeddings.patch_embedding.weight  # [256, 3, 8, 8]
    width, edge = kernel.shape[0], kernel.shape[-1]
    patches = sample.unfold(2, edge, edge).unfold(3, edge, edge).permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)
    centred = patches - patches.mean(dim=0)
    values, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
    strongest = values.flip(0).clamp(min=1e-3).rsqrt().unsqueeze(1) * axes.flip(1).T  # [192, 192]
    count = 96  # of the directions, each with both its signs
    kernel.copy_(torch.cat([strongest[:count], -strongest[:count], strongest[:64]])[:width].view_as(kernel) * 0.5)
    embeddings.patch_embedding.bias.copy_(-(kernel.flatten(1) @ patches.mean(dim=0)))
    side = embeddings.num_patches_per_side
    steps = torch.arange(side).float() / side
    waves = 2 ** torch.linspace(0, 4, width // 4)
    turned = steps.unsqueeze(1) * waves * torch.pi / 2
    line = torch.cat([turned.sin(), turned.cos()], dim=1)  # [side, 128]
    grid = torch.cat([line.unsqueeze(1).expand(-1, side, -1), line.unsqueeze(0).expand(side, -1, -1)], dim=2)
    embeddings.position_embedding.weight.copy_(0.3 * grid.reshape(side * side, width))


def parameters(tower: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(matrices inside, which Muon takes; all others)."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, value in tower.named_parameters():
        inside = value.ndim == 2 and ("layers" in name or "proj" in name)
        (matrices if inside else others).append(value)
    return matrices, others
