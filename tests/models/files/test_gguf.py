"""The reader agrees with the gguf package, and says what is wrong with a file that it can't read."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from models.decoder.weights.checkpoint import GGUFCheckpoint
from models.decoder.weights.quantised import Int4Weight, Int8Weight
from models.errors import ModelLoadError
from models.files.gguf import GGUFFile, read_architecture
from tests.models.conftest import write_gguf

Q = gguf.GGMLQuantizationType
BF16_ROUNDING = 2.0**-8  # relative, of a value rounded to bf16


def values(rows: int = 64, columns: int = 96) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)


def test_metadata_of_every_kind_is_read(tmp_path: Path) -> None:
    metadata = {
        "a.bool": True,
        "a.int": 7,
        "a.float": 0.5,
        "a.text": "é",
        "a.words": ["x", "yy"],
        "a.numbers": [1, 2, 3],
    }
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", "qwen2", metadata=metadata))
    found = {key: file.metadata[key] for key in metadata}
    assert {key: list(value) if isinstance(metadata[key], list) else value for key, value in found.items()} == metadata
    assert (found["a.words"][-1], found["a.words"][:1]) == ("yy", ["x"])
    assert read_architecture(file.path) == "qwen2"


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q8_0, Q.BF16])
def test_dequantised_tensors_are_those_of_the_gguf_package(tmp_path: Path, kind: Q) -> None:
    stored = gguf.quants.quantize(values(), kind)
    path = write_gguf(tmp_path / "m.gguf", quantised={"blk.0.ffn_up.weight": (values(), kind)})
    file = GGUFFile(path)
    assert file.tensors["blk.0.ffn_up.weight"].shape == (64, 96)
    assert file.block_type("blk.0.ffn_up.weight").name == kind.name
    assert np.array_equal(file.dequantised("blk.0.ffn_up.weight"), gguf.quants.dequantize(stored, kind))


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1])
def test_int4_weights_are_the_stored_codes(tmp_path: Path, kind: Q) -> None:
    path = write_gguf(tmp_path / "m.gguf", quantised={"blk.0.ffn_up.weight": (values(), kind)})
    file = GGUFFile(path)
    weight = GGUFCheckpoint(file).weight("blk.0.ffn_up.weight")
    assert isinstance(weight, Int4Weight)
    exact = torch.from_numpy(file.dequantised("blk.0.ffn_up.weight"))
    assert torch.allclose(weight.dense(), exact, atol=1e-6)
    # The kernel takes scale and zero in bf16: of a value (code - 8)·scale + zero both parts are rounded.
    scale, zero = weight.scale.bfloat16().float(), weight.zero.bfloat16().float()
    rounded = Int4Weight(weight.codes, scale, zero).dense()
    bound = BF16_ROUNDING * (8 * weight.scale.abs() + weight.zero.abs()).repeat_interleave(32, 1)
    assert ((rounded - exact).abs() <= bound).all()


def test_q8_0_becomes_int8_with_a_scale_a_row(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", quantised={"token_embd.weight": (values(), Q.Q8_0)})
    file = GGUFFile(path)
    weight = GGUFCheckpoint(file).weight("token_embd.weight")
    assert isinstance(weight, Int8Weight)
    exact = torch.from_numpy(file.dequantised("token_embd.weight"))
    assert ((weight.dense() - exact).abs() <= 0.51 * weight.scale[:, None]).all()
    assert torch.allclose(weight.scale, exact.abs().amax(1) / 127, rtol=1e-3)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", tensors={"token_embd.weight": values()}))
    with pytest.raises(ModelLoadError, match=r"blk\.0\.ffn_up\.weight"):
        GGUFCheckpoint(file).weight("blk.0.ffn_up.weight")


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"GGUF\x01\x00\x00\x00" + b"\x00" * 64, b"PK\x03\x04" + b"\x00" * 64]
)
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="not a readable GGUF file"):
        GGUFFile(path)
    with pytest.raises(ModelLoadError, match="not a readable GGUF file"):
        read_architecture(path)


def test_an_array_of_arrays_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", metadata={"a.nested": [[1], [2]]})
    with pytest.raises(ModelLoadError, match=r"a\.nested is an array of arrays, which is not read"):
        GGUFFile(file)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"token_embd.weight": values()})
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=r"inside tensor token_embd\.weight: an incomplete download"):
        GGUFFile(path)
