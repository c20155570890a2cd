"""Files that say what can't be: each is refused by the key or the tensor, before anything large is made of it."""

import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.decoder.config import from_hf
from models.decoder.gguf_config import describe_gguf
from models.decoder.loading import load_decoder
from models.decoder.native.library import library
from models.decoder.weights.checkpoint import SafetensorsCheckpoint
from models.decoder.weights.packed import packing_of
from models.errors import ModelLoadError
from models.files.gguf import GGUFFile
from models.tokenizer.tokenizer import from_gguf
from tests.models.decoder.test_config import GEMMA3, HF, PHI3, SMOLLM3
from tests.models.decoder.test_loading import folder, load, tensors  # noqa: F401 (a fixture)
from tests.models.hostile import HIDDEN, TOKENS, altered, gguf_tensors, mutations, write_model

MUTATIONS = 20_000
SHARE = 1.5  # of the file: what looking at it may take of memory

NATIVE = pytest.mark.parametrize(
    "native", [False, pytest.param(True, marks=pytest.mark.skipif(library() is None, reason="no native library"))]
)
NAN, INF = float("nan"), float("inf")


def read(path: Path, *, native: bool = True) -> None:
    load_decoder(path, device="cpu", dense_prefill=False, native=native)


@NATIVE
def test_the_model_that_is_changed_below_is_one(tmp_path: Path, native: bool) -> None:
    read(write_model(tmp_path / "m.gguf"), native=native)


def test_a_tokenizer_may_have_tokens_behind_the_embedding_s_rows(tmp_path: Path) -> None:
    added = {"tokenizer.ggml.tokens": [*TOKENS, "<pad>"], "tokenizer.ggml.token_type": [1] * 31 + [3, 3]}
    read(write_model(tmp_path / "m.gguf", metadata=added))


SHAPES = "description says|lacks the tensor"  # it could be a model's, but not the one whose tensors are there
HEADS = "attention.head_count"

# What is said of each: the key, but where another one or a tensor tells.
METADATA_THAT_CAN_NOT_BE: list[tuple[str, list[Any], str]] = [
    ("llama.attention.head_count", [0, 3, 4096, 2**32 - 1, 8.0, "8", True, [8, 8]], HEADS),
    ("llama.attention.head_count_kv", [0, 3, 16, 2**32 - 1, 4.0], HEADS),
    ("llama.attention.head_count_kv", [2], SHAPES),
    ("llama.attention.key_length", [1, 63], "heads of"),
    ("llama.attention.key_length", [2**31, 64.0], "attention.key_length"),
    ("llama.attention.key_length", [32], SHAPES),
    ("llama.embedding_length", [0, 2**32 - 1, 512.0, "512"], "embedding_length"),
    ("llama.embedding_length", [511], "heads of 63"),
    ("llama.embedding_length", [1024], SHAPES),
    ("llama.feed_forward_length", [0, 2**32 - 1, 512.0], "feed_forward_length"),
    ("llama.feed_forward_length", [511], SHAPES),
    ("llama.block_count", [0, 2**20, 2**32 - 1, 1.0], "block_count"),
    ("llama.block_count", [2, 4096], SHAPES),
    ("llama.context_length", [0, 2**31, 128.0], "context_length"),
    ("llama.vocab_size", [0, 2**32 - 1, 32.0], "vocab_size"),
    ("llama.vocab_size", [31, 33], SHAPES),
    ("llama.rope.freq_base", [NAN, INF, 0.0, -1.0, "10000", True], "rope.freq_base"),
    ("llama.rope.dimension_count", [0, 64.0], "rope.dimension_count"),
    ("llama.attention.layer_norm_rms_epsilon", [INF, NAN, 0.0, -1e-5, 2.0, "small"], "layer_norm_rms_epsilon"),
    ("tokenizer.ggml.eos_token_id", [len(TOKENS), 2**32 - 1, 2.0, "</s>"], "eos_token_id"),
    ("tokenizer.ggml.tokens", [[1, 2], "tokens", 7], "tokenizer.ggml.tokens"),
    ("tokenizer.ggml.tokens", [["t"] * (len(TOKENS) - 1)], f"{len(TOKENS)} values for {len(TOKENS) - 1} tokens"),
    ("tokenizer.ggml.token_type", [[1, 1], [0.5] * len(TOKENS), "types"], "tokenizer.ggml.token_type"),
    ("tokenizer.ggml.merges", [["ab"], ["a"], 3], "tokenizer.ggml.merges"),
    ("tokenizer.ggml.merges", [["x y"]], r"tokenizer.ggml.\* make no tokenizer"),
    ("tokenizer.ggml.add_bos_token", [1, "yes"], "add_bos_token"),
    ("tokenizer.ggml.model", [7], "tokenizer.ggml.model"),
    ("tokenizer.ggml.model", ["unheard-of"], "GGUF tokenizer unheard-of"),
    ("tokenizer.chat_template", [7, True], "tokenizer.chat_template"),
    ("general.alignment", [0, 3, 2**31, 32.0], "general.alignment"),
]


