"""What is known of a family is in its record, and nowhere else."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.decoder.config import DecoderConfig, from_hf
from models.decoder.families.layout import HF_LAYOUT, Part, TensorKey
from models.decoder.families.listed import FAMILIES
from models.decoder.families.vision import VISION_FORMS
from models.decoder.gguf_config import from_gguf
from models.decoder.tensors import tensor_shapes
from models.errors import ModelLoadError
from tests.models.decoder.test_config import GGUF, HF

ROOT = Path(__file__).parents[4]
RECORDS = {Path("models/decoder/families"), Path("models/vision/families")}
FORMS = [form for family in FAMILIES for form in (*family.hf, *([family.gguf] if family.gguf else ()))]
NAMES = {
    *(family.name for family in FAMILIES),
    *(name for form in FORMS for name in (form.architecture, getattr(form, "model_type", None)) if name is not None),
    *(form.architecture for form in VISION_FORMS),
}
BIASES = {"attention_bias": True, "mlp_bias": True}
DESCRIPTIONS = ("architecture", "architectures", "model_type")
# What a tokenizer of GGUF is called, which a model of another family may have.
TOKENIZERS = {"models/tokenizer/tokenizer_gguf.py": {"llama", "qwen2"}}
# What kind of model files are: no family is told from another.
NO_DECODERS = {"models/files/signs.py", "models/embedder/embedder_config.py"}


def modules() -> Iterator[tuple[str, str]]:
    """Path and text of each that holds no record."""
    for package in ("gateway", "pipelines", "models", "metrics"):
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if RECORDS.isdisjoint(relative.parents):
                yield relative.as_posix(), path.read_text()


def named(text: str) -> set[str]:
    """The names of families that a module has as texts of their own."""
    if not any(name in text for name in NAMES):
        return set()
    constants = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    return {name for name in NAMES if name in constants}


def compared(text: str) -> list[int]:
    """Lines that tell models apart by what their descriptions call them."""

    def tells(node: ast.AST) -> bool:
        for each in ast.walk(node):
            match each:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                    if name in DESCRIPTIONS:
                        return True
        return False

    found: list[int] = []
    if not any(name in text for name in DESCRIPTIONS):
        return found
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(left=left, comparators=others, ops=operators):
                absent = all(isinstance(each, ast.Is | ast.IsNot) for each in operators)
                if not absent and any(map(tells, (left, *others))):
                    found.append(node.lineno)
            case ast.Match(subject=subject) if tells(subject):
                found.append(node.lineno)
            case ast.Call(func=ast.Attribute(value=value, attr="startswith" | "endswith")) if tells(value):
                found.append(node.lineno)
    return found


def test_nothing_else_knows_a_family_s_name() -> None:
    found = {path: named(text) - TOKENIZERS.get(path, set()) for path, text in modules()}
    assert {path: names for path, names in found.items() if names} == {}


def test_nothing_else_compares_architectures() -> None:
    found = {path: compared(text) for path, text in modules() if path not in NO_DECODERS}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "if config.architecture != given: pass",
        "if architecture in known: pass",
        "match config.architecture:\n    case given: pass",
        "if raw['model_type'] == given: pass",
        "config.architecture.startswith(given)",
    ],
)
def test_comparisons_are_found(text: str) -> None:
    assert len(compared(text)) == 1
    assert named("if x == 'llama': pass") == {"llama"}


def configs() -> Iterator[DecoderConfig]:
    for family in FAMILIES:
        for form in family.hf:
            if form.architecture is not None:
                yield from_hf({**HF, "architectures": [form.architecture], **BIASES})
        if family.gguf:
            architecture = family.gguf.architecture
            metadata = {key.replace("llama", architecture): value for key, value in GGUF.items()}
            metadata["general.architecture"] = architecture
            yield from_gguf(metadata, rope_factors=None, tied=False)

    for whole in VISION_FORMS:
        for kind in whole.decoders:
            text = {**HF, "model_type": kind, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, **BIASES}
            if kind not in ("qwen2_5_vl_text", "qwen3_vl_text"):
                del text["rope_scaling"]
            for place in whole.places:
                names = {HF_LAYOUT.at(place).name(TensorKey(Part.EMBEDDING))}
                described = {"architectures": [whole.architecture], "text_config": {**text, "head_dim": 16}}
                yield from_hf(described, names)


def test_each_tensor_has_a_name_of_its_own_in_every_form_of_every_family() -> None:
    count = 0
    for config in configs():
        names = [config.layout.name(key) for key, _ in tensor_shapes(config)]
        assert len(set(names)) == len(names)
        count += 1
    assert count > len(FAMILIES)


def test_no_two_families_have_a_name_together() -> None:
    for kind in ("architecture", "model_type"):
        named = [getattr(form, kind) for form in (*VISION_FORMS, *(form for family in FAMILIES for form in family.hf))]
        names = [name for name in named if name is not None]
        assert len(set(names)) == len(names)
    gguf = [family.gguf.architecture for family in FAMILIES if family.gguf]
    assert len(set(gguf)) == len(gguf)


def test_a_config_that_names_no_class_is_known_by_its_model_type() -> None:
    unnamed: dict[str, Any] = {key: value for key, value in HF.items() if key != "architectures"}
    assert from_hf({**unnamed, "model_type": "qwen3"}) == from_hf({**HF, "architectures": ["Qwen3ForCausalLM"]})
    with pytest.raises(ModelLoadError, match=r"architecture mamba is not supported.*upstream"):
        from_hf({**unnamed, "model_type": "mamba"})
    with pytest.raises(ModelLoadError, match=r"architecture none is not supported"):
        from_hf(unnamed)
