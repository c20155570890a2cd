"""Matrices of every GGUF type keep their values, within what a type that has no kernel loses to one that has."""

import logging
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from models.decoder.weights.checkpoint import GGUFCheckpoint
from models.decoder.weights.quantised import Int4Weight, Int8Weight, dense
from models.errors import ModelLoadError
from models.files.gguf import GGUFFile
from tests.models.blocks import QUANTISED, RANDOM, Q, stored
from tests.models.conftest import write_gguf
from tests.models.files.test_gguf import values

NAME = "blk.0.ffn_up.weight"
ROWS, COLUMNS = 48, 512
AS_STORED = {Q.Q4_0: Int4Weight, Q.Q4_1: Int4Weight, Q.Q4_K: Int4Weight}
# The norm of the error over that of the matrix, of types below 4 bits.
TO_INT4 = {
    Q.Q2_K: 0.06,
    Q.Q3_K: 0.08,
    Q.IQ1_S: 0.07,
    Q.IQ1_M: 0.08,
    Q.IQ2_XXS: 0.05,
    Q.IQ2_XS: 0.08,
    Q.IQ2_S: 0.08,
    Q.IQ3_XXS: 0.07,
    Q.IQ3_S: 0.07,
}
READABLE = [kind for kind in (*QUANTISED, *RANDOM) if kind != Q.Q8_K]


def written(folder: Path, kinds: dict[str, Q], rows: int = ROWS) -> GGUFFile:
    blocks = {name: (stored(values(rows, COLUMNS) * 0.05, kind), kind) for name, kind in kinds.items()}
    return GGUFFile(write_gguf(folder / "m.gguf", blocks=blocks))


def error(found: torch.Tensor, file: GGUFFile) -> float:
    expected = torch.from_numpy(gguf.quants.dequantize(file.blocks(NAME), Q(file.tensors[NAME].type_id)))
    return float((found - expected).norm() / expected.norm())


def test_all_types_that_can_be_read_are_tried() -> None:
    tried = {*READABLE, Q.F32, Q.F16, Q.BF16}
    for kind in Q:
        block = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
        try:
            gguf.quants.dequantize(block, kind)
        except NotImplementedError:
            continue
        assert kind in tried, kind.name


@pytest.mark.parametrize("kind", READABLE, ids=lambda kind: kind.name)
def test_a_matrix_keeps_its_values(tmp_path: Path, kind: Q) -> None:
    file = written(tmp_path, {NAME: kind})
    weight = GGUFCheckpoint(file).weight(NAME)
    if kind in AS_STORED:
        assert isinstance(weight, Int4Weight)
        assert error(weight.dense(), file) <= 1e-6
    elif kind in TO_INT4:
        assert isinstance(weight, Int4Weight)
        assert error(weight.dense(), file) <= TO_INT4[kind]
    else:
        assert isinstance(weight, Int8Weight)
        assert error(weight.dense(), file) <= 0.01


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Ours: the package that writes the file logs, too."""
    return [record for record in caplog.records if record.name == "models.decoder.weights.gguf_matrices"]


@pytest.mark.parametrize("kind", [Q.Q8_0, Q.Q6_K, Q.Q3_K], ids=lambda kind: kind.name)
def test_what_has_no_kernel_is_not_quantised_again(tmp_path: Path, kind: Q, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path, {NAME: kind})
    weight = GGUFCheckpoint(file, forms=()).weight(NAME)
    assert isinstance(weight, torch.Tensor)
    assert error(weight, file) == 0
    assert not warnings_of(caplog)


def test_one_warning_says_what_is_requantised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kinds = {"blk.0.ffn_up.weight": Q.Q6_K, "blk.0.ffn_gate.weight": Q.Q3_K, "token_embd.weight": Q.Q6_K}
    file = written(tmp_path, {**kinds, "blk.0.ffn_down.weight": Q.Q4_K, "output.weight": Q.Q8_0})
    checkpoint = GGUFCheckpoint(file)
    for name in file.tensors:
        checkpoint.weight(name)
    [record] = warnings_of(caplog)
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith("1 tensor of Q3_K to int4, 2 tensors of Q6_K to int8")


def test_a_large_matrix_is_read_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, {NAME: Q.Q5_0}, rows=1500)
    sizes, whole = [], GGUFFile.dequantised

    def counted(self: GGUFFile, name: str, rows: slice = slice(None)) -> np.ndarray:
        found = whole(self, name, rows)
        sizes.append(found.shape[0])
        return found

    monkeypatch.setattr(GGUFFile, "dequantised", counted)
    weight = GGUFCheckpoint(file).weight(NAME)
    assert sizes == [1024, 476]
    assert error(dense(weight), file) <= 0.01


def test_a_type_that_can_not_be_read_is_refused_before_anything_is(tmp_path: Path) -> None:
    file = written(tmp_path, {"token_embd.weight": Q.Q4_K, "output.weight": Q.Q8_K})
    with pytest.raises(ModelLoadError, match=r"output\.weight has the GGUF type Q8_K"):
        GGUFCheckpoint(file)
