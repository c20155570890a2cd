"""Any container and codec -> the same 16 kHz mono; what can't be read says so."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.base import InvalidRequest
from tests import speech
from tests.pipelines.media.conftest import DecodeFile

CLIP = speech.CLIPS[1]


def likeness(found: speech.Samples, expected: speech.Samples) -> float:
    """Correlation of the two where they fit best; codecs shift by their delay."""
    size = 1 << (len(found) + len(expected)).bit_length()
    a, b = found.astype(float), expected.astype(float)
    cross = np.fft.irfft(np.fft.rfft(a, size) * np.conj(np.fft.rfft(b, size)), size)
    return float(cross.max() / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_a_16_khz_wav_comes_through_bit_by_bit(decode_file: DecodeFile) -> None:
    np.testing.assert_array_equal(decode_file(CLIP, 60), speech.samples(CLIP))


@pytest.mark.parametrize(
    ("name", "codec", "rate", "options"),
    [
        ("a.mp3", "libmp3lame", 44_100, {}),
        ("a.flac", "flac", 16_000, {}),
        ("a.ogg", "libopus", 16_000, {}),
        ("a.opus", "libopus", 48_000, {}),
        ("a.webm", "libopus", 48_000, {"live": "1"}),  # a live webm has neither duration nor index
        ("a.m4a", "aac", 48_000, {}),  # its index is at the end
        ("piped.mp4", "aac", 24_000, {"movflags": "frag_keyframe+empty_moov"}),
        ("a.aac", "aac", 16_000, {}),  # no end-of-stream mark
        ("a.wav", "pcm_s24le", 48_000, {}),
        ("b.wav", "pcm_f32le", 44_100, {}),
        ("c.wav", "pcm_u8", 8_000, {}),
        ("d.wav", "pcm_mulaw", 8_000, {}),
    ],
)
def test_every_container_rate_and_width(
    decode_file: DecodeFile, tmp_path: Path, name: str, codec: str, rate: int, options: dict[str, str]
) -> None:
    audio = speech.resampled(speech.samples(CLIP), rate) if rate != speech.RATE else speech.samples(CLIP)
    planes = audio.astype(np.float32) / 32768 if codec not in ("flac", "pcm_u8") else audio
    format = {"a.aac": "adts"}.get(name)
    path = speech.encode(planes, tmp_path / name, codec, rate=rate, format=format, options=options)
    found = decode_file(path, 60)
    assert abs(len(found) - len(speech.samples(CLIP))) < 0.15 * speech.RATE
    assert likeness(found, speech.samples(CLIP)) > (0.9 if rate > 8_000 else 0.8)


@pytest.mark.parametrize("sides", [(1, 1), (1, -1), (1, 0), (0, 1), (1, -0.5)])
def test_no_channel_is_lost_and_none_cancels(
    decode_file: DecodeFile, tmp_path: Path, sides: tuple[float, float]
) -> None:
    audio = speech.samples(CLIP).astype(np.float32) / 32768
    path = speech.encode(np.stack([audio * side for side in sides]), tmp_path / "s.wav", "pcm_f32le", layout="stereo")
    found = decode_file(path, 60)
    assert likeness(found, speech.samples(CLIP)) > 0.99 or likeness(-found, speech.samples(CLIP)) > 0.99
    assert np.abs(found).max() > 0.45 * np.abs(speech.samples(CLIP)).max()


def test_two_speakers_on_two_channels_are_both_there(decode_file: DecodeFile, tmp_path: Path) -> None:
    first, second = (speech.samples(clip) for clip in speech.CLIPS[1:3])
    stereo = np.zeros((2, len(first) + len(second)), np.int16)
    stereo[0, : len(first)], stereo[1, len(first) :] = first, second
    planes = stereo.astype(np.float32) / 32768
    found = decode_file(speech.encode(planes, tmp_path / "s.wav", "pcm_f32le", layout="stereo"), 60)
    assert likeness(found[: len(first)], first) > 0.99
    assert likeness(found[len(first) :], second) > 0.99


@pytest.mark.parametrize("samples", [1, 80, 300])
def test_a_clip_under_20_ms_is_no_error(decode_file: DecodeFile, tmp_path: Path, samples: int) -> None:
    assert len(decode_file(str(speech.wav(np.ones(samples, np.int16), tmp_path / "a.wav")), 60)) == samples


def test_decoded_seconds_are_capped_while_decoding(decode_file: DecodeFile, tmp_path: Path) -> None:
    bomb = speech.encode(np.zeros((1, 600 * speech.RATE), np.int16), tmp_path / "bomb.flac", "flac")
    assert bomb.stat().st_size < 200_000
    with pytest.raises(InvalidRequest, match="more than the 30 s") as refusal:
        decode_file(bomb, 30)
    assert refusal.value.param == "file"


def test_what_is_no_audio_says_so(decode_file: DecodeFile, tmp_path: Path) -> None:
    for name, data in {
        "garbage.wav": bytes(range(256)) * 40,
        "empty.mp3": b"",
        "cut.m4a": speech.encode(
            speech.samples(CLIP).astype(np.float32) / 32768, tmp_path / "whole.m4a", "aac"
        ).read_bytes()[:4000],
        "header.wav": CLIP.read_bytes()[:44],
        "list.m3u8": f"#EXTM3U\n#EXTINF:3,\n{CLIP}\n#EXT-X-ENDLIST\n".encode(),
        "list.ffconcat": f"ffconcat version 1.0\nfile {CLIP}\n".encode(),
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(InvalidRequest, match=r"audio|sound") as refusal:
            decode_file(path, 60)
        assert refusal.value.param == "file"


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.wav", "pcm_s16le", {}),
        ("a.flac", "flac", {}),
        ("a.m4a", "aac", {"movflags": "faststart"}),  # its index is at the front
        ("a.webm", "libopus", {}),
    ],
)
def test_a_file_that_is_cut_off_is_refused(
    decode_file: DecodeFile, tmp_path: Path, name: str, codec: str, options: dict[str, str]
) -> None:
    rate = 48_000 if codec in ("libopus", "aac") else speech.RATE
    audio = speech.resampled(speech.samples(CLIP), rate) if rate != speech.RATE else speech.samples(CLIP)
    planes = audio.astype(np.float32) / 32768 if rate != speech.RATE else audio
    whole = speech.encode(planes, tmp_path / name, codec, rate=rate, options=options)
    assert len(decode_file(whole, 60)) > 2.9 * speech.RATE
    cut = tmp_path / f"cut-{name}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(
        InvalidRequest, match=r"cut off: its header tells of 3\.0 s of audio, and 1\.\d s are there"
    ) as refusal:
        decode_file(cut, 60)
    assert refusal.value.param == "file"


def test_where_the_header_does_not_know_the_length_a_file_is_read_as_far_as_it_goes(
    decode_file: DecodeFile, tmp_path: Path
) -> None:
    """An mp3's is an estimate; recorders that can't seek leave a wav's open."""
    samples = speech.samples(CLIP)
    mp3 = speech.encode(samples.astype(np.float32) / 32768, tmp_path / "a.mp3", "libmp3lame").read_bytes()
    (tmp_path / "cut.mp3").write_bytes(mp3[: len(mp3) // 2])
    assert 0.4 < len(decode_file(tmp_path / "cut.mp3", 60)) / len(samples) < 0.6
    wav = CLIP.read_bytes()
    size = wav.index(b"data") + 4
    for unknown in (b"\xff" * 4, b"\0" * 4):
        (tmp_path / "piped.wav").write_bytes(wav[:size] + unknown + wav[size + 4 : len(wav) // 2])
        assert 0.4 < len(decode_file(tmp_path / "piped.wav", 60)) / len(samples) < 0.6


def test_a_damaged_file_is_refused(decode_file: DecodeFile, tmp_path: Path) -> None:
    whole = speech.encode(speech.samples(CLIP), tmp_path / "a.flac", "flac")
    data = bytearray(whole.read_bytes())
    for at in range(2000, len(data), 1500):
        data[at : at + 200] = bytes(200)
    whole.write_bytes(data)
    with pytest.raises(InvalidRequest, match=r"damaged|cut off"):
        decode_file(whole, 60)
