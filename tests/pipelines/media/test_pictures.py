"""Every odd picture is pixels, or a refusal in clear words, and costs no more than a file may."""

import sys
from pathlib import Path

import numpy as np
import pytest

from pipelines.base import InvalidRequest
from pipelines.media.decoder import MediaDecoder
from pipelines.media.formats import FORMATS
from pipelines.media.messages import PictureJob
from tests.pipelines.media import odd_pictures
from tests.pipelines.media.conftest import helpers

FINE = odd_pictures.fine()
REFUSED = odd_pictures.refused()
PEAK = 400 << 20  # bytes that a helper has at most while it refuses: its own, and no picture


def job(data: bytes, **fields: int) -> PictureJob:
    return PictureJob(data=data, param="messages[0].content[1].image_url.url", background="white", **fields)


@pytest.mark.parametrize("name", FINE)
def test_pixels(media: MediaDecoder, name: str) -> None:
    odd = FINE[name]
    rgb = media.picture(job(odd.data)).rgb.astype(int)
    width, height = odd.size
    assert rgb.shape == (height, width, 3)
    right, lower = width * 3 // 4, height * 3 // 4
    found = [rgb[y, x] for y in (height // 4, lower) for x in (width // 4, right)]
    off = np.abs(np.array(found) - np.array(odd.quarters)).max()
    assert off <= odd.off, found


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(media: MediaDecoder, name: str) -> None:
    data, says = REFUSED[name]
    known = {helper.pid for helper in helpers()}
    with pytest.raises(InvalidRequest, match=says) as refused:
        media.picture(job(data))
    assert refused.value.param == "messages[0].content[1].image_url.url"
    assert "messages[0].content[1].image_url.url" in refused.value.message
    assert not known or known & {helper.pid for helper in helpers()}, "the decoder ended by it"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_a_header_promises_is_not_allocated() -> None:
    decoder = MediaDecoder()
    known = {helper.pid for helper in helpers()}
    for data, _ in REFUSED.values():
        with pytest.raises(InvalidRequest):
            decoder.picture(job(data))
    (mine,) = (helper for helper in helpers() if helper.pid not in known)
    status = Path(f"/proc/{mine.pid}/status").read_text()
    decoder.close()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < PEAK


def test_a_request_may_accept_fewer_pixels(media: MediaDecoder) -> None:
    odd = FINE["png"]
    pixels = odd.size[0] * odd.size[1]
    assert media.picture(job(odd.data, max_pixels=pixels)).rgb.size == 3 * pixels
    with pytest.raises(InvalidRequest, match=f"16 × 8 pixels, more than the {pixels - 1} that are accepted"):
        media.picture(job(odd.data, max_pixels=pixels - 1))
    with pytest.raises(InvalidRequest, match="more than the 50000000 that are accepted"):
        media.picture(job(odd_pictures.png_header(10_000, 5_001), max_pixels=10**9))


def test_every_format_that_is_named_is_read() -> None:
    assert {name.partition("-")[0].upper() for name in FINE} >= set(FORMATS)


@pytest.mark.parametrize("type", ["path", "data"])
def test_a_refusal_of_a_file_names_what_it_looks_like(media: MediaDecoder, tmp_path: Path, type: str) -> None:
    data, says = REFUSED["svg"]
    (tmp_path / "a.png").write_bytes(data)
    asked = job(data) if type == "data" else PictureJob(path=str(tmp_path / "a.png"), param="image")
    with pytest.raises(InvalidRequest, match=says):
        media.picture(asked)
