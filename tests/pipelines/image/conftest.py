from pathlib import Path

import pytest

from tests.pipelines.image import checkpoints
from tests.pipelines.image.easel import Easel


@pytest.fixture(scope="session")
def sd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.stable_diffusion(tmp_path_factory.mktemp("sd"))


@pytest.fixture(scope="session")
def sdxl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.stable_diffusion_xl(tmp_path_factory.mktemp("sdxl"))


@pytest.fixture(scope="session")
def flux_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.flux(tmp_path_factory.mktemp("flux"))


@pytest.fixture
def easel(sd_folder: Path) -> Easel:
    return Easel(sd_folder)
