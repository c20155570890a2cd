"""GGUF files without torch: the bytes and the logits that torch's loader gives, and torch where they are not for it."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.decoder import loading
from models.decoder.batch import BLOCK_SIZE, ForwardBatch, Segment
from models.decoder.logits import on_host
from models.decoder.native.decoder import NativeDecoder
from models.decoder.native.library import library, missing
from models.decoder.transformer import Decoder
from models.files.gguf import GGUFFile
from models.files.source import resolve
from tests.equivalence.test_parity_gguf import LINEARS, convert
from tests.models.blocks import Q

pytestmark = pytest.mark.skipif(library() is None, reason=f"native kernels: {missing()}")

TABLES = ("embed_tokens", "lm_head")
# Heads that the library has code for; outputs that are no whole blocks of 16.
SHAPE = {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 160, "head_dim": 32}
# Of the mean difference to torch's loader: there, embeddings and norms are bfloat16, and the embedding has one scale a
# row. Inputs that fall to the other side of a rounding border make much of it in a random model.
BOUND = 0.1
IDS = list(range(40, 115))

Save = Callable[..., tuple[Path, Any]]


def write(save: Save, family: str, path: Path, kinds: dict[str, Q], **overrides: object) -> Path:
    _, reference = save(family.capitalize(), **{**SHAPE, **overrides})
    return convert(reference, family, path, kinds)


def load(path: Path) -> Any:
    return loading.load_decoder(path, device="cpu", dense_prefill=False).decoder


def by_torch(path: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    with monkeypatch.context() as patched:
        patched.setattr(loading, "load_native", lambda *_: None)
        decoder = load(path)
    assert isinstance(decoder, Decoder)
    assert decoder.details()["attention"] == "paged, native in prefill, native in decode"
    return decoder


def logits(decoder: Any, ids: list[int]) -> np.ndarray:
    """Of a prompt but for its last five tokens, which follow one by one."""
    cache = decoder.new_cache(8)
    blocks = list(range(8))[::-1]
    prompt = len(ids) - 5

    def forward(kind: str, start: int, end: int) -> np.ndarray:
        segment = Segment(end - start, start, blocks)
        batch = ForwardBatch(kind, np.array(ids[start:end]), np.arange(start, end), [segment])
        return on_host(decoder.forward(batch, cache))

    first = forward("prefill", 0, prompt)
    return np.concatenate([first, *(forward("decode", at, at + 1) for at in range(prompt, len(ids)))])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_weights_and_logits_are_those_of_torch_s_loader(
    family: str, kind: str, save_checkpoint: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {**dict.fromkeys(LINEARS, Q[kind]), **dict.fromkeys(TABLES, Q.Q8_0)}
    path = write(save_checkpoint, family, tmp_path / "m.gguf", kinds)
    ours, theirs = load(path), by_torch(path, monkeypatch)
    assert isinstance(ours, NativeDecoder)
    file = GGUFFile(path)
    for index, (own, layer) in enumerate(zip(ours._forward._kept[0], theirs._weights.layers, strict=True)):
        for name in ("qkv", "output", "gate_up", "down"):
            packed, expected = getattr(own, name), getattr(layer, name).packed
            assert (packed.bits, packed.nbytes) == (expected.bits, expected.nbytes)
            (blocks, scale, bias), (blocks_there, scale_there, bias_there) = packed._kept, expected._kept
            assert np.array_equal(blocks, blocks_there)
            assert scale is scale_there is None or np.array_equal(scale, scale_there)
            assert bias is bias_there is None or np.allclose(bias, bias_there, rtol=2**-8)  # bfloat16 there
        assert np.array_equal(own.attention_norm, file.dequantised(f"blk.{index}.attn_norm.weight").ravel())
    rows = np.array([3, 0, 3, 319])
    assert np.allclose(ours._embedding(rows), file.dequantised("token_embd.weight")[rows], rtol=1e-6, atol=0)
    found, expected = logits(ours, IDS), logits(theirs, IDS)
    assert np.abs(found - expected).mean() <= BOUND * expected.std()


def test_untied_and_tied_heads_of_four_bits(
    save_checkpoint: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tied in (True, False):
        kinds = dict.fromkeys((*LINEARS, *TABLES), Q.Q4_1)
        path = write(save_checkpoint, "llama", tmp_path / f"{tied}.gguf", kinds, tie_word_embeddings=tied)
        ours = load(path)
        assert isinstance(ours, NativeDecoder)
        assert ours.details()["head"] == "int4 (native)"
        found, expected = logits(ours, IDS), logits(by_torch(path, monkeypatch), IDS)
        assert np.abs(found - expected).mean() <= BOUND * expected.std()


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ({**dict.fromkeys(LINEARS, Q.Q4_1), "embed_tokens": Q.Q8_0}, "the head is dense"),
        ({**dict.fromkeys((*LINEARS, *TABLES), Q.Q4_1), "v_proj": Q.Q8_0}, "one linear of two types"),
        ({**dict.fromkeys((*LINEARS, *TABLES), Q.Q5_1)}, "a type that is requantised"),
    ],
)
def test_other_files_are_torch_s(kinds: dict[str, Q], why: str, save_checkpoint: Save, tmp_path: Path) -> None:
    path = write(save_checkpoint, "llama", tmp_path / "m.gguf", kinds, tie_word_embeddings=False)
    assert isinstance(load(path), Decoder), why


def test_other_wishes_are_torch_s(save_checkpoint: Save, tmp_path: Path) -> None:
    kinds = dict.fromkeys((*LINEARS, *TABLES), Q.Q4_1)
    path = write(save_checkpoint, "llama", tmp_path / "m.gguf", kinds)
    for option in ({"dense_prefill": True}, {"dtype": "float32"}, {"quantization": "int8"}, {"native": False}):
        options = {"dense_prefill": False, **option}
        assert isinstance(loading.load_decoder(path, device="cpu", **options).decoder, Decoder), option


@pytest.mark.requires_weights
def test_the_embedded_model_is_served_without_torch() -> None:
    script = """
