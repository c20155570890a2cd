from pathlib import Path
from typing import Any

import pytest

from models.embedder.embedder_config import read_embedder
from models.errors import ModelLoadError
from tests.models.checkpoints import write

BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 8,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}


def checkpoint(folder: Path, config: dict[str, Any] = BERT, **files: Any) -> Path:
    """`files`: by path, with "__" for "/" and without ".json"."""
    write(folder / "config.json", config)
    for name, content in files.items():
        file = folder / f"{name.replace('__', '/')}.json"
        file.parent.mkdir(exist_ok=True)
        write(file, content)
    return folder


def modules(*kinds: tuple[str, str]) -> list[dict[str, str]]:
    return [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]


def test_a_plain_checkpoint_is_pooled_by_mean(tmp_path: Path) -> None:
    config = read_embedder(checkpoint(tmp_path))
    assert (config.family, config.pooling, config.dimensions, config.max_tokens) == ("text", "mean", 8, 512)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_pooling_is_the_checkpoints(tmp_path: Path, pooling: dict[str, Any], expected: str) -> None:
    layout = modules(("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    assert read_embedder(checkpoint(tmp_path, modules=layout, **{"1_Pooling__config": pooling})).pooling == expected


@pytest.mark.parametrize(
    "pooling",
    [{"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, {"pooling_mode": "weightedmean"}, {}],
)
def test_pooling_that_is_not_served_is_refused(tmp_path: Path, pooling: dict[str, Any]) -> None:
    layout = modules(("Transformer", ""), ("Pooling", "1_Pooling"))
    with pytest.raises(ModelLoadError, match="pooling by"):
        read_embedder(checkpoint(tmp_path, modules=layout, **{"1_Pooling__config": pooling}))


def test_a_dense_layer_sets_the_dimensions(tmp_path: Path) -> None:
    layout = modules(("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))
    files = {"1_Pooling__config": {"pooling_mode_mean_tokens": True}, "2_Dense__config": {"out_features": 4}}
    config = read_embedder(checkpoint(tmp_path, modules=layout, **files))
    assert (config.dense, config.dimensions) == (("2_Dense",), 4)


def test_a_module_that_is_not_served_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="WordWeights"):
        read_embedder(checkpoint(tmp_path, modules=modules(("Transformer", ""), ("WordWeights", "1"))))


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        (BERT, {"sentence_bert_config": {"max_seq_length": 256}, "tokenizer_config": {"model_max_length": 512}}, 256),
        (BERT, {"tokenizer_config": {"model_max_length": 128}}, 128),
        (BERT, {"tokenizer_config": {"model_max_length": 1e30}}, 512),
        ({**BERT, "model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, {}, 512),
        ({**BERT, "max_position_embeddings": None}, {"tokenizer_config": {"model_max_length": 1e30}}, 512),
    ],
)
def test_a_text_may_be_as_long_as_sentence_transformers_has_it(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], expected: int
) -> None:
    assert read_embedder(checkpoint(tmp_path, config, **files)).max_tokens == expected


def test_the_default_prompt_of_a_checkpoint_is_kept(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage"}
    assert read_embedder(checkpoint(tmp_path, config_sentence_transformers=prompts)).prompt == "passage: "


def test_the_prompts_of_a_checkpoint_are_kept_by_kind(tmp_path: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: ", "document": ""}
    written = {"prompts": prompts, "default_prompt_name": None}
    config = read_embedder(checkpoint(tmp_path, config_sentence_transformers=written))
    assert (config.prompt, config.prompts) == ("", prompts)
    checkpoint(tmp_path, config_sentence_transformers={"prompts": prompts, "default_prompt_name": "title"})
    with pytest.raises(ModelLoadError, match="'title'"):
        read_embedder(tmp_path)


def test_prompts_that_pooling_leaves_out_are_not_offered(tmp_path: Path) -> None:
    layout = modules(("Transformer", ""), ("Pooling", "1_Pooling"))
    files = {"1_Pooling__config": {"pooling_mode_mean_tokens": True, "include_prompt": False}, "modules": layout}
    prompts: dict[str, Any] = {"prompts": {"query": "query: "}}
    assert read_embedder(checkpoint(tmp_path, config_sentence_transformers=prompts, **files)).prompts == {}
    checkpoint(tmp_path, config_sentence_transformers=prompts | {"default_prompt_name": "query"})
    with pytest.raises(ModelLoadError, match="leaves out the default prompt"):
        read_embedder(tmp_path)


def test_a_classifier_of_one_label_is_a_cross_encoder(tmp_path: Path) -> None:
    classifier = {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    assert read_embedder(checkpoint(tmp_path, classifier)).family == "cross_encoder"
    with pytest.raises(ModelLoadError, match="2 labels"):
        read_embedder(checkpoint(tmp_path, {**classifier, "id2label": {"0": "no", "1": "yes"}}))


def test_images_that_the_encoder_does_not_take_are_refused(tmp_path: Path) -> None:
    clip = {"model_type": "clip", "vision_config": {"image_size": 224}}
    preprocessor = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    with pytest.raises(ModelLoadError, match="336"):
        read_embedder(checkpoint(tmp_path, clip, preprocessor_config=preprocessor))


def test_a_folder_without_a_description_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_embedder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="not valid JSON"):
        read_embedder(tmp_path)
