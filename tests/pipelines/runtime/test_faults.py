import sys
from types import SimpleNamespace

import pytest

from pipelines.base import StepFailed
from pipelines.runtime.faults import device_is_lost


class AcceleratorError(RuntimeError):
    pass


class OutOfMemoryError(RuntimeError):
    pass


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `device_is_lost` looks for in torch, whichever build is installed."""
    errors = SimpleNamespace(AcceleratorError=AcceleratorError, OutOfMemoryError=OutOfMemoryError)
    monkeypatch.setitem(sys.modules, "torch", errors)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (AcceleratorError("CUDA error: out of memory"), False),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (ValueError("a shape that does not fit"), False),
    ],
)
def test_only_errors_that_cost_the_device_count(error: Exception, lost: bool) -> None:
    assert device_is_lost(error) is lost
    assert device_is_lost(StepFailed(["a"], error)) is lost
    wrapped = RuntimeError("the runner failed")
    wrapped.__cause__ = error
    assert device_is_lost(wrapped) is lost