@pytest.mark.parametrize(("key", "values", "said"), METADATA_THAT_CAN_NOT_BE)
def test_metadata_that_no_model_has_are_named(tmp_path: Path, key: str, values: list[Any], said: str) -> None:
    for value in values:
        with pytest.raises(ModelLoadError, match=said):
            read(write_model(tmp_path / "m.gguf", metadata={key: value}))


@pytest.mark.parametrize("key", [key for key, value in HF.items() if isinstance(value, int)])
def test_sizes_of_a_config_that_no_model_has_are_refused_by_their_key(key: str) -> None:
    for value in (0, -1, 2**40, 10**400, 64.0, "64", True, [64], NAN):
        with pytest.raises(ModelLoadError, match=key):
            from_hf({**HF, key: value})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rms_norm_eps": INF}, "rms_norm_eps is inf"),
        ({"rms_norm_eps": 1}, "rms_norm_eps is 1"),
        ({"rope_theta": NAN}, "rope_theta is nan"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 1.0}},
            "rope parameters .* no frequencies",
        ),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_parameters": "yarn"}, "rope_parameters is 'yarn', not a table"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', not true or false"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, r"num_attention_heads \(3\) is no multiple"),
        ({"head_dim": 15}, "heads of 15 components"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM', not a list of texts"),
        ({"architectures": GEMMA3, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        ({"architectures": GEMMA3, "sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
    ],
)
def test_what_else_a_config_may_not_say(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        from_hf({**HF, **change})


# --- tensors ----------------------------------------------------------------------------------------------------------


def infos(data: bytearray) -> dict[str, int]:
    """Where each tensor's number of dimensions is in a GGUF file."""
    return {name: data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name) for name in gguf_tensors()}


def put(data: bytearray, at: int, *numbers: int) -> None:
    data[at : at + 8 * len(numbers)] = struct.pack(f"<{len(numbers)}Q", *numbers)


def changed(path: Path, change: Callable[[bytearray, int], None], name: str) -> Path:
    """With the header of the tensor `name` changed, which `change` is told the place of."""
    data = bytearray(write_model(path).read_bytes())
    change(data, infos(data)[name])
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data, at: put(data, at + 4, 32, HIDDEN), "token_embd.weight is"),  # swapped dimensions
        (lambda data, at: put(data, at + 4, 2**63, 2), "token_embd.weight"),  # a product that is 0 in 64 bits
        (lambda data, at: put(data, at + 4, 2**62, 4), "token_embd.weight"),
        (lambda data, at: put(data, at + 4, 0, 32), "token_embd.weight is"),
        (lambda data, at: put(data, at + 4, 33, 32), "token_embd.weight is"),  # no whole blocks
        (lambda data, at: put(data, at + 24, 2**63), "token_embd.weight"),  # an offset beyond the file
        (lambda data, at: put(data, at + 24, 1), "token_embd.weight begins at 1"),
        (lambda data, at: data.__setitem__(slice(at, at + 4), struct.pack("<I", 5)), "token_embd.weight has 5 dim"),
        (lambda data, at: data.__setitem__(slice(at + 20, at + 24), struct.pack("<I", 999)), "unknown GGUF type 999"),
        (lambda data, at: data.__setitem__(slice(at - 4, at), b"orm."), "token_embd"),  # another name
    ],
)
def test_tensors_that_do_not_lie_in_their_file_are_named(
    tmp_path: Path, change: Callable[[bytearray, int], None], named: str
) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read(changed(tmp_path / "m.gguf", change, "token_embd.weight"))


