"""transformers' own `generate` in bf16, greedy, on equally long prompts. Arguments: GGUF file, threads.

Requests and answers as in `engine.py`.
"""

import sys
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation import BaseStreamer

from tests.benchmarks.services.loop import serve


class Stamps(BaseStreamer):
    """When each step's tokens came; what is put first is the prompt."""

    def __init__(self) -> None:
        self.start = monotonic()
        self._seen: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self._seen.append(monotonic() - self.start)

    def end(self) -> None:
        pass

    @property
    def steps(self) -> list[float]:
        return self._seen[1:]


class TransformersService:
    def __init__(self, path: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16)
        self._model.eval()
        self._model.generation_config.eos_token_id = None  # every answer has its full length

    def __call__(self, request: dict[str, Any]) -> list[list[float]]:
        ids = torch.tensor(request["prompts"])
        stamps = Stamps()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request["tokens"],
                do_sample=False,
                pad_token_id=0,
                streamer=stamps,
            )
        return [stamps.steps] * len(ids)


if __name__ == "__main__":
    serve(TransformersService(Path(sys.argv[1]), int(sys.argv[2])))
