"""Nothing to do, nothing done."""

import time

import psutil

from tests.live import Gateway


def test_an_idle_gateway_uses_under_a_hundredth_of_a_core(fakes: Gateway) -> None:
    """Gateway and workers together: three models, stats and pings included."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]

    def spent() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    time.sleep(0.3)
    before, began = spent(), time.monotonic()
    time.sleep(4)
    assert (spent() - before) / (time.monotonic() - began) < 0.01 * len(processes)
