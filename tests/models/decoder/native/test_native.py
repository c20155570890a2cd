"""The native linears compute what their codes say, and a row's result depends on neither rows nor threads."""

import _ctypes
import os
import platform
import resource
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.decoder.batch import BLOCK_SIZE
from models.decoder.native import library as native
from models.decoder.native.library import Engine, has_matrix_unit, library, missing
from models.decoder.native.linear import NativeLinear
from models.decoder.weights.quantised import GROUP, Int4Weight, Int8Weight
from tests.equivalence.test_native import dense_as_packed

ROWS, COLUMNS = 200, 160  # the last block of 16 outputs is half full

needs_library = pytest.mark.skipif(library() is None, reason=f"native kernels: {missing()}")


def weight(outputs: int = ROWS, seed: int = 0) -> Tensor:
    return torch.randn(outputs, COLUMNS, generator=torch.Generator().manual_seed(seed))


def inputs(rows: int) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(9)).bfloat16()


def engine(threads: int = 2, *, matrix: bool = True) -> Engine:
    found = Engine.start(threads, matrix=matrix)
    assert found is not None
    return found


needs_matrix = pytest.mark.skipif(not has_matrix_unit(), reason="no matrix unit for bfloat16")
FORMS = pytest.mark.parametrize("form", [Int4Weight, Int8Weight])
Form = type[Int4Weight] | type[Int8Weight]


@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="no gcc, or not x86-64")
def test_the_library_is_built_where_there_is_a_compiler() -> None:
    assert not (missing() or "").startswith("not built"), missing()


def test_a_library_of_other_sources_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", Path(_ctypes.__file__))
    found, reason = native._load.__wrapped__()
    assert found is None
    assert "build it again" in (reason or "")


@needs_library
def test_the_library_lays_out_weights_and_cache_as_the_rest_does() -> None:
    limits = engine().limits
    assert (limits.group, limits.block) == (GROUP, BLOCK_SIZE)
    assert limits.int4_bytes == limits.lanes * (GROUP // 2 + 4)  # codes, a scale and a minimum in float16
    assert limits.int8_bytes == limits.lanes * GROUP


@needs_library
@FORMS
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_those_of_the_dequantised_weights(form: Form, biased: bool) -> None:
    quantised = form.quantise(weight())
    bias = torch.randn(ROWS).bfloat16() if biased else None
    x = inputs(70)  # more than one call takes
    expected = x.double() @ quantised.dense().double().T + (bias.double() if bias is not None else 0)
    found = NativeLinear(engine(), quantised, bias, None).decode(x)
    assert found.shape == (70, ROWS)
    # Activations keep 8 bits, results are rounded to bfloat16.
    assert (found.double() - expected).abs().max() <= 0.01 * expected.abs().max()


@needs_library
def test_codes_scales_and_minima_are_kept_as_they_are() -> None:
    """One input at a time: each weight comes out as it went in, to the precision of float16."""
    quantised = Int4Weight.quantise(weight())
    linear = NativeLinear(engine(), quantised, None, None)
    found = linear.decode(torch.eye(COLUMNS)).T
    assert (found - quantised.dense()).abs().max() <= 2e-3 * quantised.dense().abs().max()


@needs_library
@FORMS
def test_a_row_is_the_same_among_any_number_of_rows_and_threads_and_in_the_matrix_unit(form: Form) -> None:
    quantised, x = form.quantise(weight()), inputs(64)
    whole = NativeLinear(engine(1, matrix=False), quantised, None, None).decode(x)
    for threads, matrix in ((1, True), (2, True), (5, True), (2, False)):
        made = NativeLinear(engine(threads, matrix=matrix), quantised, None, None)
        for rows in (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 64):
            assert torch.equal(made.decode(x[:rows]), whole[:rows])
            assert torch.equal(made.decode(x[64 - rows :].contiguous()), whole[64 - rows :])


@needs_matrix
@FORMS
@pytest.mark.parametrize("biased", [False, True])
def test_prompts_are_multiplied_in_bfloat16(form: Form, biased: bool) -> None:
    quantised, x = form.quantise(weight()), inputs(70).float()
    bias = torch.randn(ROWS) if biased else None
    made = NativeLinear(engine(), quantised, bias, None)
    expected = x.double() @ dense_as_packed(quantised).bfloat16().double().T + (
        bias.double() if bias is not None else 0
    )

    def error(found: Tensor) -> float:
        return ((found.double() - expected).abs().mean() / expected.abs().mean()).item()

    assert error(made.prefill(x)) <= 1e-4  # a weight that lies between two may round to the other one
    assert error(made.decode(x)) >= 3e-3  # in which activations have 8 bits


@needs_matrix
@FORMS
def test_a_prompt_s_row_is_the_same_among_any_number_of_rows_and_threads(form: Form) -> None:
    quantised, x = form.quantise(weight()), inputs(300)  # more than one call takes
    whole = NativeLinear(engine(1), quantised, None, None).prefill(x)
    for threads in (1, 2, 5):
        made = NativeLinear(engine(threads), quantised, None, None)
        for rows in (1, 2, 15, 16, 17, 31, 32, 33, 64, 255, 257):
            assert torch.equal(made.prefill(x[:rows]), whole[:rows])
            assert torch.equal(made.prefill(x[300 - rows :].contiguous()), whole[300 - rows :])


@needs_library
@FORMS
def test_without_a_matrix_unit_prompts_are_multiplied_as_decoded_rows_are(form: Form) -> None:
    made = NativeLinear(engine(matrix=False), form.quantise(weight()), None, None)
    assert torch.equal(made.prefill(inputs(40)), made.decode(inputs(40)))


@needs_library
@FORMS
def test_rows_of_zeros_and_huge_values(form: Form) -> None:
    quantised = form.quantise(weight())
    made = NativeLinear(engine(), quantised, None, None)
    x = torch.stack((torch.zeros(COLUMNS), torch.full((COLUMNS,), 1e30)))
    found = made.decode(x)
    assert torch.equal(found[0], torch.zeros(ROWS))
    assert torch.isfinite(found[1]).all()


@needs_library
def test_a_thread_that_waits_for_one_that_was_put_aside_sleeps() -> None:
    """Four threads of one core: where one has a task and not the core, the others can't but wait."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        made = NativeLinear(engine(4), Int8Weight.quantise(torch.randn(1024, 1024)), None, None)
        x = torch.randn(64, 1024)

        def slept() -> int:
            """Times that this thread went to sleep."""
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            for _ in range(50):
                made.decode(x)
            return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before

        assert any(slept() for _ in range(20))
    finally:
        os.sched_setaffinity(0, cores)
