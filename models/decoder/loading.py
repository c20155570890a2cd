"""From files to a decoder, its tokenizer and its generation defaults. Imports torch where that has to run it."""

import gc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.decoder.batch import CausalDecoder
from models.decoder.gguf_config import describe_gguf
from models.decoder.native.gguf import load_native
from models.decoder.native.library import Engine
from models.device import available_cpus, cuda_driver_devices
from models.errors import ModelLoadError, SourceError
from models.files.description import read_json
from models.files.fields import Fields
from models.files.gguf import GGUFFile
from models.tokenizer.tokenizer import Tokenizer, from_gguf, load_tokenizer
from models.vision.loading import load_vision
from models.vision.vision import Vision

if TYPE_CHECKING:
    from models.decoder.torch_loading import TorchLoader

__all__ = ["GenerationDefaults", "LoadedModel", "ModelLoadError", "SourceError", "load_decoder"]

_RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's authors recommend (generation_config.json). `sampling`: what they say something about, whatever
    that is: a recommendation that can't be followed is no reason to refuse a model."""

    sampling: Mapping[str, object] = field(default_factory=dict)
    eos_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    decoder: CausalDecoder
    tokenizer: Tokenizer
    generation: GenerationDefaults
    vision: Vision | None = None  # None: it takes text alone


def load_decoder(
    path: Path,
    *,
    device: str = "auto",
    dtype: str | None = None,
    quantization: str | None = None,
    dense_prefill: bool | None = None,
    threads: int | None = None,
    native: bool = True,
    vision: Path | None = None,
) -> LoadedModel:
    """Load a folder of safetensors (dense, AWQ, GPTQ or compressed-tensors) with its `config.json`, or a GGUF file.

    `quantization`: int8 | int4 | None, as the files have it. `dense_prefill`: keep a dense copy of quantised weights,
    with which prompts are faster where the native library is not there; None: on a CPU. `threads`: of
    kernels, torch's process-wide; None: every CPU that this process may use. `native`: run quantised weights through
    the native library where it was built and this processor can run it. `vision`: files of the half that sees, where
    they are not the model's own. Raises ModelLoadError naming what is not supported, and the alternative.
    """
    threads = threads or available_cpus()
    engine = Engine.start(threads) if native else None

    def torch_s() -> "TorchLoader":
        from models.decoder.torch_loading import TorchLoader

        return TorchLoader(device, dtype, quantization, dense_prefill=dense_prefill, threads=threads, engine=engine)

    with _no_collections():
        if path.is_file():
            as_stored = quantization is None and dtype in (None, "bfloat16") and dense_prefill is False
            on_cpu = device == "cpu" or (device == "auto" and not cuda_driver_devices())
            loaded = _load_gguf(path, engine if as_stored and on_cpu else None, threads, torch_s)
        else:
            loaded = _load_folder(path, torch_s)
    hidden_size = loaded.decoder.config.hidden_size
    sees = load_vision(vision or path, hidden_size, loaded.tokenizer, device=device, dtype=dtype, threads=threads)
    if vision is not None and sees is None:
        raise ModelLoadError(f"{vision} holds nothing that the model could see with")
    return replace(loaded, vision=sees)


@contextmanager
def _no_collections() -> Iterator[None]:
    """A vocabulary is many thousand objects that stay; each collection meanwhile would walk all that torch made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load_gguf(path: Path, engine: Engine | None, threads: int, torch_s: "Callable[[], TorchLoader]") -> LoadedModel:
    """`engine`: where the native library may run all of it; None: torch does."""
    file = GGUFFile(path)
    config = describe_gguf(file)
    with ThreadPoolExecutor(1) as beside:
        tokenizer = beside.submit(from_gguf, file)
        decoder: CausalDecoder | None = load_native(file, config, engine, threads) if engine else None
        decoder = decoder or torch_s().gguf(file, config)
    return LoadedModel(decoder, tokenizer.result(), GenerationDefaults(eos_ids=tokenizer.result().eos_ids))


def _load_folder(path: Path, torch_s: "Callable[[], TorchLoader]") -> LoadedModel:
    raw = read_json(path / "config.json")
    if raw is None:
        raise ModelLoadError(f"{path} has no config.json")
    generation = read_json(path / "generation_config.json") or {}
    with ThreadPoolExecutor(1) as beside:
        tokenizer = beside.submit(load_tokenizer, path)
        decoder = torch_s().folder(path, raw)
    defaults = _generation_defaults(generation, raw, tokenizer.result(), decoder.config.vocab_size)
    return LoadedModel(decoder, tokenizer.result(), defaults)


def _generation_defaults(
    generation: Mapping[str, Any], config: Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int
) -> GenerationDefaults:
    recommended = Fields(generation, "generation_config.json")
    ends: set[int] = set(tokenizer.eos_ids)
    for fields in (recommended, Fields(config, "config.json")):
        ends.update(id for id in fields.tokens("eos_token_id") if 0 <= id < vocab_size)  # no other can be drawn
    given = {name: recommended.get(name) for name in _RECOMMENDED}
    return GenerationDefaults({name: value for name, value in given.items() if value is not None}, frozenset(ends))
