"""How fast text models of real shapes run on the device, with weights of chance."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scripts.gpu_checks.context import Context, Result, difference, seconds

LLAMA_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
QWEN_3B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


class RandomCheckpoint:
    """Weights of a config's shapes, made on the device when they are asked for. See `Checkpoint`."""

    def __init__(self, config: Any, device: torch.device) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (config.vocab_size, hidden),
            "lm_head.weight": (config.vocab_size, hidden),
            "q_proj.weight": (query, hidden),
            "k_proj.weight": (key, hidden),
            "v_proj.weight": (key, hidden),
            "o_proj.weight": (hidden, query),
            "gate_proj.weight": (inner, hidden),
            "up_proj.weight": (inner, hidden),
            "down_proj.weight": (hidden, inner),
            "q_proj.bias": (query,),
            "k_proj.bias": (key,),
            "v_proj.bias": (key,),
        }
        self._hidden = hidden
        self._chance = torch.Generator(device).manual_seed(0)
        self._device = device

    def __contains__(self, name: str) -> bool:
        return True

    def require(self, config: Any) -> None:
        """All of them are there."""

    def weight(self, name: str) -> Tensor:
        shape = self._shapes.get(".".join(name.split(".")[-2:]))
        if shape is None:  # a norm
            return torch.ones(self._hidden, dtype=torch.bfloat16, device=self._device)
        values = torch.randn(shape, generator=self._chance, dtype=torch.bfloat16, device=self._device)
        return values.mul_(0.02)


def bandwidth(context: Context) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source = torch.empty(context.pick(1 << 30, 1 << 20), dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), context.pick(10, 1), context.device)


def memory(context: Context) -> Result:
    return {"ok": True, "copy_gb_s": bandwidth(context) / 1e9}


def text(shape: dict[str, Any], quantization: str | None) -> Callable[[Context], Result]:
    """Decode with graphs and without, and prefill, of one shape."""

    def check(context: Context) -> Result:
        reduced = {**shape, **TINY, **TINY_HEADS}
        return _text(context, reduced if context.reduced else shape, quantization)

    return check


@torch.inference_mode()
def _text(context: Context, shape: dict[str, Any], quantization: str | None) -> Result:
    from models.decoder import config as configs
    from models.decoder.assembly import LinearFactory, build_weights
    from models.decoder.batch import ForwardBatch, Segment
    from models.decoder.cuda_graphs import DecodeGraphs, GraphError
    from models.decoder.decode_path import BATCHED
    from models.decoder.transformer import Decoder

    device = context.device
    config = configs.from_hf(shape)
    factory = LinearFactory(torch.bfloat16, device, quantization=quantization, dense_prefill=False)
    weights = build_weights(config, RandomCheckpoint(config, device), factory)
    decoder = Decoder(config, weights, dtype=torch.bfloat16, device=device)
    recorder = None
    if context.reduced:
        decoder.decode_path = BATCHED
        recorder = _Eager
    start, steps, batches = context.pick((512, 48, (1, 32)), (20, 2, (1, 3)))
    size = decoder.new_cache(1).block_size
    per_row = -(-(start + 2 * steps) // size)
    cache = decoder.new_cache(batches[-1] * per_row + 1)
    cache.pool.copy_(torch.randn(cache.pool[0, :1].shape, device=device).expand_as(cache.pool))
    try:
        graphs = DecodeGraphs.capture(
            decoder,
            cache,
            scratch=cache.num_blocks - 1,
            max_rows=batches[-1],
            max_positions=per_row * size,
            recorder=recorder,
        )
        why_not = None
    except GraphError as error:
        graphs, why_not = None, str(error)
    found: Result = {"ok": graphs is not None, "graphs_missing": why_not, **decoder.details()}
    copied = bandwidth(context)
    kv_bytes = cache.bytes_per_block / size  # of a position
    for rows in batches:
        tables = [range(row * per_row, (row + 1) * per_row) for row in range(rows)]

        def segments(position: int, tables: list[range] = tables) -> list[Any]:
            return [Segment(1, position, table) for table in tables]

        def eager(ids: list[int], position: int, segments: Any = segments) -> Tensor:
            places = torch.full((len(ids),), position, device=device)
            batch = ForwardBatch("decode", torch.tensor(ids, device=device), places, segments(position))
            return decoder.forward(batch, cache)

        def replayed(ids: list[int], position: int, segments: Any = segments) -> Tensor:
            logits = graphs.run(ids, segments(position)) if graphs else None
            assert logits is not None
            return logits

        each: Result = {}
        weight_bytes = decoder.weight_bytes + rows * (start + steps / 2) * kv_bytes  # what a step must read
        for name, forward in {"eager": eager, "graphs": replayed}.items() if graphs else {"eager": eager}.items():
            ids = [5] * rows
            position = iter(range(start, start + 2 * steps))

            def step(forward: Any = forward, ids: list[int] = ids, position: Any = position) -> None:
                ids[:] = forward(ids, next(position)).argmax(1).tolist()

            taken = seconds(step, steps, device)
            each[name] = {
                "tokens_s": rows / taken,
                "step_ms": 1e3 * taken,
                "share_of_bandwidth": weight_bytes / taken / copied,
            }
        if graphs:
            wanted = eager([7] * rows, start)
            each["graphs_error"] = difference(replayed([7] * rows, start), wanted)
            found["ok"] &= each["graphs_error"] <= 0.05
        found[f"decode, {rows} rows"] = each
    found["prefill_tokens_s"] = _prefill(context, decoder)
    return found


def _prefill(context: Context, decoder: Any) -> float:
    """Of prompts of 512 tokens, one a step."""
    from models.decoder.batch import ForwardBatch, Segment

    tokens = context.pick(512, 32)
    cache = decoder.new_cache(-(-tokens // decoder.new_cache(1).block_size))
    ids = torch.arange(tokens, device=decoder.device)
    last = torch.tensor([tokens - 1], device=decoder.device)
    batch = ForwardBatch("prefill", ids, ids, [Segment(tokens, 0, range(cache.num_blocks))], last)
    return tokens / seconds(lambda: decoder.forward(batch, cache)[0, 0].item(), context.pick(5, 1), decoder.device)


class _Eager:
    """In place of a graph where there are none: the same step, run."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def replay(self) -> None:
        self._step.compute()
