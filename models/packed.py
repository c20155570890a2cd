"""Linears that AWQ and GPTQ checkpoints store as 4-bit codes, eight to a word; their codes are kept as they are.

Both mean w = (q - z) · s, with a scale s and a zero point z for each group of inputs of an output:
  AWQ, "gemm" (https://github.com/casper-hansen/AutoAWQ): qweight [k, n / 8], eight outputs a word, interleaved
  GPTQ (https://github.com/ModelCloud/GPTQModel): qweight [k / 8, n], eight inputs a word; g_idx [k], an input's group
  Both: qzeros [groups, n / 8], packed as outputs are; scales [groups, n]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from models.config import UPSTREAM
from models.errors import ModelLoadError
from models.quantised import GROUP, Int4Weight

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of eight outputs in their word: AWQ packs them as 0, 2, 4, 6, 1, 3, 5, 7
_EIGHT_ONES = 0x11111111  # a one in each code of a word


class Tensors(Protocol):
    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Tensor:
        """Raises ModelLoadError where it is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Packing:
    """How a checkpoint stores its linears, those that it has not left dense."""

    method: str  # awq | gptq
    group: int | None  # inputs that share a scale and a zero point; None: all of a linear
    zeros_less_one: bool = False  # GPTQ's first format
    ordered: bool = False  # GPTQ's desc_act: g_idx has to be there

    def __call__(self, stem: str, tensors: Tensors) -> Int4Weight:
        """The linear `stem`. Raises ModelLoadError naming the tensor that is missing, or is not as it should be."""
        qweight, qzeros, scales = (_part(tensors, f"{stem}.{name}") for name in ("qweight", "qzeros", "scales"))
        scale = scales.t().float()  # [n, groups]
        order = None
        if self.method == "awq":
            codes, zeros = (_outputs(words, _AWQ_PLACES) for words in (qweight, qzeros))
        else:
            # The one was taken from whole words, so that a zero point of 0 borrowed from the next.
            codes, zeros = _inputs(qweight), _outputs(qzeros + _EIGHT_ONES if self.zeros_less_one else qzeros)
            order = self._order(stem, tensors, codes.shape[1])
        inputs = codes.shape[1]
        group = self.group or inputs
        expected = (codes.shape[0], -(-inputs // group))
        for name, found in ("scales", scale), ("qzeros", zeros):
            if found.shape != expected:
                raise ModelLoadError(f"{stem}.{name} has {tuple(found.shape[::-1])} values, not {expected[::-1]}")
        if inputs % GROUP:
            raise ModelLoadError(f"{stem} has {inputs} inputs, which is no multiple of {GROUP}; {UPSTREAM}")
        zero = (8 - zeros.float()) * scale  # exact, as are all values: a scale in float16 by an integer of 4 bits
        scale, zero = (_spread(each, group // GROUP, inputs // GROUP) for each in (scale, zero))
        return Int4Weight(codes if order is None else codes.index_select(1, order), scale, zero, order)

    def _order(self, stem: str, tensors: Tensors, inputs: int) -> Tensor | None:
        """[k]: inputs in the order of their groups; None: they are in it."""
        name = f"{stem}.g_idx"
        if not self.ordered and name not in tensors:
            return None
        groups = tensors.tensor(name).long()
        expected = torch.arange(inputs) // (self.group or inputs)
        if torch.equal(groups, expected):
            return None
        order = groups.argsort(stable=True)
        if not torch.equal(groups[order], expected):
            raise ModelLoadError(f"{name} has groups that are not {self.group or inputs} inputs each; {UPSTREAM}")
        return order


def packing_of(config: Mapping[str, Any]) -> Packing | None:
    """What `config.json` says in its `quantization_config`; None: weights are dense.

    Raises ModelLoadError naming the setting that is not supported. Settings of how a checkpoint was made, and of other
    engines' kernels, don't matter here; which linears were left dense is seen from their tensors.
    """
    settings = config.get("quantization_config")
    if not settings:
        return None
    method = settings.get("quant_method")
    _require(method in ("awq", "gptq"), "quant_method", method, "awq, gptq")
    _require(settings.get("bits") == 4, "bits", settings.get("bits"), "4")
    group = settings.get("group_size", 128)
    whole = isinstance(group, int) and (group == -1 or (group > 0 and group % GROUP == 0))
    _require(whole, "group_size", group, f"-1, multiples of {GROUP}")
    group = None if group == -1 else group
    if method == "awq":
        form = str(settings.get("version") or settings.get("format") or "gemm").lower()
        _require(form == "gemm", "version", form, "gemm")
        _require(settings.get("zero_point", True), "zero_point", False, "true")
        return Packing("awq", group)
    form = str(settings.get("checkpoint_format") or settings.get("format") or "gptq").lower()
    _require(form in ("gptq", "gptq_v2"), "checkpoint_format", form, "gptq, gptq_v2")
    for name, usual in ("is_marlin_format", False), ("dynamic", None), ("pack_dtype", "int32"):
        _require((settings.get(name) or usual) == usual, name, settings.get(name), "unset")
    return Packing("gptq", group, zeros_less_one=form == "gptq", ordered=bool(settings.get("desc_act")))


def _require(condition: bool, name: str, value: object, supported: str) -> None:
    if not condition:
        raise ModelLoadError(
            f"quantization_config with {name}={value!r} is not supported (supported: {supported}); {UPSTREAM}"
        )


def _part(tensors: Tensors, name: str) -> Tensor:
    found = tensors.tensor(name)
    kinds = (torch.float16, torch.bfloat16, torch.float32) if name.endswith("scales") else (torch.int32,)
    if found.ndim != 2 or found.dtype not in kinds:
        raise ModelLoadError(f"{name} is {str(found.dtype).removeprefix('torch.')} {tuple(found.shape)}; {UPSTREAM}")
    return found


def _codes(words: Tensor) -> Tensor:
    """[…] int32 -> […, 8] uint8, the lowest bits first."""
    pairs = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)


def _outputs(words: Tensor, places: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[m, n / 8] int32, eight outputs a word -> [n, m] uint8"""
    return _codes(words)[..., torch.tensor(places)].flatten(1).t().contiguous()


def _inputs(words: Tensor) -> Tensor:
    """[k / 8, n] int32, eight inputs a word -> [n, k] uint8"""
    return _codes(words).transpose(0, 1).flatten(1)


def _spread(values: Tensor, times: int, count: int) -> Tensor:
    """[n, groups] of a checkpoint -> [n, count] of 32 inputs each; the last group may be cut short."""
    return values.repeat_interleave(times, 1)[:, :count].contiguous()
