"""Quantised and dense linears compute x · Wᵀ + b, and a row's result never depends on the others."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from models.decoder.weights.linear import DenseLinear, Int4Linear, Int8Linear, Linear
from models.decoder.weights.quantised import Int4Weight, Int8Weight, concatenated

ROWS, COLUMNS = 192, 160


def weight(seed: int = 0) -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))


def inputs(rows: int) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(9)).bfloat16()


def int4(dense: bool = False) -> Int4Linear:
    form = Int4Weight.quantise(weight())
    return Int4Linear(form, None, DenseLinear(form.dense().bfloat16()) if dense else None)


MAKERS: dict[str, Callable[[], Linear]] = {
    "bf16": lambda: DenseLinear(weight().bfloat16()),
    "int8": lambda: Int8Linear(Int8Weight.quantise(weight())),
    "int4": int4,
}


@pytest.mark.parametrize("form", [Int8Weight, Int4Weight])
def test_quantising_keeps_within_half_a_step(form: type[Int8Weight] | type[Int4Weight]) -> None:
    quantised = form.quantise(weight())
    step = quantised.scale.repeat_interleave(COLUMNS // quantised.scale.view(ROWS, -1).shape[1]).view(ROWS, COLUMNS)
    assert ((quantised.dense() - weight()).abs() <= 0.501 * step).all()


def test_constant_rows_quantise_to_themselves() -> None:
    flat = torch.full((16, 32), 0.25)
    assert torch.allclose(Int4Weight.quantise(flat).dense(), flat, atol=1e-6)
    assert torch.equal(Int8Weight.quantise(torch.zeros(16, 32)).dense(), torch.zeros(16, 32))


@pytest.mark.parametrize(
    ("make", "form"),
    [(Int8Linear, Int8Weight.quantise(weight())), (Int4Linear, Int4Weight.quantise(weight()))],
)
def test_kernels_compute_what_their_codes_say(make: Callable[..., Linear], form: Int8Weight | Int4Weight) -> None:
    bias = torch.randn(ROWS).bfloat16()
    x = inputs(5)
    expected = x.float() @ form.dense().T + bias.float()
    found = make(form, bias, None).decode(x).float()
    assert (found - expected).abs().max() <= 0.02 * expected.abs().max()


def test_prefill_runs_the_dense_copy_where_there_is_one() -> None:
    x = inputs(64)
    assert torch.equal(int4().prefill(x), int4().decode(x))
    with_copy = int4(dense=True)
    assert torch.equal(with_copy.prefill(x), DenseLinear(Int4Weight.quantise(weight()).dense().bfloat16()).prefill(x))
    assert with_copy.weight_bytes == int4().weight_bytes + 2 * ROWS * COLUMNS


@pytest.mark.parametrize("name", MAKERS)
def test_a_decoded_row_is_the_same_among_any_number_of_rows(name: str) -> None:
    made, x = MAKERS[name](), inputs(64)
    whole = made.decode(x)
    for rows in range(1, 65):
        assert torch.equal(made.decode(x[:rows]), whole[:rows])
        assert torch.equal(made.decode(x[64 - rows :].contiguous()), whole[64 - rows :])


def test_weights_of_one_form_are_concatenated_in_it() -> None:
    first, second = weight(1), weight(2)
    both = concatenated([Int4Weight.quantise(first), Int4Weight.quantise(second)])
    assert isinstance(both, Int4Weight)
    assert torch.equal(both.dense(), Int4Weight.quantise(torch.cat((first, second))).dense())
    mixed = concatenated([Int4Weight.quantise(first), second])
    assert isinstance(mixed, Tensor)
    assert torch.equal(mixed[ROWS:], second)


@pytest.mark.requires_cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_int4_on_cuda_computes_what_its_codes_say() -> None:
    form = Int4Weight.quantise(weight())
    x = inputs(5)
    moved = Int4Weight(form.codes.cuda(), form.scale.cuda(), form.zero.cuda())
    expected = x.float() @ form.dense().T
    assert (Int4Linear(moved).decode(x.cuda()).float().cpu() - expected).abs().max() <= 0.02 * expected.abs().max()


@pytest.mark.parametrize("name", MAKERS)
def test_no_rows_give_no_rows(name: str) -> None:
    """A chunk of a prompt whose logits nobody wants."""
    assert MAKERS[name]().decode(inputs(1)[:0]).shape == (0, ROWS)
