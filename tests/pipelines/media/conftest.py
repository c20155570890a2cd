from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipelines.media.decoder import HELPER, MediaDecoder
from pipelines.media.messages import AudioJob
from tests import speech

DecodeFile = Callable[[Path, float], speech.Samples]


def helpers(program: str = HELPER) -> list[psutil.Process]:
    """Those of this process that have not ended."""
    children = psutil.Process().children()
    return [each for each in children if each.status() != psutil.STATUS_ZOMBIE and program in each.cmdline()]


@pytest.fixture(scope="session")
def media() -> Iterator[MediaDecoder]:
    decoder = MediaDecoder()
    yield decoder
    decoder.close()


@pytest.fixture(scope="session")
def decode_file(media: MediaDecoder) -> DecodeFile:
    """Through a helper; a crash of it is the failure of the test."""
    return lambda path, seconds: media.audio(AudioJob(path=str(path), rate=speech.RATE, max_seconds=seconds))
