"""Turns a checkpoint's tensors into a decoder's weights, in the form that the operator asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.checkpoint import Checkpoint
from models.config import DecoderConfig
from models.errors import ModelLoadError
from models.linear import DenseLinear, Int4Linear, Int8Linear, Linear, ReorderedLinear, has_int4_kernel, packs_bf16
from models.native.library import Engine
from models.native.linear import NativeLinear, fits
from models.quantised import GROUP, Int4Weight, Int8Weight, Weight, concatenated, dense


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 · kv_heads) · head_dim
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    output: Linear  # heads · head_dim -> hidden
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 · intermediate
    down: Linear  # intermediate -> hidden


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Callable[[Tensor], Tensor]  # [rows] int64 -> [rows, hidden]
    layers: Sequence[LayerWeights]
    norm: Tensor  # [hidden]
    head: Linear  # hidden -> vocab


class LinearFactory:
    """Makes linears of one device and type.

    A quantised form that has no kernel for the device, type or shape is held dense instead.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        *,
        quantization: str | None,
        dense_prefill: bool,
        engine: Engine | None = None,
    ) -> None:
        """`dense_prefill`: keep a dense copy of quantised weights where the processor multiplies in bfloat16.
        `engine`: of the native library, for quantised weights on a CPU; None: torch's kernels.

        Raises ModelLoadError for combinations that have no kernel at all.
        """
        if quantization not in (None, "int8", "int4"):
            raise ModelLoadError(f"quantization {quantization!r} is not supported (int8, int4)")
        if quantization is not None and dtype != torch.bfloat16:
            raise ModelLoadError(f"quantization {quantization} needs dtype bfloat16")
        if quantization == "int8" and device.type != "cpu":
            raise ModelLoadError("quantization int8 runs on a CPU only; use int4, or none, on CUDA")
        self.dtype = dtype
        self.device = device
        self.engine = engine if device.type == "cpu" and dtype == torch.bfloat16 else None
        self._quantization = quantization
        self._dense_prefill = dense_prefill and device.type == "cpu" and packs_bf16()
        # Quantised forms that have kernels for the device and type.
        self.forms: tuple[type[Int8Weight] | type[Int4Weight], ...] = ()
        if dtype == torch.bfloat16:
            int8 = (Int8Weight,) if device.type == "cpu" else ()
            self.forms = (*int8, Int4Weight) if has_int4_kernel(16, GROUP, device) else int8

    def linear(self, weights: Sequence[Weight], biases: Sequence[Weight] = ()) -> Linear:
        """Weights that share their input become one linear, outputs side by side."""
        bias = torch.cat([dense(each) for each in biases]).to(self.device, self.dtype) if biases else None
        formed = self._alike([self._form(weight, self._quantization) for weight in weights])
        return self._made(concatenated(formed), bias, dense_copy=self._dense_prefill)

    def head(self, weight: Weight) -> Linear:
        """The output head: int8 where the rest becomes int4. No copy for prefill, which wants one row of it."""
        kept = self.device.type != "cpu" or (self._quantization == "int4" and isinstance(weight, Int4Weight))
        return self._made(self._form(weight, "int8" if self._quantization and not kept else None))

    def embedding(self, weight: Weight) -> Callable[[Tensor], Tensor]:
        """[rows] int64 -> [rows, hidden]; quantised rows are expanded when they are looked up."""
        if isinstance(weight, Tensor):
            table = weight.to(self.device, self.dtype)
            return lambda ids: table.index_select(0, ids)
        if self.device.type != "cpu":
            return self.embedding(weight.dense())
        if isinstance(weight, Int8Weight):
            codes, scale = weight.codes, weight.scale.to(self.dtype).unsqueeze(1)
            return lambda ids: codes.index_select(0, ids) * scale.index_select(0, ids)
        return lambda ids: weight.rows(ids).dense().to(self.dtype)

    def vector(self, weight: Weight) -> Tensor:
        return dense(weight).to(self.device, self.dtype)

    def _form(self, weight: Weight, wanted: str | None) -> Weight:
        """`wanted`, or as stored."""
        if wanted == "int8" and not isinstance(weight, Int8Weight):
            return Int8Weight.quantise(dense(weight))
        if wanted == "int4" and not isinstance(weight, Int4Weight) and _grouped(weight):
            return Int4Weight.quantise(dense(weight))
        return weight

    def _alike(self, weights: list[Weight]) -> list[Weight]:
        """A product takes one form: int4 beside int8 becomes int8, which loses least, where that is not held dense."""
        if {type(weight) for weight in weights} != {Int4Weight, Int8Weight} or Int8Weight not in self.forms:
            return weights
        return [self._form(weight, "int8") for weight in weights]

    def _made(self, weight: Weight, bias: Tensor | None = None, *, dense_copy: bool = False) -> Linear:
        made = None if isinstance(weight, Tensor) else self._quantised(weight, bias, dense_copy)
        return made or DenseLinear(dense(weight).to(self.device, self.dtype), bias)

    def _quantised(self, weight: Int8Weight | Int4Weight, bias: Tensor | None, dense_copy: bool) -> Linear | None:
        """None: no kernel takes such a weight here."""

        def copy() -> DenseLinear | None:
            return DenseLinear(weight.dense().to(self.dtype), bias) if dense_copy else None

        if isinstance(weight, Int4Weight) and weight.order is not None:
            inner = self._quantised(weight.columns_as_stored(), bias, dense_copy)
            return inner and ReorderedLinear(inner, weight.order.to(self.device))
        if type(weight) not in self.forms:
            return None
        if self.engine and fits(self.engine, weight):
            return NativeLinear(self.engine, weight, bias, copy())
        if isinstance(weight, Int8Weight):
            return Int8Linear(weight, bias, copy())
        rows, columns = weight.codes.shape
        if not has_int4_kernel(rows, columns, self.device):
            return None
        return Int4Linear(weight.to(self.device), bias, copy())


