from pathlib import Path

import pytest

from tests.pipelines.image import checkpoints
from tests.pipelines.image.driver import ImageDriver


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
def driver(sd_folder: Path) -> ImageDriver:
    return ImageDriver(sd_folder)