def test_tensors_that_overlap_and_names_that_come_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = bytearray(write_model(path).read_bytes())
    places = infos(data)
    copied, start = bytearray(data), places["blk.0.attn_q.weight"] + 24
    at = places["blk.0.attn_k.weight"] + 24
    copied[at : at + 8] = data[start : start + 8]
    path.write_bytes(copied)
    with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_. ?.*overlap"):
        GGUFFile(path)
    copied = bytearray(data)
    at = places["blk.0.attn_k.weight"]
    copied[at - 8] = ord("q")  # blk.0.attn_q.weight, again
    path.write_bytes(copied)
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.attn_q\.weight' is there twice"):
        GGUFFile(path)


@NATIVE
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("token_embd.weight", 1.0, "one and the same row"),
        ("token_embd.weight", 0.0, "one and the same row"),
        ("blk.0.ffn_up.weight", 1.0, "one and the same row"),
        ("blk.0.ffn_up.weight", NAN, "not finite"),
        ("blk.0.attn_norm.weight", INF, "not finite"),
        ("output_norm.weight", NAN, "not finite"),
    ],
)
def test_values_that_are_no_weights_are_refused(
    tmp_path: Path, name: str, value: float, said: str, native: bool
) -> None:
    """All ones, too: every token would be the same."""
    values = np.random.default_rng(1).normal(size=gguf_tensors()[name]).astype(np.float32)
    if value == value and value != INF:
        values[:] = value
    else:
        values[-1] = value
    with np.errstate(invalid="ignore"):
        path = write_model(tmp_path / "m.gguf", changed={name: values})
    with pytest.raises(ModelLoadError, match=said):
        read(path, native=native)


@NATIVE
def test_layers_of_zeros_are_weights(tmp_path: Path, native: bool) -> None:
    """Models that were made deeper have them: the residual passes by."""
    zeros = np.zeros(gguf_tensors()["blk.0.ffn_down.weight"], np.float32)
    read(write_model(tmp_path / "m.gguf", changed={"blk.0.ffn_down.weight": zeros}), native=native)


def test_safetensors_are_held_against_their_header(folder: Path) -> None:  # noqa: F811
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    name = "model.layers.0.mlp.up_proj.weight"
    begin, end = header[name]["data_offsets"]
    for change, said in (
        ({"dtype": "F31"}, "dtype is 'F31'"),
        ({"dtype": "F64"}, f"{name} has .* bytes, where F64"),
        ({"shape": [64, 96]}, f"{name} is .*64, 96.*description says .*96, 64"),
        ({"shape": [-1, -6144]}, f"{name}: shape is"),
        ({"shape": [96.0, 64]}, f"{name}: shape is"),
        ({"shape": "x"}, f"{name}: shape is"),
        ({"shape": [2**62, 4]}, f"{name} has .* bytes"),
        ({"data_offsets": [begin + 4, end + 4]}, "bytes overlap"),
        ({"data_offsets": [0, end - begin]}, "bytes overlap"),
        ({"data_offsets": [begin, 2**63]}, f"{name} has .* bytes"),
        ({"data_offsets": [begin]}, f"{name}: data_offsets is"),
    ):
        text = json.dumps({**header, name: {**header[name], **change}}).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        with pytest.raises(ModelLoadError, match=said):
            load(folder)
    for content in (b"", whole[:4], b"\xff" * 8 + whole[8:], whole[:-1], whole + b"\0", b"[]"):
        file.write_bytes(content)
        with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
            load(folder)
    stored = {**tensors(), name: torch.zeros(96, 64, dtype=torch.int32)}
    save_file(stored, file)
    with pytest.raises(ModelLoadError, match=f"{name} is of int32"):
        load(folder)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", 7, None, "config.json", "absent.safetensors"])
