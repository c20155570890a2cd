"""Embedding checkpoints as torch modules that end in unit vectors, for the exporter. Never imported by a server.

Everything between token ids or pixels and the finished vector is in the graph, so the process that serves it has
neither torch nor the model's code. Pooling and normalisation are in float32 whatever the encoder's type is.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from models.embedder.embedder_config import EmbedderConfig, Pooling
from models.errors import ModelLoadError

ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "Sigmoid": nn.Sigmoid,
}


class TextModule(nn.Module):
    """ids and mask [rows, length] -> unit vectors [rows, dimensions]."""

    def __init__(self, encoder: nn.Module, pooling: Pooling, dense: nn.Sequential) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.dense = dense

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.float()
        return unit(self.dense(pooled(states, attention_mask, self.pooling)))


class ScoreModule(nn.Module):
    """ids and mask [rows, length] of text pairs -> relevance in 0…1, [rows, 1]."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return torch.sigmoid(self.classifier(input_ids=input_ids, attention_mask=attention_mask).logits.float())


class TypedScoreModule(ScoreModule):
    """The same for an encoder that has to be told which token belongs to which text."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:  # type: ignore[override]
        output = self.classifier(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return torch.sigmoid(output.logits.float())


class ContrastiveText(nn.Module):
    """ids [rows, length] -> unit vectors in the space that texts and images share.

    There is no mask: CLIP's text encoder is causal and pools at the end token, so what follows it is not seen; SigLIP
    reads its padding as it was trained to.
    """

    def __init__(self, encoder: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection

    def forward(self, input_ids: Tensor) -> Tensor:
        return unit(self.projection(self.encoder(input_ids=input_ids).pooler_output).float())


class ContrastiveImage(nn.Module):
    """pixels [rows, 3, height, width] float32 -> unit vectors in the same space."""

    def __init__(self, encoder: nn.Module, projection: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection
        self.dtype = dtype

    def forward(self, pixel_values: Tensor) -> Tensor:
        return unit(self.projection(self.encoder(pixel_values=pixel_values.to(self.dtype)).pooler_output).float())


def pooled(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Token states [rows, length, hidden] -> [rows, hidden], padding left out (https://arxiv.org/abs/1908.10084)."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    match pooling:
        case "mean":
            return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        case "mean_sqrt_len_tokens":
            return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9).sqrt()
        case "max":
            return states.masked_fill(weights == 0, torch.finfo(states.dtype).min).amax(1)
        case "cls":
            return states[:, 0]
        case "lasttoken":
            last = (mask.sum(1) - 1).clamp(min=0)
            return states.gather(1, last.view(-1, 1, 1).expand(-1, 1, states.shape[-1])).squeeze(1)


def unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)


def build(path: Path, config: EmbedderConfig, *, dtype: torch.dtype) -> dict[str, nn.Module]:
    """The graphs of a checkpoint, by name: "text", and "image" where it has a second tower. Raises ModelLoadError."""
    # torch's own attention is what the exporter turns into one operator.
    options = {"dtype": dtype, "attn_implementation": "sdpa", "local_files_only": True}
    try:
        match config.family:
            case "text":
                encoder = transformers.AutoModel.from_pretrained(path, **options).eval()
                return {"text": TextModule(encoder, config.pooling, dense_layers(path, config.dense)).eval()}
            case "cross_encoder":
                classifier = transformers.AutoModelForSequenceClassification.from_pretrained(path, **options).eval()
                return {"text": (TypedScoreModule if config.token_types else ScoreModule)(classifier).eval()}
            case "clip" | "siglip":
                both = transformers.AutoModel.from_pretrained(path, **options).eval()
                clip = config.family == "clip"
                text = ContrastiveText(both.text_model, both.text_projection if clip else nn.Identity())
                image = ContrastiveImage(both.vision_model, both.visual_projection if clip else nn.Identity(), dtype)
                return {"text": text.eval(), "image": image.eval()}
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise ModelLoadError(f"{path.name} could not be loaded by transformers: {error}") from error


def dense_layers(path: Path, folders: tuple[str, ...]) -> nn.Sequential:
    """sentence-transformers' dense modules, in float32."""
    layers: list[nn.Module] = []
    for folder in folders:
        config = json.loads((path / folder / "config.json").read_text(encoding="utf-8"))
        activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
        if activation not in ACTIVATIONS:
            raise ModelLoadError(f"{path.name}: the activation {activation} of a dense layer is not supported")
        linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
        linear.load_state_dict({key.removeprefix("linear."): value for key, value in dense_weights(path / folder)})
        layers += [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def dense_weights(folder: Path) -> list[tuple[str, Tensor]]:
    if (folder / "model.safetensors").is_file():
        state = load_file(folder / "model.safetensors")
    else:
        state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return [(key, value.float()) for key, value in state.items()]
