"""Packed linears are read to the exact values that they stand for; what can't be read is refused by its name."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.decoder.weights.packed import packing_of
from models.decoder.weights.quantised import GROUP, Int4Weight, concatenated
from models.errors import ModelLoadError
from tests.models.packing import Codes, awq, compressed, gptq

LINEAR = "model.layers.0.mlp.up_proj"
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False}


class Stored(dict[str, Tensor]):
    def tensor(self, name: str) -> Tensor:
        if name not in self:
            raise ModelLoadError(f"the files lack the tensor {name}")
        return self[name]


def read(tensors: dict[str, Tensor], settings: dict[str, Any]) -> Int4Weight:
    packing = packing_of({"quantization_config": settings})
    assert packing is not None
    stored = Stored({f"{LINEAR}.{name}": tensor for name, tensor in tensors.items()})
    assert packing.packs(LINEAR, stored)
    assert not packing.packs("lm_head", stored)
    return packing.weight(LINEAR, stored)


def scheme(**weights: Any) -> dict[str, Any]:
    """compressed-tensors' `quantization_config` with one scheme."""
    usual = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 64, "actorder": None}
    group = {"targets": ["Linear"], "input_activations": None, "weights": {**usual, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def with_activations() -> dict[str, Any]:
    settings = scheme()
    settings["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
    return settings


def test_dense_checkpoints_have_no_packing() -> None:
    assert packing_of({}) is None
    assert packing_of({"quantization_config": None}) is None


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_awq_is_read_exactly(group: int) -> None:
    made = Codes.random(48, 256, group)
    found = read(awq(made), {**AWQ, "group_size": group})
    assert torch.equal(found.codes, made.codes.to(torch.uint8))
    assert torch.equal(found.dense(), made.dense())


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("version", [1, 2])
def test_gptq_is_read_exactly(group: int, version: int) -> None:
    """Zero points of 0 among them, which the first format can't store but by borrowing."""
    made = Codes.random(48, 160, group)  # the last of the groups of 64 and of 128 is cut short
    assert (made.zeros == 0).any()
    form = {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    found = read(gptq(made, version=version), {**GPTQ, **form, "group_size": group})
    assert torch.equal(found.codes, made.codes.to(torch.uint8))
    assert torch.equal(found.dense(), made.dense())
    assert found.order is None


@pytest.mark.parametrize("group", [32, 128])
def test_inputs_that_were_quantised_by_their_activations_stay_with_their_groups(group: int) -> None:
    made = Codes.random(48, 256, group, shuffled=True)
    found = read(gptq(made), {**GPTQ, "group_size": group, "desc_act": True})
    assert found.order is not None
    assert torch.equal(found.dense(), made.dense())
    some = torch.tensor([5, 0, 47])
    assert torch.equal(found.rows(some).dense(), made.dense()[some])


@pytest.mark.parametrize("group", [32, 128, -1])
@pytest.mark.parametrize("symmetric", [False, True])
def test_compressed_tensors_are_read_exactly(group: int, symmetric: bool) -> None:
    made = Codes.random(50, 256, group)  # zero points of 50 outputs take seven words
    zeros = torch.full_like(made.zeros, 8) if symmetric else made.zeros
    made = replace(made, zeros=zeros, scales=made.scales.bfloat16())
    strategy = {"strategy": "channel", "group_size": None} if group == -1 else {"group_size": group}
    found = read(compressed(made), scheme(**strategy, symmetric=symmetric))
    assert torch.equal(found.codes, made.codes.to(torch.uint8))
    assert torch.equal(found.dense(), made.dense())


def test_compressed_tensors_in_another_order_stay_with_their_groups() -> None:
    made = Codes.random(48, 256, 64, shuffled=True)
    made = replace(made, scales=made.scales.bfloat16())
    found = read(compressed(made), scheme(actorder="group"))
    assert found.order is not None
    assert torch.equal(found.dense(), made.dense())
    ordered = replace(made, groups=made.groups.sort().values)
    none_given = {**compressed(ordered), "weight_g_idx": torch.full((256,), -1)}
    assert torch.equal(read(none_given, scheme()).dense(), ordered.dense())
    with pytest.raises(ModelLoadError, match="weight_g_idx"):
        read(compressed(ordered), scheme(actorder="group"))


def test_one_group_has_no_order() -> None:
    made = Codes.random(48, 256, -1)
    found = read(gptq(made), {**GPTQ, "group_size": -1, "desc_act": True})
    assert found.order is None
    assert torch.equal(found.dense(), made.dense())


def test_without_an_index_inputs_are_in_order() -> None:
    made = Codes.random(48, 256, 64)
    tensors = gptq(made)
    del tensors["g_idx"]
    assert torch.equal(read(tensors, GPTQ).dense(), made.dense())
    with pytest.raises(ModelLoadError, match="g_idx"):
        read(tensors, {**GPTQ, "desc_act": True})


def test_linears_of_one_order_become_one_and_others_dense() -> None:
    first, second = (Codes.random(16, 64, 32, seed=seed, shuffled=True) for seed in (0, 0))
    other = Codes.random(16, 64, 32, seed=1, shuffled=True)
    settings = {**GPTQ, "group_size": 32, "desc_act": True}
    same = concatenated([read(gptq(made), settings) for made in (first, second)])
    assert isinstance(same, Int4Weight)
    assert torch.equal(same.dense(), torch.cat((first.dense(), second.dense())))
    mixed = concatenated([read(gptq(made), settings) for made in (first, other)])
    assert isinstance(mixed, Tensor)
    assert torch.equal(mixed, torch.cat((first.dense(), other.dense())))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method='bitsandbytes'"),
        ({**AWQ, "bits": 8}, "bits=8"),
        ({**GPTQ, "bits": 8}, "bits=8"),
        ({**GPTQ, "bits": 3}, "bits=3"),
        ({**AWQ, "group_size": 16}, "group_size=16"),
        ({**GPTQ, "group_size": 0}, "group_size=0"),
        ({**AWQ, "version": "gemv"}, "version='gemv'"),
        ({**AWQ, "version": None, "format": "llm-awq"}, "version='llm-awq'"),
        ({**AWQ, "zero_point": False}, "zero_point=False"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        ({**GPTQ, "is_marlin_format": True}, "is_marlin_format=True"),
        ({**GPTQ, "dynamic": {"+:.*down_proj": {"bits": 8}}}, "dynamic="),
        ({**GPTQ, "pack_dtype": "int8"}, "pack_dtype='int8'"),
        ({**scheme(), "format": "float-quantized"}, "format='float-quantized'"),
        ({**scheme(), "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme="),
        ({**scheme(), "transform_config": {"config_groups": {}}}, "transform_config="),
        ({**scheme(), "sparsity_config": {"format": "sparse-24"}}, "sparsity_config="),
        ({**scheme(), "config_groups": {}}, "config_groups="),
        (with_activations(), "input_activations="),
        (scheme(num_bits=8), "num_bits=8"),
        (scheme(type="float"), "type='float'"),
        (scheme(strategy="tensor"), "strategy='tensor'"),
        (scheme(actorder="dynamic"), "actorder='dynamic'"),
        (scheme(group_size=8), "group_size=8"),
    ],
)
def test_settings_that_are_not_supported_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{named}.*upstream"):
        packing_of({"quantization_config": settings})


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("scales", torch.ones(2, 48).half(), rf"scales of {LINEAR} are \(48, 2\), not \(48, 4\)"),
        ("qzeros", torch.zeros(4, 5, dtype=torch.int32), rf"zero points of {LINEAR} are \(40, 4\), not \(48, 4\)"),
        ("qweight", torch.zeros(32, 48, dtype=torch.int16), rf"{LINEAR}\.qweight is int16"),
        ("scales", torch.ones(4, 48, dtype=torch.int32), rf"{LINEAR}\.scales is int32"),
        ("g_idx", torch.zeros(256, dtype=torch.int32), rf"{LINEAR}\.g_idx has groups that are not 64 inputs"),
        ("g_idx", torch.zeros(128, dtype=torch.int32), rf"{LINEAR}\.g_idx has groups that are not 64 inputs"),
    ],
)
def test_tensors_that_do_not_fit_are_named(name: str, tensor: Tensor, message: str) -> None:
    tensors = gptq(Codes.random(48, 256, 64))
    with pytest.raises(ModelLoadError, match=message):
        read({**tensors, name: tensor}, GPTQ)
    del tensors[name]
    if name in ("scales", "qzeros"):
        with pytest.raises(ModelLoadError, match=name):
            read(tensors, GPTQ)


def test_inputs_that_are_no_whole_groups_of_the_kernels_are_refused() -> None:
    with pytest.raises(ModelLoadError, match=f"{LINEAR} has 40 inputs.*{GROUP}"):
        read(gptq(Codes.random(16, 40, -1)), {**GPTQ, "group_size": -1})