def test_an_index_names_files_beside_it(folder: Path, shard: object) -> None:  # noqa: F811
    index = {"weight_map": dict.fromkeys(tensors(), "model.safetensors") | {"lm_head.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=r"weight_map|absent\.safetensors"):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["[]", "7", "{", "[" * 200_000, "\xff", '{"eos_token_id": "x", "eos_token": []}'])
def test_descriptions_that_are_none_are_named(folder: Path, name: str, content: str) -> None:  # noqa: F811
    text = json.dumps({**HF, **json.loads(content)}) if "eos" in content and name == "config.json" else content
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelLoadError, match=name.replace(".", r"\.")):
        load(folder)


# --- by chance --------------------------------------------------------------------------------------------------------


def look_at_gguf(path: Path, headers: Iterable[bytes]) -> None:
    """As both loaders do, and now and then load what is left."""
    with path.open("r+b") as file:
        for number, header in enumerate(headers):
            os.pwrite(file.fileno(), header, 0)
            with suppress(ModelLoadError):
                read_file = GGUFFile(path)
                describe_gguf(read_file)
                from_gguf(read_file)
                if number % 20 == 0:
                    read(path, native=number % 40 == 0)


def test_of_twenty_thousand_gguf_headers_none_breaks_anything(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    script = "import sys; from tests.models.test_hostile_files import main; main(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def main(name: str) -> None:
    """In a process of its own, for what it takes of memory."""
    path = Path(name)
    file = GGUFFile(path)
    whole = path.read_bytes()
    header = whole[: min(info.start for info in file.tensors.values())]
    look_at_gguf(path, [header] * 21)  # whatever is imported and made once
    before = peak()
    look_at_gguf(path, mutations(header, 1, MUTATIONS))
    taken = peak() - before
    assert taken <= SHARE * len(whole), f"{taken} bytes of memory, for a file of {len(whole)}"


def peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_of_as_many_safetensors_headers_none_breaks_anything(folder: Path) -> None:  # noqa: F811
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header, room = json.loads(whole[8 : 8 + length]), length + 2000
    config = from_hf(HF)

    def framed(text: bytes) -> bytes:
        return room.to_bytes(8, "little") + text[:room].ljust(room)

    def headers() -> Iterator[bytes]:
        for table in altered(header, 1, MUTATIONS // 2):
            yield framed(json.dumps(table).encode())
        yield from mutations(framed(whole[8 : 8 + length]), 2, MUTATIONS // 2)

    file.write_bytes(framed(b"{}") + whole[8 + length :])
    with file.open("r+b") as opened:
        for changed_header in headers():
            os.pwrite(opened.fileno(), changed_header, 0)
            with suppress(ModelLoadError):
                checkpoint = SafetensorsCheckpoint(folder)
                checkpoint.require(config)
                checkpoint.weight("model.norm.weight")


CONFIGS: list[dict[str, Any]] = [
    {
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "rope_theta": 1e4},
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"g": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 64}}},
        },
    },
    {
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True},
    },
    {
        "architectures": PHI3,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8},
        "original_max_position_embeddings": 64,
        "quantization_config": {"quant_method": "awq", "bits": 4},
    },
    {"architectures": GEMMA3, "query_pre_attn_scalar": 16, "sliding_window": 8, "head_dim": 16},
    {"architectures": SMOLLM3, "no_rope_layers": [1, 0], "layer_types": ["full_attention"] * 2},
]


def test_of_as_many_configs_none_breaks_anything() -> None:
    for seed, change in enumerate(CONFIGS):
        whole = {**HF, "tie_word_embeddings": False, "hidden_act": "silu", **change}
        from_hf(whole)
        packing_of(whole)
        for config in altered(whole, seed, MUTATIONS // len(CONFIGS)):
            with suppress(ModelLoadError):
                from_hf(config)
                packing_of(config)
