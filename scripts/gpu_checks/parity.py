"""Whether what runs on the device computes what it should."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scripts.gpu_checks.context import Context, Result, difference, seconds

FLOAT32_TOLERANCE = 2e-3  # relative to the largest logit
BF16_FACTOR = 4  # of the error that transformers' own bf16 forward has
BF16_FLOOR = 0.01

# Config class, model class, fields of their own.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "Mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 48}),
    "Qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 64}),
    "Phi3": ("Phi3Config", "Phi3ForCausalLM", {"pad_token_id": 0}),
    "SmolLM3": ("SmolLM3Config", "SmolLM3ForCausalLM", {"pad_token_id": 0}),
    "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {"head_dim": 64, "sliding_window": 48}),
}
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.05,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def families(context: Context) -> Result:
    """Logits of prompts and of decodes against transformers', for a tiny random checkpoint of each family."""
    from models.errors import ModelLoadError

    found: Result = {}
    for name in list(FAMILIES)[: context.pick(None, 1)]:
        try:
            found[name] = _family(context, name)
        except ModelLoadError as error:
            found[name] = {"skipped": str(error)}
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            if "CUDA error" in str(error):
                raise
            found[name] = {"ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"ok": all(each.get("ok", True) for each in found.values()), "families": found}


def _family(context: Context, name: str) -> Result:
    import transformers

    from models.decoder.loading import load_decoder

    torch.manual_seed(0)
    config_class, model_class, fields = FAMILIES[name]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**{**SHAPE, **fields})).eval()
    folder = context.folder / name
    model.save_pretrained(folder)
    _tokenizer(folder)
    lengths = context.pick((300, 33, 1), (20, 3))
    chance = torch.Generator().manual_seed(1)
    sequences = [torch.randint(3, 512, (length + 8,), generator=chance).tolist() for length in lengths]
    reference = _transformers(model.to(context.device), sequences, context.device)
    plain_bf16 = _transformers(model.to(torch.bfloat16), sequences, context.device)
    their_error = max(map(difference, plain_bf16, reference))
    found: Result = {"ok": True, "transformers_bf16_error": their_error}
    for dtype in ("float32", "bfloat16"):
        decoder = load_decoder(folder, device=str(context.device), dtype=dtype, threads=context.pick(None, 1)).decoder
        logits = run(decoder, sequences, lengths)
        error = max(map(difference, logits, reference))
        allowed = FLOAT32_TOLERANCE if dtype == "float32" else BF16_FLOOR + BF16_FACTOR * their_error
        found[dtype] = {"error": error, "attention": decoder.details()["attention"]}
        found["ok"] &= error <= allowed
    return found


def _tokenizer(folder: Path) -> None:
    vocabulary = {f"t{number}": number for number in range(512)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))


def _transformers(model: Any, sequences: Sequence[list[int]], device: torch.device) -> list[Tensor]:
    with torch.inference_mode():
        return [model(torch.tensor([ids], device=device)).logits[0].float() for ids in sequences]


