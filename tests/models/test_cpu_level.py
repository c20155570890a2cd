"""How much of the processor is used, and that prompts take the form that is fastest there."""

from pathlib import Path

import pytest
import torch

from models.decoder.assembly import LinearFactory
from models.decoder.loading import load_decoder
from models.decoder.native import library as native
from models.decoder.weights.linear import DenseLinear, copy_dtype, packs_bf16
from models.device import CPU_LEVEL, cpu_level, multiplies_bf16
from models.errors import ModelLoadError
from tests.models.hostile import write_model


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setenv(CPU_LEVEL, request.param)
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    return str(request.param)


def cpuinfo(path: Path, flags: str) -> Path:
    path.write_text(f"processor : 0\n{flags}\nprocessor : 1\n{flags}\n")
    return path


@pytest.mark.parametrize(
    ("flags", "there"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 avx512_vnni", True),
        ("flags\t\t: fpu amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni", False),
        ("", False),
    ],
)
def test_what_the_processor_says_of_bfloat16(tmp_path: Path, flags: str, there: bool) -> None:
    assert multiplies_bf16(cpuinfo(tmp_path / "cpuinfo", flags)) is there
    assert not multiplies_bf16(tmp_path / "none")


def test_a_level_that_is_none_is_refused_by_the_variable_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_LEVEL, "avx9")
    with pytest.raises(ModelLoadError, match=f"{CPU_LEVEL} is 'avx9', not one of float32, bfloat16, native"):
        cpu_level()
    monkeypatch.setenv(CPU_LEVEL, "")
    assert cpu_level() == "native"


@pytest.mark.parametrize(
    ("level", "copies"), [("bfloat16", None), ("float32", torch.float32)], indirect=["level"], ids=["bf16", "f32"]
)
def test_below_native_torch_s_kernels_run_and_prompts_take_a_dense_copy(
    tmp_path: Path, level: str, copies: torch.dtype | None
) -> None:
    assert native.missing() == f"{CPU_LEVEL} is {level}"
    path = write_model(tmp_path / "m.gguf")
    expected = copies or copy_dtype()
    for wish in (None, True):
        weights = load_decoder(path, device="cpu", dense_prefill=wish).decoder.details()["weights"]
        assert weights == f"int8, dense {str(expected).removeprefix('torch.')} in prefill"
    assert load_decoder(path, device="cpu", dense_prefill=False).decoder.details()["weights"] == "int8"


@pytest.mark.parametrize("level", ["float32"], indirect=True)
def test_without_bfloat16_nothing_is_packed_for_it(level: str) -> None:
    assert level
    assert not packs_bf16()
    weight, x = torch.randn(32, 64), torch.randn(5, 64).bfloat16()
    made = DenseLinear(weight, torch.ones(32).bfloat16())
    found = made.prefill(x)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), x.float() @ weight.T + 1, rtol=1e-2, atol=0.05)


def test_dense_prefill_is_refused_where_there_is_none() -> None:
    with pytest.raises(ModelLoadError, match="dense_prefill is for models on a CPU"):
        LinearFactory(torch.bfloat16, torch.device("cuda"), quantization=None, dense_prefill=True)
