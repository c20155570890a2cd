"""Settings of the whole suite."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from models.privacy import silence

silence(os.environ)

# How long an example takes says more about the machine than about the code. In CI examples are always the same: new
# ones are looked for where somebody can look at what they find.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("suite")


class _Unknown(logging.Handler):
    """Remembers what the registry complains of: numbers of workers that no definition knows."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


_UNKNOWN = _Unknown()
logging.getLogger("metrics.registry").addHandler(_UNKNOWN)


@pytest.fixture(autouse=True)
def unknown_series() -> Iterator[list[str]]:
    """No test passes whose workers told a metric that their kind does not have; one that means to clears the list."""
    _UNKNOWN.found.clear()
    yield _UNKNOWN.found
    assert not _UNKNOWN.found
