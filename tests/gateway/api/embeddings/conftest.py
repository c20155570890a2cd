"""A model that embeds and ranks, whose answers the test speaks."""

import pytest

from tests.gateway.api.embeddings.scripted_embedding import Embedding, answered
from tests.gateway.scripted_app import AppHost, ScriptedApp


@pytest.fixture
def it(server: AppHost) -> ScriptedApp:
    return server.app(Embedding(slots=1024, answer=answered, images=True), kind="embedding")
