"""What a media helper costs when a file ends it: the request that brought the file, and nothing else."""

import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from pipelines.base import InvalidRequest
from pipelines.media import limits
from pipelines.media.audio import decode_audio
from pipelines.media.decoder import MediaDecoder
from pipelines.media.messages import AudioJob, Fit, PictureJob
from pipelines.media.pictures import decode_picture
from tests import speech
from tests.pipelines.media.conftest import helpers

CLIP = speech.CLIPS[1]
FAULTY = "tests.pipelines.media.faulty"

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and needs its limits")


def job(path: str | Path = CLIP) -> AudioJob:
    return AudioJob(path=str(path), rate=speech.RATE, max_seconds=60)


@pytest.fixture
def faulty() -> Iterator[MediaDecoder]:
    decoder = MediaDecoder(FAULTY, silence=20)
    yield decoder
    decoder.close()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("crash", "its decoder crashed"),
        pytest.param("memory", "more memory than a file may", marks=linux),
        ("loop", "longer than a file may"),
        ("error", "it is damaged"),
    ],
)
def test_a_fault_is_a_refusal_that_names_the_field(faulty: MediaDecoder, path: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        faulty.audio(job(path))
    assert refused.value.param == "file"
    assert "secret" not in refused.value.message
    np.testing.assert_array_equal(faulty.audio(job()), speech.samples(CLIP))


def test_a_helper_that_says_nothing_is_killed() -> None:
    decoder = MediaDecoder(FAULTY, silence=0.5)
    with pytest.raises(InvalidRequest, match="longer than a file may"):
        decoder.audio(job("sleep"))
    assert helpers(FAULTY) == []


def test_a_job_whose_helper_was_killed_is_done_again_and_is_no_fault_of_the_file(
    faulty: MediaDecoder, tmp_path: Path
) -> None:
    """As a system does that runs out of memory, which may be a model's."""
    again = faulty.audio(job(f"killed once {tmp_path / 'mark'} then {CLIP}"))
    np.testing.assert_array_equal(again, speech.samples(CLIP))
    with pytest.raises(RuntimeError, match="was killed, and so was the next"):
        faulty.audio(job("killed"))


@pytest.mark.parametrize("program", [FAULTY, "tests.no_such_module"])
def test_a_helper_that_ends_by_itself_is_no_fault_of_the_file(program: str) -> None:
    with pytest.raises(RuntimeError, match="exited with status"):
        MediaDecoder(program).audio(job("exit"))


@linux
def test_a_crash_costs_one_request_of_those_that_are_decoded(faulty: MediaDecoder, tmp_path: Path) -> None:
    """Two files at once, both in the middle of their jobs; the decoder of one of them gets a SIGSEGV."""
    results: dict[str, speech.Samples | InvalidRequest] = {}

    def decode(name: str) -> None:
        try:
            results[name] = faulty.audio(job(f"{tmp_path / name} then {CLIP}"))
        except InvalidRequest as refusal:
            results[name] = refusal

    threads, pipes = [], []
    for name in ("doomed", "fine"):
        os.mkfifo(tmp_path / name)
        threads.append(threading.Thread(target=decode, args=(name,)))
        threads[-1].start()
        pipes.append(os.open(tmp_path / name, os.O_WRONLY))  # a helper has opened it, too, and reads
    (owner,) = (each for each in helpers(FAULTY) if reads(each, tmp_path / "doomed"))
    owner.send_signal(signal.SIGSEGV)
    threads[0].join()
    assert isinstance(results["doomed"], InvalidRequest)
    assert results["doomed"].message == "'file' can't be decoded: its decoder crashed."
    assert "fine" not in results
    for pipe in pipes:
        os.close(pipe)
    threads[1].join()
    np.testing.assert_array_equal(results["fine"], speech.samples(CLIP))


def reads(process: psutil.Process, path: Path) -> bool:
    return any(os.path.realpath(each) == str(path) for each in Path(f"/proc/{process.pid}/fd").iterdir())


def test_a_helper_is_used_again_and_replaced_when_it_died_idle(caplog: pytest.LogCaptureFixture) -> None:
    decoder = MediaDecoder()
    known = {helper.pid for helper in helpers()}
    decoder.audio(job())
    (first,) = (helper for helper in helpers() if helper.pid not in known)
    decoder.audio(job())
    assert first.is_running()
    first.kill()
    first.wait()
    with caplog.at_level(logging.ERROR):
        np.testing.assert_array_equal(decoder.audio(job()), speech.samples(CLIP))
    assert caplog.records == []
    (second,) = (helper for helper in helpers() if helper.pid not in known)
    decoder.close()
    assert not second.is_running() or second.status() == psutil.STATUS_ZOMBIE
    decoder.close()


def test_helpers_end_with_their_owner(tmp_path: Path) -> None:
    """Also in the middle of a job, also when the owner has no say in its own end."""
    os.mkfifo(tmp_path / "pipe")
    code = (
        "import sys, threading, time, psutil\n"
        "from pipelines.media.decoder import MediaDecoder\n"
        "from tests.pipelines.media.test_decoder import job\n"
        "decoder = MediaDecoder()\n"
        "decoder.warm(); decoder.warm()\n"
        "threading.Thread(target=decoder.audio, args=(job(sys.argv[1]),), daemon=True).start()\n"
        "open(sys.argv[1], 'wb').close()\n"  # until a helper has opened it
        "print(*[child.pid for child in psutil.Process().children()], flush=True)\n"
        "time.sleep(3600)\n"
    )
    owner = psutil.Popen([sys.executable, "-c", code, str(tmp_path / "pipe")], stdout=-1, cwd=Path(__file__).parents[3])
    children = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
    assert len(children) >= 2
    owner.kill()
    owner.wait()
    owner.stdout.close()
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    assert len(gone) == len(children)


def test_a_decoder_that_is_dropped_leaves_no_process() -> None:
    decoder = MediaDecoder()
    known = {helper.pid for helper in helpers()}
    decoder.warm()
    (mine,) = (helper for helper in helpers() if helper.pid not in known)
    del decoder
    mine.wait(30)


def test_through_a_helper_as_without_one(media: MediaDecoder, tmp_path: Path) -> None:
    np.testing.assert_array_equal(media.audio(job()), np.concatenate([*decode_audio(job())]))
    Image.effect_noise((300, 200), 90).convert("RGBA").save(tmp_path / "a.png")
    fit = Fit(width=64, height=48, shortest_edge=60, resample=Image.Resampling.BICUBIC)
    for picture in (
        PictureJob(path=str(tmp_path / "a.png"), param="image", background="white"),
        PictureJob(data=(tmp_path / "a.png").read_bytes(), param="image", fit=fit),
    ):
        found, wanted = media.picture(picture), decode_picture(picture)
        np.testing.assert_array_equal(found.rgb, wanted.rgb)
        assert found.alpha is not None
        assert wanted.alpha is not None
        np.testing.assert_array_equal(found.alpha, wanted.alpha)
        assert found.full == (300, 200)
    with pytest.raises(InvalidRequest, match="is no picture that is read here") as refused:
        media.picture(PictureJob(data=b"text", param="input[3]"))
    assert refused.value.param == "input[3]"
    with pytest.raises(InvalidRequest, match="the file") as refused:
        media.picture(PictureJob(path=str(tmp_path / "none.png"), param="mask"))
    assert str(tmp_path) not in refused.value.message


@linux
def test_a_helper_knows_no_framework_and_takes_no_more_than_it_may(media: MediaDecoder) -> None:
    media.audio(job())
    helper = helpers()[0]
    mapped = {Path(each.path).name for each in helper.memory_maps()}
    assert not [name for name in mapped if name.startswith(("libtorch", "libonnx", "libctranslate"))]
    assert helper.rlimit(psutil.RLIMIT_AS)[0] <= limits.MEMORY
    assert helper.rlimit(psutil.RLIMIT_CORE)[0] == 0
    assert helper.nice() >= limits.NICENESS
    assert Path(f"/proc/{helper.pid}/oom_score_adj").read_text().strip() == "1000"


def test_the_largest_picture_of_the_widest_mode_is_within_the_memory(media: MediaDecoder, tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.new("RGBA", (7000, 7142), (10, 20, 30, 40)).save(path, compress_level=1)
    fit = Fit(width=64, height=64, resample=Image.Resampling.LANCZOS)
    picture = media.picture(PictureJob(path=str(path), param="image", fit=fit, background="white"))
    assert picture.full == (7000, 7142)
    assert picture.rgb.shape == (64, 64, 3)


def test_a_helper_that_was_started_before_does_the_first_job() -> None:
    decoder = MediaDecoder()
    known = {helper.pid for helper in helpers()}
    decoder.warm()
    while not (mine := [helper for helper in helpers() if helper.pid not in known]):
        time.sleep(0.01)  # a process has no command line until it has begun
    assert len(mine) == 1
    decoder.audio(job())
    assert [helper for helper in helpers() if helper.pid not in known] == mine
    decoder.close()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_pictures_of_any_bytes_are_an_answer_or_a_refusal(media: MediaDecoder, format: str) -> None:
    random = np.random.default_rng(0)
    file = io.BytesIO()
    Image.effect_noise((40, 30), 90).save(file, format)
    media.picture(PictureJob(data=file.getvalue(), param="image"))
    survivors = {helper.pid for helper in helpers()}
    for _ in range(40):
        broken = bytearray(file.getvalue())
        for at in random.integers(0, min(200, len(broken)), 3):
            broken[at] = random.integers(0, 256)
        with suppress(InvalidRequest):
            assert media.picture(PictureJob(data=bytes(broken), param="image")).rgb.ndim == 3
    assert {helper.pid for helper in helpers()} == survivors