import sys
from pipelines.base import Ticket
from pipelines.messages.frames import ModelSpec
from pipelines.messages.text import Sampling, StringPrompt, TextOptions, TextRequest
from pipelines.text.pipeline import TextPipeline
spec = ModelSpec(name="m", kind="text", pipeline="", source=sys.argv[1], options=TextOptions(dense_prefill=False))
pipeline, _ = TextPipeline.load(spec)
sampling = Sampling(max_tokens=4, temperature=0.7)
request = TextRequest(prompts=[StringPrompt("The capital of France is")], sampling=sampling)
pipeline.admit(pipeline.prepare(Ticket("r", "interactive", 0.0), request))
while pipeline.busy:
    pipeline.step()
pipeline.stats()
assert "torch" not in sys.modules, sorted(name for name in sys.modules if name.startswith("models"))
"""
    source = str(resolve("embedded:smollm2-135m-instruct"))
    done = subprocess.run([sys.executable, "-c", script, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_cache_says_what_its_blocks_take(save_checkpoint: Save, tmp_path: Path) -> None:
    path = write(save_checkpoint, "llama", tmp_path / "m.gguf", dict.fromkeys((*LINEARS, *TABLES), Q.Q8_0))
    decoder = load(path)
    cache = decoder.new_cache(3)
    config = decoder.config
    assert cache.bytes_per_block == config.num_layers * BLOCK_SIZE * 2 * config.num_kv_heads * config.head_dim * 2
    assert (cache.num_blocks, cache.block_size) == (3, BLOCK_SIZE)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no large pages")
def test_a_cache_is_on_small_pages(save_checkpoint: Save, tmp_path: Path) -> None:
    path = write(save_checkpoint, "llama", tmp_path / "m.gguf", dict.fromkeys((*LINEARS, *TABLES), Q.Q8_0))
    cache = load(path).new_cache(1_000)
    assert "nh" in mapping_flags(cache.pool.ctypes.data)  # MADV_NOHUGEPAGE


def mapping_flags(address: int) -> list[str]:
    """Of the mapping of this process that holds an address."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if (bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)) is not None:
            here = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif here and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no such mapping")
