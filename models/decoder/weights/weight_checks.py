"""What no trained model's weights are, whatever their files say of them."""

import torch
from torch import Tensor

from models.decoder.tensors import not_finite, one_row
from models.decoder.weights.quantised import Int8Weight, Weight
from models.errors import ModelLoadError

_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_ROWS_AT_ONCE = 1024


def require_weights(name: str, weight: Weight, *, zeros: bool) -> None:
    """Raises ModelLoadError where values are no floating-point numbers, or not finite, or a matrix gives the same for
    all outputs: then its rows are all one. `zeros`: whether they may be of zeros, as those of layers may be that leave
    the residual alone."""
    parts: tuple[Tensor, ...]
    if isinstance(weight, Tensor):
        parts, rows = (weight,), weight.shape[0]
    else:
        parts = (weight.scale,) if isinstance(weight, Int8Weight) else (weight.scale, weight.zero)
        rows = weight.codes.shape[0]
    for part in parts:
        if part.dtype not in _TYPES:
            raise ModelLoadError(f"{name} is of {str(part.dtype).removeprefix('torch.')}, not of numbers for weights")
        if not all(bool(torch.isfinite(bound)) for bound in torch.aminmax(part)):
            raise not_finite(name)
    if parts[0].ndim + (not isinstance(weight, Tensor)) < 2 or rows < 2:
        return
    first = _dense(weight, 0, 1)
    # Of a matrix that is one, the second row tells.
    starts = (1, *range(2, rows, _ROWS_AT_ONCE))
    ends = (2, *(min(start + _ROWS_AT_ONCE, rows) for start in starts[1:]))
    same = all(bool((_dense(weight, *span) == first).all()) for span in zip(starts, ends, strict=True))
    if same and (bool(first.any()) or not zeros):
        raise one_row(name)


def _dense(weight: Weight, start: int, end: int) -> Tensor:
    """Its rows from `start` up to `end`."""
    return weight[start:end] if isinstance(weight, Tensor) else weight.rows(torch.arange(start, end)).dense()
