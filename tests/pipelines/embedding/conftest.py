from pathlib import Path

import pytest

from tests.pipelines.embedding.driver import EmbeddingDriver


@pytest.fixture
def driver(tmp_path: Path) -> EmbeddingDriver:
    return EmbeddingDriver(tmp_path)
