"""G.711."""

from pipelines.audio.live.chunks import A_LAW, MU_LAW


def test_g711_is_the_standards() -> None:
    # ITU-T G.191's reference decoder
    assert [int(MU_LAW[code]) for code in (0x00, 0x7F, 0x80, 0xFF, 0x8F, 0x0F)] == [-32124, 0, 32124, 0, 16764, -16764]
    assert [int(A_LAW[code]) for code in (0x55, 0xD5, 0x2A, 0xAA, 0x80, 0x00)] == [-8, 8, -32256, 32256, 5504, -5504]
