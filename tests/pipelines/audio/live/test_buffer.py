"""The recent past of a stream."""

import numpy as np

from pipelines.audio.live.buffer import AudioBuffer
from pipelines.audio.live.chunks import AudioChunk


def test_the_buffer_forgets_and_still_finds() -> None:
    buffer = AudioBuffer()
    for index in range(100):
        chunk = np.full(1600, index, np.int16)
        buffer.append(AudioChunk(chunk, np.full(3, index / 100, np.float32), float(index)))
        buffer.forget(buffer.end - 16_000)
    assert buffer.start == 9 * 16_000
    assert set(buffer.samples(0, 10**9)) == set(range(90, 100))
    assert buffer.samples(150_000, 150_010).tolist() == [93] * 10
    assert buffer.arrival(buffer.end) == 99.0
    assert buffer.arrival(buffer.end + 1) is None
    assert len(buffer._samples) < 4 * 17_600
