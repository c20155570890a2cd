from pathlib import Path

import pytest
import torch

from models.device import available_cpus, choose_device, choose_dtype
from models.errors import ModelLoadError


@pytest.mark.parametrize(("quota", "cpus"), [("100000 100000", 1), ("150000 100000", 2), ("10000 100000", 1)])
def test_a_quota_of_the_control_group_caps_the_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cpus: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert available_cpus(tmp_path) == cpus


def test_version_1_control_groups_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("300000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert available_cpus(tmp_path) == 3
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1")
    assert available_cpus(tmp_path) == 8


def test_without_a_quota_the_affinity_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5})
    assert available_cpus(tmp_path) == 3
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cpus(tmp_path) == 3


def test_devices_that_are_not_there_are_refused() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    for wanted in ("cuda:99", "mps", "gpu"):
        with pytest.raises(ModelLoadError, match=wanted):
            choose_device(wanted)


def test_types_without_a_path_are_refused() -> None:
    assert choose_dtype(None) == torch.bfloat16
    assert choose_dtype("float32") == torch.float32
    with pytest.raises(ModelLoadError, match="float16"):
        choose_dtype("float16")
