"""llama.cpp through llama-cpp-python's C bindings, greedy: its fastest path. Arguments: GGUF file, threads.

Requests and answers as in `engine.py`, one prompt each.
"""

import sys
from time import monotonic
from typing import Any

import llama_cpp  # type: ignore[import-not-found]

from tests.benchmarks.services.loop import serve


class LlamaService:
    def __init__(self, path: str, threads: int) -> None:
        # n_batch as in llama.cpp's own tools: a prompt of 1,000 tokens is one call.
        self._llama = llama_cpp.Llama(
            path, n_ctx=2048, n_batch=2048, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._context = self._llama.ctx
        self._sampler = llama_cpp.llama_sampler_init_greedy()

    def __call__(self, request: dict[str, Any]) -> list[list[float]]:
        (prompt,) = request["prompts"]
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        start = monotonic()
        stamps: list[float] = []
        ids = prompt
        for _ in range(request["tokens"]):
            ids = [self._step(ids)]
            stamps.append(monotonic() - start)
        return [stamps]

    def _step(self, ids: list[int]) -> int:
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        status = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, len(ids)))
        if status:
            raise RuntimeError(f"llama_decode: {status}")
        token: int = llama_cpp.llama_sampler_sample(self._sampler, self._context, -1)
        return token


if __name__ == "__main__":
    serve(LlamaService(sys.argv[1], int(sys.argv[2])))
