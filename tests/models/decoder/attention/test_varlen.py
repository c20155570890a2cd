"""What torch's paged kernel is asked for: a stand-in does what its documentation says, and wrong ones are noticed."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.decoder.attention import varlen
from models.decoder.attention.varlen import PAGE, TOLERANCE, missing, probe
from models.decoder.decode_path import BATCHED, VARLEN, choose_path

CPU = torch.device("cpu")
SHAPE: Any = SimpleNamespace(num_kv_heads=2, group=3, head_dim=16)


def documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """`torch.nn.attention.varlen.varlen_attn` for one query a sequence over pages of keys and values."""
    assert cu_seq_k is not None
    assert seqused_k is not None
    assert block_table is not None
    assert {each.dtype for each in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert cu_seq_q.tolist() == list(range(len(query) + 1))
    assert key.shape[1] % PAGE == 0
    assert max_q == 1
    assert max_k == block_table.shape[1] * key.shape[1] == int(cu_seq_k[1])
    assert enable_gqa
    out = torch.empty_like(query)
    for row, length in enumerate(seqused_k.tolist()):
        left, right = window_size
        assert right in (-1, 0)
        first = 0 if left < 0 else max(0, length - 1 - left)
        pages = block_table[row].long()
        keys, values = (each[pages].flatten(0, 1)[first:length].transpose(0, 1) for each in (key, value))
        group = query.shape[1] // keys.shape[0]
        keys, values = (each.repeat_interleave(group, 0) for each in (keys, values))
        out[row] = torch.nn.functional.scaled_dot_product_attention(query[row][:, None], keys, values, scale=scale)[
            :, 0
        ]
    return out


def run_probe(monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., Tensor]) -> float:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    return probe(2, 3, 16, torch.bfloat16, CPU)


def test_a_kernel_that_does_what_it_says_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_probe(monkeypatch, documented) <= TOLERANCE


@pytest.mark.parametrize(
    "fault",
    [
        {"window_size": (-1, -1)},
        {"scale": 0.01},
        {"seqused_k": torch.full((len(varlen.PROBED),), 3 * PAGE, dtype=torch.int32)},
        {"block_table": torch.arange(len(varlen.PROBED) * 3, dtype=torch.int32).view(-1, 3)},
    ],
)
def test_a_kernel_that_ignores_what_it_is_told_does_not(monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]) -> None:
    assert run_probe(monkeypatch, lambda *args, **kwargs: documented(*args, **{**kwargs, **fault})) > TOLERANCE


def test_the_parameters_are_those_of_the_installed_torch() -> None:
    """`missing` asks for them by name on a GPU."""
    import inspect

    from torch.nn.attention.varlen import varlen_attn

    assert {"block_table", "seqused_k", "num_splits", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "named"),
    [(torch.float32, 64, "float32"), (torch.bfloat16, 320, "heads of 320"), (torch.bfloat16, 60, "heads of 60")],
)
def test_what_the_kernel_does_not_take_is_named(dtype: torch.dtype, head_dim: int, named: str) -> None:
    assert named in str(missing(2, 3, head_dim, dtype, torch.device("cuda")))


def test_the_path_follows_what_was_found(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(varlen, "missing", lambda *_: None)
    assert choose_path(SHAPE, torch.bfloat16, cuda) is VARLEN
    monkeypatch.setattr(varlen, "missing", lambda *_: "its probe failed: no kernel image")
    with caplog.at_level(logging.WARNING):
        assert choose_path(SHAPE, torch.bfloat16, cuda) is BATCHED
    assert "its probe failed: no kernel image" in caplog.text
    assert choose_path(SHAPE, torch.bfloat16, CPU) is None


@pytest.mark.requires_cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("kv_heads", "group", "head_dim"), [(8, 4, 64), (2, 8, 128), (1, 4, 256)])
def test_the_installed_kernel_passes_its_probe(kv_heads: int, group: int, head_dim: int) -> None:
    device = torch.device("cuda")
    if torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("the GPU is too old for it")
    assert missing(kv_heads, group, head_dim, torch.bfloat16, device) is None
