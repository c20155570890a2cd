"""Channels, layouts, sample formats and rates: every combination is heard, or refused by a clear word."""

import itertools
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.base import InvalidRequest
from tests import speech
from tests.pipelines.media.conftest import DecodeFile

RATE = speech.RATE
CLIP = speech.samples(speech.CLIPS[1])[: 2 * RATE]
FLOATS = CLIP.astype(np.float32) / 32768

PCM = 1
FLOAT = 3
EXTENSIBLE = 0xFFFE
GUID = bytes.fromhex("000000001000800000aa00389b71")  # behind the two bytes of a format, KSDATAFORMAT_SUBTYPE


def wav(path: Path, planes: np.ndarray, kind: str, rate: int = RATE, mask: int | None = None) -> Path:
    """[channels, samples] of -1…1 as `u8`, `s16`, `s24`, `s32`, `f32` or `f64`; with a mask, WAVE_FORMAT_EXTENSIBLE."""
    channels, bits = len(planes), int(kind[1:])
    frames = planes.T
    if kind[0] == "f":
        data = frames.astype(f"<f{bits // 8}").tobytes()
    elif kind == "u8":
        data = (np.rint(frames * 127) + 128).astype(np.uint8).tobytes()
    else:
        whole = np.rint(frames.astype(np.float64) * (2 ** (bits - 1) - 1)).astype("<i4")
        data = whole[..., None].view(np.uint8).reshape(*frames.shape, 4)[..., : bits // 8].tobytes()
    tag = FLOAT if kind[0] == "f" else PCM
    width = channels * bits // 8
    head = (EXTENSIBLE if mask is not None else tag, channels, rate, min(rate * width, 2**32 - 1), width, bits)
    fmt = struct.pack("<HHIIHH", *head)
    if mask is not None:
        fmt += struct.pack("<HHIH", 22, bits, mask, tag) + GUID
    body = b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def alike(found: speech.Samples, expected: np.ndarray) -> float:
    """Correlation at the shift of a codec's delay."""
    size = 1 << (len(found) + len(expected)).bit_length()
    a, b = found.astype(float), expected.astype(float)
    cross = np.fft.irfft(np.fft.rfft(a, size) * np.conj(np.fft.rfft(b, size)), size)
    return float(np.abs(cross).max() / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("channels", range(1, 65))
def test_a_voice_on_one_of_any_number_of_channels_keeps_its_level(
    decode_file: DecodeFile, tmp_path: Path, channels: int
) -> None:
    planes = np.zeros((channels, len(CLIP)), np.float32)
    planes[channels * 2 // 3] = FLOATS
    found = decode_file(wav(tmp_path / "a.wav", planes, "f32"), 60)
    np.testing.assert_array_equal(found, CLIP)


MASKS = {
    "none": (8, 0),
    "7.1": (8, 0x63F),
    "7.1 wide": (8, 0xFF),
    "5.1 in eight": (8, 0x3F),  # fewer places than channels
    "all in two": (2, 0x3FFFF),  # and more
    "5.1": (6, 0x3F),
    "7.1.4": (12, 0x2D63F),
    "18": (18, 0x3FFFF),
    "unknown places": (4, 0xF0000000),
    "mono on the right": (1, 0x2),
}


GRID = [*itertools.product(MASKS, ["s16", "f32"]), *itertools.product(["7.1"], ["u8", "s24", "s32", "f64"])]


@pytest.mark.parametrize(("mask", "kind"), GRID)
def test_every_mask_and_sample_format(decode_file: DecodeFile, tmp_path: Path, mask: str, kind: str) -> None:
    channels, bits = MASKS[mask]
    planes = np.stack([FLOATS] * channels)
    planes[1::2] *= -1  # half of them turned upside down
    found = decode_file(wav(tmp_path / "a.wav", planes, kind, rate=48_000, mask=bits), 60)
    assert len(found) == -(-len(CLIP) * RATE // 48_000)
    third = speech.resampled(CLIP, 16_000)[: len(CLIP)]  # as it sounds, played three times as fast
    expected = decode_file(wav(tmp_path / "b.wav", third[None] / 32768, "f32", rate=48_000), 60)
    assert alike(found, expected) > (0.98 if kind == "u8" else 0.9999)
    assert abs(np.abs(found).max() / np.abs(expected).max() - 1) < 0.02


# (codec, container, layout)
CODED = [
    ("flac", "flac", "5.1"),
    ("flac", "flac", "7.1"),
    ("libopus", "ogg", "quad"),
    ("libopus", "ogg", "7.1"),
    ("libopus", "webm", "5.1"),
    ("aac", "mp4", "stereo"),
    ("aac", "mp4", "5.1"),
    ("aac", "mp4", "7.1(wide)"),
    ("tta", "tta", "7.1"),
    ("eac3", "matroska", "5.1"),
    ("alac", "mp4", "7.1(wide)"),
    ("wavpack", "wv", "7.1"),
    ("pcm_f64le", "mov", "7.1"),
    ("pcm_s16le", "matroska", "7.1"),
    ("pcm_s16be", "caf", "5.1"),
]


def coded(path: Path, planes: np.ndarray, codec: str, container: str, layout: str, rate: int) -> Path:
    """[channels, samples] of -1…1 in a codec's own format. From packed samples: PyAV's planar arrays end at eight."""
    with av.open(str(path), "w", format=container) as target:
        stream = target.add_stream(codec, rate=rate, layout=layout)
        stream.bit_rate = 96_000 * len(planes)
        stream.codec_context.open(strict=False)
        to = av.AudioResampler(stream.codec_context.format, layout, rate, frame_size=960)
        if stream.codec_context.frame_size:
            to = av.AudioResampler(stream.codec_context.format, layout, rate, stream.codec_context.frame_size)
        whole = av.AudioFrame.from_ndarray(np.ascontiguousarray(planes.T, np.float32).reshape(1, -1), "flt", layout)
        whole.sample_rate = rate
        for frame in (*to.resample(whole), *to.resample(None)):
            frame.time_base = Fraction(1, rate)
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("codec", "container", "layout"), CODED)
def test_codecs_with_many_channels(
    decode_file: DecodeFile, tmp_path: Path, codec: str, container: str, layout: str
) -> None:
    """Their frames are planar: one block of memory for each channel."""
    channels, rate = av.AudioLayout(layout).nb_channels, 48_000
    planes = np.zeros((channels, 2 * rate), np.float32)
    planes[0 if codec == "eac3" else channels - 1] = speech.resampled(CLIP, rate)[: 2 * rate] / 32768
    found = decode_file(coded(tmp_path / "a.media", planes, codec, container, layout, rate), 60)
    assert abs(len(found) - 2 * RATE) < 0.1 * RATE
    assert alike(found, CLIP) > 0.95
    assert np.abs(found).max() > 0.8 * np.abs(CLIP).max()


def test_ambisonics(decode_file: DecodeFile, tmp_path: Path) -> None:
    planes = np.stack([FLOATS, *[FLOATS * 0.3] * 3])
    path = speech.encode(planes, tmp_path / "a.mka", "pcm_f32le", layout="ambisonic 1")
    assert alike(decode_file(path, 60), CLIP) > 0.999


def test_more_channels_than_anybody_has_are_refused(decode_file: DecodeFile, tmp_path: Path) -> None:
    for channels in (65, 200):
        with pytest.raises(InvalidRequest, match=f"has {channels} audio channels; up to 64 are read"):
            decode_file(wav(tmp_path / "a.wav", np.zeros((channels, 100)), "s16"), 60)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_numbers_that_are_none(decode_file: DecodeFile, tmp_path: Path, kind: str) -> None:
    planes = np.stack([FLOATS, FLOATS])
    planes[0, 100:200], planes[1, 300], planes[0, 400], planes[1, 500] = np.nan, np.inf, -np.inf, 1e30
    found = decode_file(wav(tmp_path / "a.wav", planes, kind), 60)
    assert len(found) == len(CLIP)
    assert found[300] > 16000
    assert found[400] < -16000
    assert found[500] > 16000
    assert alike(found[600:], CLIP[600:]) > 0.999
    silent = decode_file(wav(tmp_path / "b.wav", np.full((3, 500), np.nan), kind), 60)
    np.testing.assert_array_equal(silent, np.zeros(500, np.int16))


@pytest.mark.parametrize("rate", [1, 2, 7, 50, 999, 4000, 11_025, 192_000, 655_350, 1_000_003, 10_000_000])
@pytest.mark.parametrize("channels", [1, 8])
def test_rates_from_1_hz(decode_file: DecodeFile, tmp_path: Path, rate: int, channels: int) -> None:
    samples = min(rate * 2, 100_000)
    path = wav(tmp_path / "a.wav", np.full((channels, samples), 0.25), "f32", rate)
    found = decode_file(path, 60)
    assert len(found) == -(-samples * RATE // rate)
    if rate >= 50:
        middle = found[len(found) // 4 : -len(found) // 4]
        np.testing.assert_allclose(middle, 0.25 * 32768, rtol=0.01)


@pytest.mark.parametrize("rate", [10_000_001, 2**31 - 1, 2**31, 2**32 - 1, 0])
def test_rates_that_are_none(decode_file: DecodeFile, tmp_path: Path, rate: int) -> None:
    with pytest.raises(InvalidRequest, match=r"samples a second; up to|can't be read as audio") as refused:
        decode_file(wav(tmp_path / "a.wav", np.full((2, 100), 0.25), "s16", rate), 60)
    assert refused.value.param == "file"


def test_the_length_is_capped_before_slow_samples_become_many(decode_file: DecodeFile, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="more than the 60 s"):
        decode_file(wav(tmp_path / "a.wav", np.zeros((1, 100_000)), "u8", 1), 60)


@pytest.mark.parametrize(
    ("codec", "container", "layouts"),
    [
        ("aac", "adts", ["mono", "stereo", "5.1", "mono"]),  # each frame says what it is
        ("libmp3lame", "mp3", ["mono", "stereo", "mono", "stereo"]),
        ("libopus", "ogg", ["stereo", "stereo", "stereo", "stereo"]),  # chained streams
    ],
)
def test_layout_and_rate_may_change_inside_a_stream(
    decode_file: DecodeFile, tmp_path: Path, codec: str, container: str, layouts: list[str]
) -> None:
    data = b""
    for layout, rate in zip(layouts, (16_000, 48_000, 48_000, 24_000), strict=True):
        audio = speech.resampled(CLIP, rate) if rate != RATE else CLIP
        planes = np.stack([audio / 32768] * av.AudioLayout(layout).nb_channels)
        data += coded(tmp_path / "part", planes, codec, container, layout, rate).read_bytes()
    (tmp_path / "all").write_bytes(data)
    found = decode_file(tmp_path / "all", 60)
    assert abs(len(found) - 8 * RATE) < 0.5 * RATE
    for number in range(4):
        part = found[max(0, 2 * number * RATE - RATE // 4) : (2 * number + 2) * RATE + RATE // 4]
        assert alike(part, CLIP) > 0.8, number


def test_a_change_that_ffmpeg_does_not_follow_is_refused(decode_file: DecodeFile, tmp_path: Path) -> None:
    data = b""
    for channels, layout in ((1, "mono"), (2, "stereo")):
        planes = np.stack([speech.resampled(CLIP, 48_000) / 32768] * channels)
        data += coded(tmp_path / "part", planes, "libopus", "ogg", layout, 48_000).read_bytes()
    (tmp_path / "all").write_bytes(data)
    with pytest.raises(InvalidRequest, match="changes in a way that FFmpeg does not follow"):
        decode_file(tmp_path / "all", 60)


def test_levels_do_not_jump_where_channels_come_and_go(decode_file: DecodeFile, tmp_path: Path) -> None:
    tone = 0.2 * np.sin(np.arange(4 * RATE) * 2 * np.pi * 200 / RATE).astype(np.float32)
    planes = np.stack([tone, tone, tone])
    planes[1:, RATE : 3 * RATE] = 0
    found = decode_file(wav(tmp_path / "a.wav", planes, "f32"), 60).astype(float) / 32768
    assert np.abs(np.diff(found)).max() < 2 * np.abs(np.diff(tone)).max()
    assert np.abs(found - tone)[RATE // 2 : RATE // 2 + 1000].max() < 0.01
    assert np.abs(found - tone)[2 * RATE : 2 * RATE + 1000].max() < 0.01
