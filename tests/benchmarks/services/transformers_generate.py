"""transformers' own `generate` in bf16, greedy, on equally long prompts. Arguments: GGUF file, threads.

Requests and answers as in `engine.py`.
"""

import sys
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.generation import BaseStreamer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tests.benchmarks.services.loop import serve


class Stamps(BaseStreamer):  # type: ignore[misc]
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
        self._model = load(path).eval()
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


def load(path: Path) -> PreTrainedModel:
    """The file's weights, dequantised to bf16. `from_pretrained` does the same, but asks for accelerate."""
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(weights, strict=False)  # a tied head is not in the file
    return model


if __name__ == "__main__":
    serve(TransformersService(Path(sys.argv[1]), int(sys.argv[2])))
