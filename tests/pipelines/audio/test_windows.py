"""The order of the one queue."""

import numpy as np

from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.windows import Lane, Stage, Window, WindowQueue
from pipelines.base import Ticket


def window(lane: Lane, queued: float, seconds: float = 5.0, id: str = "r") -> Window:
    audio = np.zeros(int(seconds * SAMPLE_RATE), np.int16)
    return Window(Ticket(id, "interactive", 0.0), None, lane, 0, audio, queued, language="en")  # type: ignore[arg-type]


def test_finals_come_before_partials_before_files_until_those_have_waited() -> None:
    queue = WindowQueue()
    file, partial, final = window(Lane.FILE, 0.0), window(Lane.PARTIAL, 0.5), window(Lane.FINAL, 0.6)
    queue.put([file, partial, final])
    assert queue.group(1) == [final]
    late = window(Lane.FINAL, 2.5)
    queue.remove(final)
    queue.remove(partial)
    queue.put([late])
    assert queue.group(1) == [file]


def test_only_windows_of_one_shape_share_a_step_and_few_beside_live_speech() -> None:
    queue = WindowQueue()
    short, long = [window(Lane.FILE, i) for i in range(6)], [window(Lane.FILE, 0.5, seconds=20)]
    queue.put([*short, *long])
    assert list(queue.group(8)) == short
    decoding = short[0]
    decoding.stage = Stage.DECODE
    assert list(queue.group(8)) == [decoding]
    queue.put([window(Lane.PARTIAL, 100.0)])
    decoding.stage = Stage.ENCODE
    assert len(queue.group(8)) == 2
    assert [w.frames for w in (short[0], long[0], window(Lane.FINAL, 0, seconds=28))] == [1500, 2400, 3000]
