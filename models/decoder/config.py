"""What a decoder-only transformer is made of, read from its description."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.decoder.families.family import Family
from models.decoder.families.layout import Layout, Part, TensorKey
from models.decoder.families.listed import decoder_of, of_class, vision_form
from models.decoder.families.vision import VisionForm
from models.decoder.frequencies import Rope
from models.decoder.layers import LayerSpec, layers_of
from models.errors import ModelLoadError, require
from models.files.fields import MOST_EPSILON, MOST_HEAD_DIM, MOST_HEADS, MOST_TOKENS, MOST_WIDTH, Fields

Activation = Literal["silu", "gelu_tanh"]

_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The switches of one decoder; `layers` has those that may differ from layer to layer."""

    architecture: str  # its family's name, for people
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerSpec, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    layout: Layout  # of its files
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over head_dim on q and k, before the rope
    activation: Activation = "silu"  # of the gate
    branch_norms: bool = False  # RMSNorm of what attention and MLP give, too, before it is added to the residual
    embedding_scale: float = 1.0

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def axes(self) -> int:
        """On which a row has a position, for the ropes; one where these have no axes of their own."""
        return 1 + max((axis for rope in self.ropes for axis in rope.axes), default=0)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Each once."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers))


def from_hf(config: Mapping[str, Any], tensors: Container[str] = ()) -> DecoderConfig:
    """The decoder described by a `config.json`. Raises ModelLoadError naming what is not supported, or no model's.

    `tensors`: the names of those in the files, which tell where these have the decoder of a model that sees.
    """
    outer = Fields(config, "config.json")
    architectures = outer.items("architectures", str, "texts")
    architecture, model_type = architectures[0] if architectures else None, outer.text("model_type", "none")
    form_of_whole = vision_form(architecture, model_type)
    if form_of_whole is not None:
        return _beside_an_encoder(form_of_whole, config, tensors)
    family, form = of_class(architecture, model_type)
    named = model_type if architecture is None else architecture
    return described(Fields({**family.defaults, **config}, f"config.json of {named}"), family, form.layout, named)


def _beside_an_encoder(whole: VisionForm, config: Mapping[str, Any], tensors: Container[str]) -> DecoderConfig:
    """Of a model that sees. Older descriptions of some have the decoder's keys beside their own."""
    named = whole.architecture
    outer = Fields(config, f"config.json of {named}")
    text = outer.table("text_config")
    family, form = decoder_of(whole, outer.within(text or {}).text("model_type", whole.model_type))
    layouts = [form.layout.at(place) for place in whole.places]
    embedding, head = TensorKey(Part.EMBEDDING), TensorKey(Part.HEAD)
    layout = next((each for each in layouts if each.name(embedding) in tensors), layouts[0])
    described_by = {**family.text_defaults, **text} if text else config
    fields = outer.within({**family.defaults, **described_by})
    decoder = described(fields, family, layout, named)
    # Some say of the whole that it is tied, some of the decoder; and files of either have had a head all the same.
    tied = decoder.tie_word_embeddings or outer.boolean("tie_word_embeddings")
    return replace(decoder, tie_word_embeddings=tied and layout.name(head) not in tensors)


def described(
    fields: Fields,
    family: Family,
    layout: Layout,
    named: str,
    *,
    rope_factors: tuple[float, ...] | None = None,
) -> DecoderConfig:
    """The decoder of a family that `fields` describe, by the keys of `config.json`.

    `named`: the architecture, for messages. `rope_factors`: see `layers_of`. Raises ModelLoadError.
    """
    _require_known_parts(fields, named)
    hidden_size = fields.integer("hidden_size", most=MOST_WIDTH)
    heads = fields.integer("num_attention_heads", most=MOST_HEADS)
    kv_heads = fields.integer("num_key_value_heads", heads, most=MOST_HEADS)
    head_dim = fields.maybe_integer("head_dim", most=MOST_HEAD_DIM) or hidden_size // heads
    _require_heads(fields, heads, kv_heads, head_dim)
    layers = layers_of(fields, family, head_dim=head_dim, named=named, rope_factors=rope_factors)
    contexts = [layer.rope.context for layer in layers if layer.rope.context is not None]
    attention_bias = fields.boolean("attention_bias")
    return DecoderConfig(
        architecture=family.name,
        vocab_size=fields.integer("vocab_size", most=MOST_TOKENS),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", most=MOST_WIDTH),
        layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=min([fields.integer("max_position_embeddings"), *contexts]),
        rms_norm_eps=fields.number("rms_norm_eps", most=MOST_EPSILON),
        tie_word_embeddings=fields.boolean("tie_word_embeddings"),
        layout=layout,
        qkv_bias=family.qkv_bias or attention_bias,
        output_bias=attention_bias and not family.qkv_bias,
        mlp_bias=fields.boolean("mlp_bias"),
        qk_norm=family.qk_norm,
        activation=_ACTIVATIONS[_activation(fields)],
        branch_norms=family.branch_norms,
        embedding_scale=math.sqrt(hidden_size) if family.scaled_embedding else 1.0,
    )


def _activation(fields: Fields) -> str:
    return fields.text("hidden_activation", "") or fields.text("hidden_act", "") or "silu"


def _require_known_parts(fields: Fields, named: str) -> None:
    activation = _activation(fields)
    require(activation in _ACTIVATIONS, named, f"hidden_act={activation}")
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        require(not fields.get(name), named, f"{name}={fields.get(name)}")


def _require_heads(fields: Fields, heads: int, kv_heads: int, head_dim: int) -> None:
    """Queries share keys and values in whole groups, and a head's halves are turned against each other."""
    all_heads = f"{fields.name('num_attention_heads')} ({heads})"
    if heads % kv_heads:
        shared = f"{fields.name('num_key_value_heads')} ({kv_heads})"
        raise ModelLoadError(f"{fields.where}: {all_heads} is no multiple of {shared}")
    if head_dim < 2 or head_dim % 2:
        raise ModelLoadError(f"{fields.where}: heads of {head_dim} components, by {all_heads}")
