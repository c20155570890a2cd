"""What there is to prepare in requests that are no texts to be continued."""

from pathlib import Path

from pipelines.audio import prepare as audio
from pipelines.effort import MEDIA_BYTES
from pipelines.embedding.effort import effort as embedding
from pipelines.image import prepare as image
from pipelines.messages.audio import StreamRequest, TranscriptionRequest
from pipelines.messages.embedding import EmbeddingRequest, ImageBytes, RerankRequest
from pipelines.messages.image import ImageRequest
from pipelines.messages.text import StringPrompt


def test_texts_count_by_their_length_and_pictures_by_their_bytes() -> None:
    assert embedding(EmbeddingRequest(inputs=[StringPrompt("abc"), ImageBytes(bytes(5 * MEDIA_BYTES))])) == 8
    assert embedding(RerankRequest(query="q", documents=["ab", "c"])) == 4


def test_files_count_by_their_size(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(10 * MEDIA_BYTES))
    assert audio.effort(TranscriptionRequest(path=str(file))) == 10
    assert audio.effort(StreamRequest()) == 0
    assert image.effort(ImageRequest(prompt="cat", negative_prompt="dog")) == 6
    assert image.effort(ImageRequest(prompt="cat", image=str(file), mask=str(file))) == 23
    assert image.effort(ImageRequest(prompt="cat", image=str(tmp_path / "gone"))) == 3
