"""A pipeline that lacks a library says which, and what tells the command."""

import sys
from pathlib import Path

import pytest

from pipelines.base import ModelError
from pipelines.messages.audio import AudioOptions
from pipelines.messages.frames import ModelSpec
from pipelines.runtime.worker import load

EARLY = "import no_such_library\n\nclass Deaf: ...\n"
LATE = """
class Deaf:
    @classmethod
    def load(cls, spec):
        import no_such_library.part
"""


def spec(pipeline: str) -> ModelSpec[AudioOptions]:
    return ModelSpec(name="m", kind="audio", pipeline=pipeline, source="fake:", options=AudioOptions())


@pytest.mark.parametrize("code", [EARLY, LATE])
def test_a_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    (tmp_path / "deaf_pipeline.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "deaf_pipeline", raising=False)
    with pytest.raises(
        ModelError, match=r"the library no_such_library(\.part)? is not installed; 'gateway doctor' says"
    ):
        load(spec("deaf_pipeline:Deaf"))


@pytest.mark.parametrize("pipeline", ["pipelines.audio.nothing:Deaf", "pipelines.audio.pipeline_:Deaf", "nothing"])
def test_a_pipeline_that_is_not_there_is_none(pipeline: str) -> None:
    with pytest.raises(ModelError, match="there is no pipeline"):
        load(spec(pipeline))
