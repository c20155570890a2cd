"""Turns a checkpoint's tensors into a decoder's weights, in the form that the operator asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.decoder.config import DecoderConfig
from models.decoder.families.layout import Part, TensorKey
from models.decoder.native.library import Engine
from models.decoder.native.linear import NativeLinear, fits
from models.decoder.tensors import Order, component_order, row_order, tensor_shapes
from models.decoder.weights.checkpoint import Checkpoint
from models.decoder.weights.linear import (
    DenseLinear,
    Int4Linear,
    Int8Linear,
    Linear,
    ReorderedLinear,
    dense_copy,
    has_int4_kernel,
)
from models.decoder.weights.quantised import GROUP, Int4Weight, Int8Weight, Weight, concatenated, dense
from models.decoder.weights.weight_checks import require_weights
from models.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 · kv_heads) · head_dim
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    output: Linear  # heads · head_dim -> hidden
    output_norm: Tensor | None  # [hidden]
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 · intermediate
    down: Linear  # intermediate -> hidden
    down_norm: Tensor | None  # [hidden]


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
        dense_prefill: bool | None,
        engine: Engine | None = None,
    ) -> None:
        """`dense_prefill`: keep a dense copy of quantised weights, in bfloat16 where the processor multiplies in it and
        in float32 where it doesn't; None: on a CPU. `engine`: of the native library, for quantised weights on a CPU;
        None: torch's kernels.

        Raises ModelLoadError for combinations that have no kernel at all.
        """
        if quantization not in (None, "int8", "int4"):
            raise ModelLoadError(f"quantization {quantization!r} is not supported (int8, int4)")
        if quantization is not None and dtype != torch.bfloat16:
            raise ModelLoadError(f"quantization {quantization} needs dtype bfloat16")
        if quantization == "int8" and device.type != "cpu":
            raise ModelLoadError("quantization int8 runs on a CPU only; use int4, or none, on CUDA")
        if dense_prefill and device.type != "cpu":
            raise ModelLoadError("dense_prefill is for models on a CPU: on CUDA prompts run on the weights as they are")
        self.dtype = dtype
        self.device = device
        self.engine = engine if device.type == "cpu" and dtype == torch.bfloat16 else None
        self._quantization = quantization
        self._dense_prefill = dense_prefill is not False and device.type == "cpu"
        # Quantised forms that have kernels for the device and type.
        self.forms: tuple[type[Int8Weight] | type[Int4Weight], ...] = ()
        if dtype == torch.bfloat16:
            int8 = (Int8Weight,) if device.type == "cpu" else ()
            self.forms = (*int8, Int4Weight) if has_int4_kernel(16, GROUP, device) else int8

    def linear(self, weights: Sequence[Weight], biases: Sequence[Weight] = ()) -> Linear:
        """Weights that share their input become one linear, outputs side by side."""
        bias = torch.cat([dense(each) for each in biases]).to(self.device, self.dtype) if biases else None
        formed = self._alike([self._form(weight, self._quantization) for weight in weights])
        return self._made(concatenated(formed), bias, dense_prefill=self._dense_prefill)

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

    def _made(self, weight: Weight, bias: Tensor | None = None, *, dense_prefill: bool = False) -> Linear:
        made = None if isinstance(weight, Tensor) else self._quantised(weight, bias, dense_prefill)
        return made or DenseLinear(dense(weight).to(self.device, self.dtype), bias)

    def _quantised(self, weight: Int8Weight | Int4Weight, bias: Tensor | None, dense_prefill: bool) -> Linear | None:
        """None: no kernel takes such a weight here."""

        def copy() -> DenseLinear | None:
            return dense_copy(weight.dense(), bias) if dense_prefill else None

        if isinstance(weight, Int4Weight) and weight.order is not None:
            inner = self._quantised(weight.columns_as_stored(), bias, dense_prefill)
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
    """Raises ModelLoadError where a tensor is missing, of another shape than the config says, or no weights at all."""
    checkpoint.require(config)
    shapes, layout = dict(tensor_shapes(config)), config.layout

    def checked(key: TensorKey) -> Weight:
        """Its rows in our order."""
        name, weight = layout.name(key), checkpoint.weight(layout.name(key))
        shape = tuple(weight.shape if isinstance(weight, Tensor) else weight.codes.shape)
        if shape != shapes[key]:
            raise ModelLoadError(f"{name} is {shape}, where the model's config says {shapes[key]}")
        require_weights(name, weight, zeros=key.part not in (Part.EMBEDDING, Part.HEAD))
        return _ordered(weight, row_order(config, key))

    def norm(part: Part, layer: int | None = None) -> Tensor:
        stored = checked(TensorKey(part, layer))
        return factory.vector(dense(stored).float() + layout.norm_offset if layout.norm_offset else stored)

    def linear(layer: int, parts: Sequence[Part], bias: bool) -> Linear:
        """Those of `parts` share their input."""
        weights = [checked(TensorKey(part, layer)) for part in parts]
        return factory.linear(weights, [checked(TensorKey(part, layer, bias=True)) for part in parts if bias])

    def qk_norm(layer: int) -> Tensor:
        """[heads + kv_heads, head_dim]"""
        order = component_order(config, layer)
        of_query, of_key = (norm(part, layer) for part in (Part.Q_NORM, Part.K_NORM))
        if order is not None:
            of_query, of_key = (each[torch.from_numpy(order).to(factory.device)] for each in (of_query, of_key))
        return torch.cat((of_query.expand(config.num_heads, -1), of_key.expand(config.num_kv_heads, -1)))

    def layer_weights(layer: int) -> LayerWeights:
        around = config.branch_norms
        return LayerWeights(
            attention_norm=norm(Part.ATTENTION_NORM, layer),
            qkv=linear(layer, layout.qkv, config.qkv_bias),
            qk_norm=qk_norm(layer) if config.qk_norm else None,
            output=linear(layer, (Part.OUTPUT,), config.output_bias),
            output_norm=norm(Part.OUTPUT_NORM, layer) if around else None,
            mlp_norm=norm(Part.MLP_NORM, layer),
            gate_up=linear(layer, layout.gate_up, config.mlp_bias),
            down=linear(layer, (Part.DOWN,), config.mlp_bias),
            down_norm=norm(Part.DOWN_NORM, layer) if around else None,
        )

    embedding = checked(TensorKey(Part.EMBEDDING))
    return DecoderWeights(
        embedding=factory.embedding(embedding),
        layers=[layer_weights(layer) for layer in range(config.num_layers)],
        norm=norm(Part.NORM),
        head=factory.head(embedding if config.tie_word_embeddings else checked(TensorKey(Part.HEAD))),
    )


def _ordered(weight: Weight, order: Order | None) -> Weight:
    if order is None:
        return weight
    rows = torch.from_numpy(order)
    return weight.index_select(0, rows) if isinstance(weight, Tensor) else weight.rows(rows)
