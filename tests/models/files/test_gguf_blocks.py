"""Blocks have the values that the gguf package reads from them."""

import gguf
import numpy as np
import pytest

from models.files.gguf import Q4_0, Q4_1, Q4_K, Q8_0, BlockType
from models.files.gguf_blocks import GROUP, codes, expanded, scales
from tests.models.blocks import Q, stored


@pytest.mark.parametrize("kind", [Q4_0, Q4_1, Q4_K, Q8_0], ids=lambda kind: kind.name)
def test_values_are_code_times_scale_plus_minimum(kind: BlockType) -> None:
    values = np.random.default_rng(0).normal(size=(6, 512)).astype(np.float32)
    rows = stored(values, Q[kind.name])
    rows.setflags(write=False)
    whole, (scale, minimum) = codes(rows, kind), scales(rows, kind)
    assert whole.shape == values.shape
    assert scale.shape == (6, 512 // GROUP)
    expected = gguf.quants.dequantize(rows, Q[kind.name])
    made = whole * scale.repeat(GROUP, 1) + (0 if minimum is None else minimum.repeat(GROUP, 1))
    assert np.allclose(made, expected, rtol=1e-6, atol=1e-6)
    assert np.array_equal(expanded(rows, kind), made)
    assert np.array_equal(expanded(rows[2:3], kind), made[2:3])


def test_scales_that_are_no_numbers_are_handed_on(recwarn: pytest.WarningsRecorder) -> None:
    rows = np.zeros((1, Q4_0.size), np.uint8)
    rows[0, :2] = np.array([np.inf], np.float16).view(np.uint8)
    assert not np.isfinite(expanded(rows, Q4_0)).any()
    assert not list(recwarn)
