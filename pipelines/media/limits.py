"""What a media helper may take from the machine. Where a system lacks a limit, the others have to do."""

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

MEMORY = 3 << 30  # bytes of address space: the largest picture in its widest mode takes half of it
NICENESS = 10  # as the threads that prepare requests have: who is answered already does not wait for who comes
CPU_SECONDS = 60.0  # of a job, and
CPU_SHARE = 0.1  # of the length of sound that it may have


def confine() -> None:
    """For the rest of this process's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, for the whole group: the gateway acts on it
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform != "darwin":  # there it is accepted, and means nothing
        _limit(resource.RLIMIT_AS, MEMORY)
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    with suppress(OSError):  # Linux alone: where memory runs out, this process goes before a model's
        Path("/proc/self/oom_score_adj").write_text("1000")


def allow(seconds: float) -> None:
    """From now on so much CPU time; whoever takes more is ended by SIGXCPU, also in the middle of a library."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime + seconds) + 1)


def _limit(kind: int, most: int) -> None:
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
