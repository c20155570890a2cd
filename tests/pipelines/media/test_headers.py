"""Sizes in headers: those that can't be true are not believed, and only what proves a cut is one."""

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.base import InvalidRequest
from tests import speech
from tests.pipelines.media.conftest import DecodeFile, helpers

CLIP = speech.samples(speech.CLIPS[1])
BYTES = CLIP.nbytes
# What programs leave that write to a pipe: SoX, espeak-ng, arecord, FFmpeg, … and what they had so far.
PIPED = [0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF, 0x7F000008, 0x3FFFFFFF, 0, BYTES // 2, 4096]


def sized(name: str, codec: str, spell: Callable[[bytes], tuple[int, str]], **options: str) -> Callable[..., bytes]:
    def make(folder: Path, size: int) -> bytes:
        data = bytearray(speech.encode(CLIP, folder / name, codec, options=options).read_bytes())
        at, kind = spell(bytes(data))
        wide = kind[1] == "q"
        struct.pack_into(kind, data, at, -1 if wide and size == 0xFFFFFFFF else size)
        return bytes(data)

    return make


CONTAINERS = {
    "wav": sized("a.wav", "pcm_s16le", lambda data: (data.index(b"data") + 4, "<I")),
    "rf64": sized("a.wav", "pcm_s16le", lambda data: (data.index(b"ds64") + 16, "<q"), rf64="always"),
    "aiff": sized("a.aiff", "pcm_s16be", lambda data: (data.index(b"SSND") + 4, ">I")),
    "au": sized("a.au", "pcm_s16be", lambda data: (8, ">I")),
    "caf": sized("a.caf", "pcm_s16be", lambda data: (data.index(b"data") + 4, ">q")),
    "w64": sized("a.w64", "pcm_s16le", lambda data: (data.index(b"data") + 16, "<q")),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_sizes_that_a_pipe_leaves_do_not_end_a_file(decode_file: DecodeFile, tmp_path: Path, container: str) -> None:
    path = tmp_path / "piped"
    for size in PIPED:
        path.write_bytes(CONTAINERS[container](tmp_path, size))
        np.testing.assert_array_equal(decode_file(path, 60), CLIP, err_msg=f"{size:x}")


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_plausible_size_that_is_not_there_proves_a_cut(
    decode_file: DecodeFile, tmp_path: Path, container: str
) -> None:
    path = tmp_path / "cut"
    path.write_bytes(CONTAINERS[container](tmp_path, 2 * BYTES))
    with pytest.raises(InvalidRequest, match=r"cut off: its header tells of 6\.0 s of audio, and 3\.0 s are there"):
        decode_file(path, 60)


def chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def test_chunks_behind_the_sound_are_no_sound(decode_file: DecodeFile, tmp_path: Path) -> None:
    """Also many, also odd ones: a size before them is believed."""
    wav = speech.CLIPS[1].read_bytes()
    path = tmp_path / "a.wav"
    path.write_bytes(wav + chunk(b"LIST", b"INFO" + chunk(b"INAM", b"name")) + chunk(b"_PMX", b"x" * 20_001))
    np.testing.assert_array_equal(decode_file(path, 60), CLIP)


def test_a_few_bytes_behind_the_sound_are_no_sound(decode_file: DecodeFile, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(speech.CLIPS[1].read_bytes() + b"TAG" + bytes(125))
    np.testing.assert_array_equal(decode_file(path, 60), CLIP)


def test_a_wrong_duration_alone_proves_nothing(decode_file: DecodeFile, tmp_path: Path) -> None:
    """An mp4 and a webm whose headers tell of more than their own tables have."""
    planes = speech.resampled(CLIP, 48_000).astype(np.float32) / 32768
    mp4 = speech.encode(planes, tmp_path / "a.m4a", "aac", rate=48_000)
    data = bytearray(mp4.read_bytes())
    at = data.index(b"mdhd") + 4 + 4 + 8 + 4
    struct.pack_into(">I", data, at, 10 * struct.unpack_from(">I", data, at)[0])
    mp4.write_bytes(data)
    assert abs(len(decode_file(mp4, 60)) - len(CLIP)) < 2000
    webm = speech.encode(planes, tmp_path / "a.webm", "libopus", rate=48_000)
    data = bytearray(webm.read_bytes())
    at = data.index(b"\x44\x89\x88") + 3  # Duration, 8 bytes
    (duration,) = struct.unpack_from(">d", data, at)
    struct.pack_into(">d", data, at, 10 * duration)
    webm.write_bytes(data)
    with av.open(str(webm)) as container:
        assert container.duration is not None
        assert container.duration > 25e6
    assert abs(len(decode_file(webm, 60)) - len(CLIP)) < 2000


UNREADABLE = {
    "garbage": bytes(range(256)) * 40,
    "a page": b"<!doctype html><html><body>404</body></html>",
    "no moov": b"\0\0\0\x20ftypisom\0\0\2\0isomiso2mp41" + b"\0\0\x10\0mdat" + bytes(4000),
    "wav without fmt": b"RIFF\xff\xff\xff\xffWAVEdata\0\0\0\0" + bytes(2000),
    "half an ogg header": b"OggS\0\2" + bytes(30),
    "a million chunks": b"RIFF\0\0\0\0WAVE" + bytes(8_000_000),
    "a chunk beyond all files": b"caff\0\1\0\0" + b"free\x7f" + b"\xff" * 7 + bytes(40),
    "a chunk that goes back": b"riff" + bytes(36) + b"fmt \xf3\xac\xd3\x11\x8c\xd1\0\xc0\x4f\x8e\xdb\x8a" + bytes(40),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_container_says_so(decode_file: DecodeFile, tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(UNREADABLE[name])
    with pytest.raises(InvalidRequest, match="its container is damaged, or none that FFmpeg knows") as refused:
        decode_file(path, 60)
    assert refused.value.param == "file"
    assert "empty" not in refused.value.message


def test_a_track_without_a_sample_says_so(decode_file: DecodeFile, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(speech.CLIPS[1].read_bytes()[:44])
    with pytest.raises(InvalidRequest, match="no sound in it"):
        decode_file(path, 60)


@pytest.mark.parametrize("seed", range(3))
def test_headers_of_any_bytes_are_an_answer_or_a_refusal(decode_file: DecodeFile, tmp_path: Path, seed: int) -> None:
    """Through one helper that survives all of them, as FFmpeg does."""
    random = np.random.default_rng(seed)
    decode_file(speech.CLIPS[1], 60)
    survivors = {each.pid for each in helpers()}
    whole = [make(tmp_path, BYTES) for make in CONTAINERS.values()]
    whole.append(speech.encode(CLIP, tmp_path / "a.flac", "flac").read_bytes())
    path = tmp_path / "broken"
    for data in whole:
        for _ in range(10):
            broken = bytearray(data)
            for at in random.integers(0, 120, 4):
                broken[at] = random.integers(0, 256)
            path.write_bytes(broken)
            with suppress(InvalidRequest):
                decode_file(path, 60)
    assert {each.pid for each in helpers()} == survivors
