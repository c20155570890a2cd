"""A decoder's tensors by what they are for, and what files call them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple


class Part(Enum):
    """What a tensor is for."""

    EMBEDDING = auto()  # [vocab, hidden]
    NORM = auto()  # [hidden], before the head
    HEAD = auto()  # [vocab, hidden]
    # Of each layer
    ATTENTION_NORM = auto()  # [hidden], before attention
    Q = auto()  # [heads · head_dim, hidden]
    K = auto()  # [kv_heads · head_dim, hidden]
    V = auto()  # [kv_heads · head_dim, hidden]
    QKV = auto()  # these three as one
    Q_NORM = auto()  # [head_dim]
    K_NORM = auto()  # [head_dim]
    OUTPUT = auto()  # [hidden, heads · head_dim], of attention
    OUTPUT_NORM = auto()  # [hidden], of what attention gives
    MLP_NORM = auto()  # [hidden], before the MLP
    GATE = auto()  # [intermediate, hidden]
    UP = auto()  # [intermediate, hidden]
    GATE_UP = auto()  # these two as one
    DOWN = auto()  # [hidden, intermediate]
    DOWN_NORM = auto()  # [hidden], of what the MLP gives


class TensorKey(NamedTuple):
    """One tensor of a decoder: the weight of a part, or its bias."""

    part: Part
    layer: int | None = None  # None: of no layer
    bias: bool = False


Names = Mapping[Part, str]  # without ".weight" and ".bias"; {} is the layer's index

# As transformers' Llama has them, and most models after it.
HF_NAMES: Names = {
    Part.EMBEDDING: "model.embed_tokens",
    Part.NORM: "model.norm",
    Part.HEAD: "lm_head",
    Part.ATTENTION_NORM: "model.layers.{}.input_layernorm",
    Part.Q: "model.layers.{}.self_attn.q_proj",
    Part.K: "model.layers.{}.self_attn.k_proj",
    Part.V: "model.layers.{}.self_attn.v_proj",
    Part.Q_NORM: "model.layers.{}.self_attn.q_norm",
    Part.K_NORM: "model.layers.{}.self_attn.k_norm",
    Part.OUTPUT: "model.layers.{}.self_attn.o_proj",
    Part.MLP_NORM: "model.layers.{}.post_attention_layernorm",
    Part.GATE: "model.layers.{}.mlp.gate_proj",
    Part.UP: "model.layers.{}.mlp.up_proj",
    Part.DOWN: "model.layers.{}.mlp.down_proj",
}

# As GGUF's specification has them (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
GGUF_NAMES: Names = {
    Part.EMBEDDING: "token_embd",
    Part.NORM: "output_norm",
    Part.HEAD: "output",
    Part.ATTENTION_NORM: "blk.{}.attn_norm",
    Part.Q: "blk.{}.attn_q",
    Part.K: "blk.{}.attn_k",
    Part.V: "blk.{}.attn_v",
    Part.Q_NORM: "blk.{}.attn_q_norm",
    Part.K_NORM: "blk.{}.attn_k_norm",
    Part.OUTPUT: "blk.{}.attn_output",
    Part.MLP_NORM: "blk.{}.ffn_norm",
    Part.GATE: "blk.{}.ffn_gate",
    Part.UP: "blk.{}.ffn_up",
    Part.DOWN: "blk.{}.ffn_down",
}


_BODY = "model."  # what names of a decoder that is a model of its own begin with in transformers, but for the head's


class Place(NamedTuple):
    """Where a model that has other parts beside its decoder has the decoder."""

    body: str  # in place of what the names of its tensors begin with, but for the head's
    head: str = ""  # before the head's


ALONE = Place(_BODY)


@dataclass(frozen=True, slots=True)
class Layout:
    """How files of one form hold a family's tensors. Where `names` has one for QKV, or GATE_UP, these are stored as
    one."""

    names: Names
    # A head's rows of q and k are stored for a rope that turns neighbours; ours turns its first half against its second
    interleaved: bool = False
    norm_offset: float = 0.0  # what norms over the hidden size, and of q and k, add to their stored weights

    def name(self, key: TensorKey) -> str:
        stem = self.names[key.part].format(key.layer)
        return f"{stem}.{'bias' if key.bias else 'weight'}"

    def at(self, place: Place) -> "Layout":
        def moved(name: str) -> str:
            inside = name.removeprefix(_BODY)
            return f"{place.head}{name}" if inside == name else f"{place.body}{inside}"

        return replace(self, names={part: moved(name) for part, name in self.names.items()})

    @property
    def qkv(self) -> tuple[Part, ...]:
        """The tensors that q, k and v are stored in."""
        return (Part.QKV,) if Part.QKV in self.names else (Part.Q, Part.K, Part.V)

    @property
    def gate_up(self) -> tuple[Part, ...]:
        """The tensors that the MLP's gate and its other input projection are stored in."""
        return (Part.GATE_UP,) if Part.GATE_UP in self.names else (Part.GATE, Part.UP)


HF_LAYOUT, GGUF_LAYOUT = Layout(HF_NAMES), Layout(GGUF_NAMES)
