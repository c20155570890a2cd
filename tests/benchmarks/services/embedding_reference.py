"""sentence-transformers or fastembed on a local model. Arguments: its folder, threads, which, a folder for an export.

{"texts": [text, …]} -> the vector of the first one. Runs in an environment of its own, and imports nothing of ours but
the lines.
"""

import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.services.loop import serve

BATCH = 32  # sentence-transformers' own default
DIMENSIONS = 384


class Torch:
    def __init__(self, path: str, threads: int, _: Path) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self._model = SentenceTransformer(path, device="cpu")

    def __call__(self, request: dict[str, Any]) -> list[float]:
        vectors = self._model.encode(request["texts"], batch_size=BATCH, show_progress_bar=False)
        assert len(vectors) == len(request["texts"])
        return [float(value) for value in vectors[0]]


class Onnx(Torch):
    def __init__(self, path: str, threads: int, export: Path) -> None:
        import torch
        from onnxruntime import SessionOptions
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        options = SessionOptions()
        options.intra_op_num_threads = threads
        kwargs = {"provider": "CPUExecutionProvider", "session_options": options}
        self._model = SentenceTransformer(path, device="cpu", backend="onnx", model_kwargs=kwargs)
        if not (export / "onnx").exists():
            self._model.save_pretrained(str(export))


class Fastembed:
    """Over the graph that `Onnx` exported."""

    def __init__(self, _: str, threads: int, export: Path) -> None:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        graph = next((export / "onnx").glob("*.onnx")).relative_to(export)
        TextEmbedding.add_custom_model(
            model="local",
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(hf="local"),
            dim=DIMENSIONS,
            model_file=str(graph),
        )
        self._model = TextEmbedding("local", specific_model_path=str(export), threads=threads)

    def __call__(self, request: dict[str, Any]) -> list[float]:
        vectors = list(self._model.embed(request["texts"], batch_size=BATCH))
        assert len(vectors) == len(request["texts"])
        return [float(value) for value in vectors[0]]


KINDS = {"torch": Torch, "onnx": Onnx, "fastembed": Fastembed}

if __name__ == "__main__":
    path, threads, which, export = sys.argv[1:]
    serve(KINDS[which](path, int(threads), Path(export)))