def _grouped(weight: Tensor | Int8Weight) -> bool:
    columns = weight.shape[1] if isinstance(weight, Tensor) else weight.codes.shape[1]
    return columns % GROUP == 0


def build_weights(config: DecoderConfig, checkpoint: Checkpoint, factory: LinearFactory) -> DecoderWeights:
    """Raises ModelLoadError where a tensor is missing, or of another shape than the config says."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def checked(name: str, *expected: int) -> Weight:
        weight = checkpoint.weight(name)
        shape = tuple(weight.shape if isinstance(weight, Tensor) else weight.codes.shape)
        if shape != expected:
            raise ModelLoadError(f"{name} is {shape}, where the model's config says {expected}")
        return weight

    def norm(name: str, size: int = hidden) -> Tensor:
        return factory.vector(checked(f"{name}.weight", size))

    def linear(prefix: str, rows: Mapping[str, int], columns: int, bias: bool) -> Linear:
        """Those of `rows` (name -> outputs) share the input of `columns`."""
        weights = [checked(f"{prefix}.{name}.weight", count, columns) for name, count in rows.items()]
        biases = [checked(f"{prefix}.{name}.bias", count) for name, count in rows.items()] if bias else []
        return factory.linear(weights, biases)

    def qk_norm(attention: str) -> Tensor:
        """[heads + kv_heads, head_dim]"""
        of_query, of_key = (norm(f"{attention}.{name}", config.head_dim) for name in ("q_norm", "k_norm"))
        return torch.cat((of_query.expand(config.num_heads, -1), of_key.expand(config.num_kv_heads, -1)))

    def layer(index: int) -> LayerWeights:
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            attention_norm=norm(f"{prefix}.input_layernorm"),
            qkv=linear(attention, {"q_proj": query, "k_proj": key, "v_proj": key}, hidden, config.qkv_bias),
            qk_norm=qk_norm(attention) if config.qk_norm else None,
            output=linear(attention, {"o_proj": hidden}, query, config.output_bias),
            mlp_norm=norm(f"{prefix}.post_attention_layernorm"),
            gate_up=linear(mlp, {"gate_proj": intermediate, "up_proj": intermediate}, hidden, config.mlp_bias),
            down=linear(mlp, {"down_proj": hidden}, intermediate, config.mlp_bias),
        )

    embedding = checked("model.embed_tokens.weight", config.vocab_size, hidden)
    tied = config.tie_word_embeddings
    return DecoderWeights(
        embedding=factory.embedding(embedding),
        layers=[layer(index) for index in range(config.num_layers)],
        norm=norm("model.norm"),
        head=factory.head(embedding if tied else checked("lm_head.weight", config.vocab_size, hidden)),
    )