def run(decoder: Any, sequences: Sequence[list[int]], prompts: Sequence[int]) -> list[Tensor]:
    """Logits of all positions: each prompt in one prefill, then all decoded together, over scattered blocks."""
    from models.decoder.batch import ForwardBatch, Segment

    count = len(sequences)
    size = decoder.new_cache(1).block_size
    most = -(-max(map(len, sequences)) // size)
    cache = decoder.new_cache(count * most)
    blocks = [[each * count + number for each in reversed(range(most))] for number in range(count)]

    def forward(kind: Any, parts: Sequence[tuple[int, int, int]]) -> Tensor:
        """Of (sequence, first position, length)."""
        ids = [token for number, start, length in parts for token in sequences[number][start : start + length]]
        positions = [position for _, start, length in parts for position in range(start, start + length)]
        segments = [Segment(length, start, blocks[number]) for number, start, length in parts]
        tensors = (torch.tensor(values, device=decoder.device) for values in (ids, positions))
        return decoder.forward(ForwardBatch(kind, *tensors, segments), cache)

    found = [[forward("prefill", [(number, 0, prompt)])] for number, prompt in enumerate(prompts)]
    for step in range(len(sequences[0]) - prompts[0]):
        logits = forward("decode", [(number, prompt + step, 1) for number, prompt in enumerate(prompts)])
        for number in range(count):
            found[number].append(logits[number : number + 1])
    return [torch.cat(each) for each in found]


@torch.inference_mode()
def attention(context: Context) -> Result:
    """Batched decode attention against a call a position, and torch's paged kernel against batched; what each takes."""
    from models.decoder.attention import varlen
    from models.decoder.attention.batched import BatchedAttention, RowTables
    from models.decoder.attention.paged import DecodeAttention, KVCache
    from models.decoder.attention.varlen import PAGE, VarlenAttention
    from models.decoder.batch import Segment
    from models.decoder.frequencies import NO_ROPE
    from models.decoder.layers import LayerSpec

    kv_heads, group, head_dim, device = 8, 4, context.pick(128, 16), context.device
    longest, rows = context.pick(2048, 600), context.pick(32, 3)
    found: Result = {"ok": True}
    for dtype in (torch.float32, torch.bfloat16):
        cache = KVCache(1, rows * -(-longest // PAGE), kv_heads, head_dim, dtype, device, PAGE)
        cache.pool.copy_(torch.randn(cache.pool.shape))
        order = torch.randperm(cache.num_blocks, generator=torch.Generator().manual_seed(0)).view(rows, -1).tolist()
        segments = [Segment(1, (longest - 1) * (row + 1) // rows, order[row]) for row in range(rows)]
        tables = RowTables.of(segments, PAGE, device)
        queries = torch.randn(rows, kv_heads, group, head_dim, device=device).to(dtype)
        own = torch.randn(rows, 2 * kv_heads * head_dim, device=device).to(dtype)
        wanted, output = torch.zeros_like(queries), torch.zeros_like(queries)
        one = DecodeAttention(cache, [LayerSpec(NO_ROPE)], segments, queries, wanted)
        batched = BatchedAttention(cache, [LayerSpec(NO_ROPE)], tables, queries, output)
        one(0, own)
        batched(0, own)
        error = difference(output, wanted)
        each: Result = {"batched_error": error}
        found["ok"] &= error <= (1e-4 if dtype == torch.float32 else 0.03)
        repeats = context.pick(20, 1)
        each["position_us"] = 1e6 * seconds(partial(one, 0, own), repeats, device)
        each["batched_us"] = 1e6 * seconds(partial(batched, 0, own), repeats, device)
        each["varlen_missing"] = varlen.missing(kv_heads, group, head_dim, dtype, device)
        if each["varlen_missing"] is None:
            kernel = VarlenAttention(cache, [LayerSpec(NO_ROPE)], tables, queries, output)
            each["varlen_probe_error"] = varlen.probe(kv_heads, group, head_dim, dtype, device)
            each["varlen_us"] = 1e6 * seconds(partial(kernel, 0, own), repeats, device)
            found["ok"] &= difference(output, wanted) <= 0.03
        found[str(dtype).removeprefix("torch.")] = each
    return found


@torch.inference_mode()
def linears(context: Context) -> Result:
    """Quantised products against those of the weights that their codes stand for; what each takes beside dense ones.

    int8 weights are held dense on CUDA: torch's kernel for them is run here to see whether that is right.
    """
    from models.decoder.weights.linear import Int4Linear, has_int4_kernel
    from models.decoder.weights.quantised import Int4Weight, Int8Weight

    device = context.device
    outputs, inputs = context.pick((8192, 2048), (64, 64))
    weight = torch.randn(outputs, inputs, device=device)
    int4, int8 = Int4Weight.quantise(weight), Int8Weight.quantise(weight)
    rounded = weight.bfloat16()
    codes, scale = int8.codes, int8.scale.to(torch.bfloat16)
    kernels: dict[str, tuple[Any, Tensor]] = {
        "bfloat16": (lambda x: x @ rounded.T, rounded.float()),
        "int8": (lambda x: torch._weight_int8pack_mm(x, codes, scale), int8.dense()),
    }
    if has_int4_kernel(outputs, inputs, device):
        kernels["int4"] = (Int4Linear(int4).decode, int4.dense())
    found: Result = {"ok": True, "shape": [outputs, inputs]}
    for name, (kernel, dense) in kernels.items():
        for rows in (1, 32, 512):
            x = torch.randn(rows, inputs, device=device).bfloat16()
            try:
                error = difference(kernel(x), x.float() @ dense.T)
                taken = 1e6 * seconds(partial(kernel, x), context.pick(20, 1), device)
            except (RuntimeError, NotImplementedError) as refusal:
                found[f"{name}, {rows} rows"] = {"error": str(refusal).splitlines()[0]}
                found["ok"] &= name == "int8"
                continue
            found[f"{name}, {rows} rows"] = {"error": error, "us": taken}
            found["ok"] &= error <= 0.03
    return found
