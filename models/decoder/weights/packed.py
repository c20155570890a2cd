"""Linears that a checkpoint stores as 4-bit codes, eight to a word; their codes are kept as they are.

All mean w = (q - z) · s, with a scale s and a zero point z for each group of inputs of an output:
  AWQ, "gemm" (https://github.com/casper-hansen/AutoAWQ): qweight [k, n / 8], eight outputs a word, interleaved;
      qzeros [groups, n / 8], packed as qweight is; scales [groups, n]
  GPTQ (https://github.com/ModelCloud/GPTQModel): qweight [k / 8, n], eight inputs a word; qzeros [groups, n / 8], eight
      outputs a word; scales [groups, n]; g_idx [k], an input's group
  compressed-tensors, "pack-quantized" (https://github.com/vllm-project/compressed-tensors): weight_packed [n, k / 8],
      eight inputs a word; weight_zero_point [n / 8, groups], eight outputs a word, or 8 where it is symmetric;
      weight_scale [n, groups]; weight_g_idx [k]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from models.decoder.weights.quantised import GROUP, Int4Weight
from models.errors import UPSTREAM, ModelLoadError
from models.files.fields import MOST_WIDTH, Fields

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of eight outputs in their word: AWQ packs them as 0, 2, 4, 6, 1, 3, 5, 7
_EIGHT_ONES = 0x11111111  # a one in each code of a word
_INDEX = {"awq": "g_idx", "gptq": "g_idx", "compressed-tensors": "weight_g_idx"}


class Tensors(Protocol):
    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Tensor:
        """Raises ModelLoadError where it is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Packing:
    """How a checkpoint stores its linears, those that it has not left dense."""

    method: Literal["awq", "gptq", "compressed-tensors"]
    group: int | None  # inputs that share a scale and a zero point; None: all of a linear
    zeros_less_one: bool = False  # GPTQ's first format
    symmetric: bool = False  # compressed-tensors' zero points are all 8, and not stored
    ordered: bool = False  # groups follow activations: that of each input has to be stored

    def packs(self, stem: str, tensors: Tensors) -> bool:
        """Whether the linear `stem` is packed."""
        return f"{stem}.{'weight_packed' if self.method == 'compressed-tensors' else 'qweight'}" in tensors

    def weight(self, stem: str, tensors: Tensors) -> Int4Weight:
        """The linear `stem`. Raises ModelLoadError naming the tensor that is missing, or is not as it should be."""
        match self.method:
            case "awq":
                codes, zeros, scale = self._awq(stem, tensors)
            case "gptq":
                codes, zeros, scale = self._gptq(stem, tensors)
            case "compressed-tensors":
                codes, zeros, scale = self._compressed(stem, tensors)
        outputs, inputs = codes.shape
        group = self.group or inputs
        shape = (outputs, -(-inputs // group))
        for name, found in ("scales", scale), ("zero points", zeros):
            if found.shape != shape:
                raise ModelLoadError(f"the {name} of {stem} are {tuple(found.shape)}, not {shape}")
        if inputs % GROUP:
            raise ModelLoadError(f"{stem} has {inputs} inputs, which is no multiple of {GROUP}; {UPSTREAM}")
        zero = (8 - zeros.float()) * scale  # exact, as are all values: a scale of 16 bits by an integer of 4
        scale, zero = (_spread(each, group // GROUP, inputs // GROUP) for each in (scale, zero))
        order = self._order(f"{stem}.{_INDEX[self.method]}", tensors, inputs)
        return Int4Weight(codes.contiguous() if order is None else codes[:, order], scale, zero, order)

    # Codes [n, k], zero points [n, groups], scales [n, groups] float32

    def _awq(self, stem: str, tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        codes = _columns(_words(tensors, f"{stem}.qweight"), _AWQ_PLACES)
        zeros = _columns(_words(tensors, f"{stem}.qzeros"), _AWQ_PLACES)
        return codes.t(), zeros.t(), _scales(tensors, f"{stem}.scales").t()

    def _gptq(self, stem: str, tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        codes, zeros = _rows(_words(tensors, f"{stem}.qweight")), _words(tensors, f"{stem}.qzeros")
        if self.zeros_less_one:
            zeros = zeros + _EIGHT_ONES  # it was taken from whole words: a zero point of 0 borrowed from the next
        return codes.t(), _columns(zeros).t(), _scales(tensors, f"{stem}.scales").t()

    def _compressed(self, stem: str, tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        codes = _columns(_words(tensors, f"{stem}.weight_packed"))
        scale = _scales(tensors, f"{stem}.weight_scale")
        if self.symmetric:
            return codes, torch.full_like(scale, 8), scale
        return codes, _rows(_words(tensors, f"{stem}.weight_zero_point"))[: codes.shape[0]], scale

    def _order(self, name: str, tensors: Tensors, inputs: int) -> Tensor | None:
        """[k]: inputs in the order of their groups; None: they are in it."""
        if not self.ordered and name not in tensors:
            return None
        groups = tensors.tensor(name).long()
        expected = torch.arange(inputs) // (self.group or inputs)
        if torch.equal(groups, expected) or bool((groups == -1).all()):  # -1: not given
            return None
        order = groups.argsort(stable=True)
        if groups.ndim != 1 or not torch.equal(groups[order], expected):
            raise ModelLoadError(f"{name} has groups that are not {self.group or inputs} inputs each; {UPSTREAM}")
        return order


def packing_of(config: Mapping[str, Any]) -> Packing | None:
    """What `config.json` says in its `quantization_config`; None: weights are dense.

    Raises ModelLoadError naming the setting that is not supported. Settings of how a checkpoint was made, and of other
    engines' kernels, don't matter here; which linears were left dense is seen from their tensors.
    """
    settings = Fields(config, "config.json").table("quantization_config")
    if not settings:
        return None
    match settings.get("quant_method"):
        case "awq":
            form = str(settings.get("version") or settings.get("format") or "gemm").lower()
            _require(form == "gemm", "version", form, "gemm")
            _require(settings.get("zero_point", True), "zero_point", False, "true")
            return Packing("awq", _group(settings, "bits"))
        case "gptq":
            form = str(settings.get("checkpoint_format") or settings.get("format") or "gptq").lower()
            _require(form in ("gptq", "gptq_v2"), "checkpoint_format", form, "gptq, gptq_v2")
            for name, usual in ("is_marlin_format", False), ("dynamic", None), ("pack_dtype", "int32"):
                _require((settings.get(name) or usual) == usual, name, settings.get(name), str(usual))
            ordered = bool(settings.get("desc_act"))
            return Packing("gptq", _group(settings, "bits"), zeros_less_one=form == "gptq", ordered=ordered)
        case "compressed-tensors":
            return _compressed(settings)
        case method:
            raise _refused("quant_method", method, "awq, gptq, compressed-tensors")


def _compressed(settings: Mapping[str, Any]) -> Packing:
    form = settings.get("format")
    _require(form == "pack-quantized", "format", form, "pack-quantized")
    fields = Fields(settings, "quantization_config")
    sparse = fields.table("sparsity_config") or {}
    _require(sparse.get("format", "dense") == "dense", "sparsity_config", sparse, "none")
    for name in ("kv_cache_scheme", "transform_config"):
        _require(not settings.get(name), name, settings.get(name), "none")
    schemes = list((fields.table("config_groups") or {}).values())
    _require(len(schemes) == 1 and isinstance(schemes[0], Mapping), "config_groups", schemes, "one")
    [scheme] = schemes
    for name in ("input_activations", "output_activations"):
        _require(not scheme.get(name), name, scheme.get(name), "none")
    weights = fields.within(scheme).table("weights") or {}
    kind, strategy, order = weights.get("type", "int"), weights.get("strategy"), weights.get("actorder")
    _require(kind == "int", "type", kind, "int")
    _require(strategy in ("group", "channel"), "strategy", strategy, "group, channel")
    _require(order in (None, "static", "weight", "group"), "actorder", order, "static, weight, group")
    group = _group(weights if strategy == "group" else {**weights, "group_size": -1}, "num_bits")
    symmetric = bool(weights.get("symmetric", True))
    return Packing("compressed-tensors", group, symmetric=symmetric, ordered=order == "group")


def _group(settings: Mapping[str, Any], bits: str) -> int | None:
    _require(settings.get(bits) == 4, bits, settings.get(bits), "4")
    group = settings.get("group_size", 128)
    whole = isinstance(group, int) and (group == -1 or (0 < group <= MOST_WIDTH and group % GROUP == 0))
    _require(whole, "group_size", group, f"-1, multiples of {GROUP}")
    return None if group == -1 else int(group)


def _require(condition: bool, name: str, value: object, supported: str) -> None:
    if not condition:
        raise _refused(name, value, supported)


def _refused(name: str, value: object, supported: str) -> ModelLoadError:
    return ModelLoadError(
        f"quantization_config with {name}={value!r} is not supported (supported: {supported}); {UPSTREAM}"
    )


def _words(tensors: Tensors, name: str) -> Tensor:
    return _part(tensors, name, torch.int32)


def _scales(tensors: Tensors, name: str) -> Tensor:
    return _part(tensors, name, torch.float16, torch.bfloat16, torch.float32).float()


def _part(tensors: Tensors, name: str, *kinds: torch.dtype) -> Tensor:
    found = tensors.tensor(name)
    if found.ndim != 2 or found.dtype not in kinds or not found.numel():
        raise ModelLoadError(f"{name} is {str(found.dtype).removeprefix('torch.')} {tuple(found.shape)}; {UPSTREAM}")
    return found


def _codes(words: Tensor) -> Tensor:
    """[…] int32 -> […, 8] uint8, the lowest bits first."""
    pairs = words.flatten().view(torch.uint8).view(*words.shape, 4)
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)


def _columns(words: Tensor, places: tuple[int, ...] | None = None) -> Tensor:
    """[m, n / 8] int32 -> [m, n] uint8; `places`: of eight columns in their word, where they are not in order."""
    codes = _codes(words)
    return (codes if places is None else codes[..., torch.tensor(places)]).flatten(1)


def _rows(words: Tensor) -> Tensor:
    """[m / 8, n] int32 -> [m, n] uint8"""
    return _codes(words).transpose(1, 2).flatten(0, 1)


def _spread(values: Tensor, times: int, count: int) -> Tensor:
    """[n, groups] of a checkpoint -> [n, count] of 32 inputs each; the last group may be cut short."""
    return values.repeat_interleave(times, 1)[:, :count].contiguous()
