"""One application a module, which is served over a real socket."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway.scripted_app import AppHost, app_host


@pytest.fixture(scope="module")
def spool_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("spool"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(spool_dir: str) -> AsyncIterator[AppHost]:
    async with app_host(spool_dir) as running:
        yield running
