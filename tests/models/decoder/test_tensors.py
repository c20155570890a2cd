"""Rows of q and k come in the order in which a head's halves are turned against each other."""

from dataclasses import replace

import numpy as np
import pytest

from models.decoder.config import DecoderConfig, from_hf
from models.decoder.families.layout import Part, TensorKey
from models.decoder.gguf_config import from_gguf
from models.decoder.tensors import component_order, row_order
from tests.models.decoder.test_config import GGUF, HF

HEADS = {Part.Q: 4, Part.K: 2}


def interleaved() -> DecoderConfig:
    return from_gguf(GGUF, rope_factors=None, tied=True)


@pytest.mark.parametrize("part", HEADS)
def test_llama_s_gguf_files_have_their_halves_interleaved(part: Part) -> None:
    original = np.arange(HEADS[part] * 16)
    stored = original.reshape(-1, 2, 8).swapaxes(1, 2).reshape(-1)  # as llama.cpp's converter does it
    order = row_order(interleaved(), TensorKey(part, 1))
    assert order is not None
    assert np.array_equal(stored[order], original)
    assert row_order(from_hf(HF), TensorKey(part, 1)) is None


def test_other_tensors_stay_in_order() -> None:
    for part in (Part.EMBEDDING, Part.V, Part.OUTPUT, Part.Q_NORM):
        assert row_order(interleaved(), TensorKey(part, None if part is Part.EMBEDDING else 0)) is None


def test_a_rope_of_a_part_of_each_head_has_its_pairs_half_a_head_apart() -> None:
    config = from_hf({**HF, "partial_rotary_factor": 0.5})  # 8 of 16 components: i against i + 4
    order = component_order(config, 0)
    assert order is not None
    assert order.tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
    of_key = row_order(config, TensorKey(Part.K, 0))
    assert of_key is not None
    assert of_key.tolist() == [*order, *(16 + order)]
    fused = row_order(config, TensorKey(Part.QKV, 0))
    assert fused is not None
    assert fused.tolist() == [*(16 * head + each for head in range(6) for each in order), *range(96, 128)]
    both = row_order(replace(config, layout=interleaved().layout), TensorKey(Part.K, 0))
    halves = row_order(interleaved(), TensorKey(Part.K, 0))
    assert both is not None
    assert halves is not None
    assert np.array_equal(both, halves[of_key])
