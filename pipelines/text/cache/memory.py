"""How much KV cache a model gets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pipelines.base import ModelError
from pipelines.messages.text import TextOptions

if TYPE_CHECKING:
    import torch

CONTEXT_SHARE = 4  # by default, the cache holds a quarter of the context of each sequence in a full batch,
MEMORY_SHARE = 4  # in at most a quarter of the memory that loading the weights has left
GPU_FRACTION = 0.9  # of a GPU's memory, by default: graphs, workspaces and fragments take some of the rest


@dataclass(frozen=True, slots=True)
class CacheSize:
    num_blocks: int
    max_model_len: int  # tokens: a sequence of so many fits the cache


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of a GPU, after the weights were loaded and the largest step was tried."""

    total: int
    free: int
    reserved: int  # by this process's allocator, in use or not
    peak: int  # the most that this process had in use at once

    def cache_bytes(self, fraction: float) -> int:
        """What a KV cache may take, so that no more than `fraction` of the GPU is in use; may be negative.

        What others hold, and what this process holds beside its allocator, counts as used.
        """
        others = self.total - self.free - self.reserved
        return int(self.total * fraction) - others - self.peak


def size_cache(
    options: TextOptions,
    *,
    context: int,
    block_size: int,
    bytes_per_block: int,
    available: int,
    gpu: GpuMemory | None = None,
) -> CacheSize:
    """Blocks of the KV cache, and the longest sequence. What the options say holds; what they leave open gives way.

    `context`: positions that the model was trained on. `available`: bytes. `gpu`: where the model runs on one, whose
    memory the cache then fills up to `gpu_memory_fraction`. Raises ModelError where the options can't hold together.
    """
    if options.gpu_memory_fraction is not None and gpu is None:
        raise ModelError("text.gpu_memory_fraction is set, but the model doesn't run on a GPU")
    length = options.max_model_len
    if length is not None and not 1 <= length <= context:
        raise ModelError(f"text.max_model_len is {length}, the model's context is {context} tokens")
    if options.kv_cache_tokens is not None:
        num_blocks = options.kv_cache_tokens // block_size
        least = block_size if length is None else length
        if num_blocks * block_size < least:
            raise ModelError(f"text.kv_cache_tokens is {options.kv_cache_tokens}: one sequence alone may need {least}")
    else:
        longest = length or context
        if gpu is None:
            wanted = max(longest, options.max_num_seqs * longest // CONTEXT_SHARE)
            num_blocks = min(-(-wanted // block_size), available // MEMORY_SHARE // bytes_per_block)
            remedy = "set text.max_model_len or text.kv_cache_tokens"
        else:
            available = gpu.cache_bytes(options.gpu_memory_fraction or GPU_FRACTION)
            num_blocks = available // bytes_per_block
            remedy = "set text.max_model_len, text.gpu_memory_fraction or text.kv_cache_tokens"
        if num_blocks * block_size < (length or block_size):
            raise ModelError(
                f"{available >> 20} MiB of memory are left: too little for a KV cache that holds {longest} tokens; "
                f"{remedy}"
            )
    return CacheSize(num_blocks, min(length or context, num_blocks * block_size))


def dense_prefill_fits(path: Path, available: int, bf16: bool) -> bool:
    """Whether a dense copy of the weights at `path`, in bfloat16 or float32, takes at most half of `available` bytes.

    By the size of the files: four times what they have in bfloat16, as 4-bit weights do.
    """
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return (4 if bf16 else 8) * sum(file.stat().st_size for file in files) <= available // 2


def gpu_memory(device: "torch.device", largest_step: Callable[[], None]) -> GpuMemory:
    """After such a step."""
    import torch

    torch.cuda.reset_peak_memory_stats(device)
    largest_step()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return GpuMemory(total, free, torch.cuda.memory_reserved(device), torch.cuda.max_memory_allocated(device))


def reserved_bytes(device: "torch.device") -> int:
    """What this process holds of a GPU's memory."""
    import torch

    reserved: int = torch.cuda.memory_reserved(device)
    return reserved


def available_bytes() -> int:
    """Memory of the host that can still be had within the limits of this process's control group."""
    available: int = psutil.virtual_memory().available
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no such limit, or none that can be read
        return available
    return min(available, max(limit - used, 0))
