from collections.abc import Mapping

import pytest

from gateway.config.environment import VariableError, digest, overlay, slug, unknown
from gateway.config.settings import Settings, document_type


def tree(**environ: str) -> dict[str, object]:
    found: dict[str, object] = {"models": [{"name": "a"}, {"name": "org/b.2"}, {"name": "c-d"}]}
    overlay(found, document_type(), environ)
    return found


def models(found: Mapping[str, object]) -> list[dict[str, object]]:
    listed = found["models"]
    assert isinstance(listed, list)
    return listed


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "8080", 8080),
        ("drain_s", "2.5", 2.5),
        ("host", "localhost", "localhost"),
        ("cors_origins", "https://a.example, https://b.example", ["https://a.example", "https://b.example"]),
        ("cors_origins", '["https://a.example"]', ["https://a.example"]),
        ("max_body_bytes", "1000", 1000),
    ],
)
def test_values_are_read_as_their_field_wants_them(name: str, text: str, value: object) -> None:
    assert tree(**{f"GATEWAY_SERVER__{name.upper()}": text})["server"] == {name: value}


def test_names_are_separated_by_commas_too() -> None:
    assert models(tree(GATEWAY_MODELS__0__ALIASES="x, org/y"))[0]["aliases"] == ["x", "org/y"]


def test_elements_go_by_index_or_by_name() -> None:
    found = tree(
        GATEWAY_MODELS__0__QUANTIZATION="int8",
        GATEWAY_MODELS__ORG_B_2__TEXT__MAX_NUM_SEQS="9",
        GATEWAY_MODELS__C_D__REQUIRED="false",
        GATEWAY_MODELS__A__TEXT__SAMPLING__TEMPERATURE="0.3",
    )
    assert models(found) == [
        {"name": "a", "quantization": "int8", "text": {"sampling": {"temperature": 0.3}}},
        {"name": "org/b.2", "text": {"max_num_seqs": 9}},
        {"name": "c-d", "required": False},
    ]


def test_the_next_index_adds_an_element_in_whatever_order_the_variables_come() -> None:
    found = tree(
        GATEWAY_MODELS__NEW__THREADS="2",
        GATEWAY_MODELS__4__NAME="newer",
        GATEWAY_MODELS__3__SOURCE="/new",
        GATEWAY_MODELS__3__NAME="new",
    )
    assert models(found)[3:] == [{"source": "/new", "name": "new", "threads": 2}, {"name": "newer"}]


def test_a_section_can_be_given_whole() -> None:
    found = tree(GATEWAY_MODELS='[{"name": "x", "source": "/x"}]', GATEWAY_MODELS__0__THREADS="1")
    assert models(found) == [{"name": "x", "source": "/x", "threads": 1}]


def test_shorthands() -> None:
    log = {"GATEWAY_LOG_LEVEL": "debug", "GATEWAY_LOG_FORMAT": "json"}
    found = tree(GATEWAY_HOST="::1", GATEWAY_PORT="1", GATEWAY_METRICS_KEY="m", **log)
    assert found["server"] == {
        "host": "::1",
        "port": 1,
        "log_level": "debug",
        "log_format": "json",
        "metrics_sha256": digest("m"),
    }


def test_the_long_form_wins_over_the_shorthand() -> None:
    assert tree(GATEWAY_SERVER__PORT="2", GATEWAY_PORT="1")["server"] == {"port": 2}


def test_the_key_is_kept_as_its_hash_and_beside_others() -> None:
    found = tree(GATEWAY_KEYS__0__NAME="laptop", GATEWAY_KEYS__0__SHA256="0" * 64, GATEWAY_API_KEY="k")
    keys = found["keys"]
    assert isinstance(keys, list)
    assert [key["sha256"] for key in keys] == ["0" * 64, digest("k")]


def test_other_variables_are_left_alone() -> None:
    before = tree()
    others = {"GATEWAY_API_KEY": "", "HOME": "/root", "GATEWAYS": "1", "GATEWAY_UNRELATED": "x"}
    assert tree(**others) == before
    assert unknown(Settings, {**others, "GATEWAY_PORT": "1", "GATEWAY_API_KEY": "k"}) == ["GATEWAY_UNRELATED"]


def test_what_kubernetes_sets_for_a_service_called_gateway_is_not_meant() -> None:
    links = {
        "GATEWAY_SERVICE_HOST": "10.0.0.1",
        "GATEWAY_SERVICE_PORT": "8000",
        "GATEWAY_PORT": "tcp://10.0.0.1:8000",
        "GATEWAY_PORT_8000_TCP_ADDR": "10.0.0.1",
        "GATEWAY_API_SERVICE_HOST": "10.0.0.2",
        "GATEWAY_API_PORT_8000_TCP_PORT": "8000",
    }
    assert tree(**links) == tree()
    assert unknown(Settings, links) == []


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("GATEWAY_SERVER__PORT", "many", "GATEWAY_SERVER__PORT: expected int, got str"),
        ("GATEWAY_SERVER__PROT", "1", "GATEWAY_SERVER__PROT: 'prot' is not known; did you mean 'port'?"),
        ("GATEWAY_SEVER__PORT", "1", "GATEWAY_SEVER__PORT: 'sever' is not known; did you mean 'server'?"),
        ("GATEWAY_SERVER_PORT", "1", "GATEWAY_SERVER_PORT is not known; did you mean 'GATEWAY_SERVER__PORT'?"),
        ("GATEWAY_APIKEY", "k", "GATEWAY_APIKEY is not known; did you mean 'GATEWAY_API_KEY'?"),
        ("GATEWAY_API_KEY", "secret\n", "GATEWAY_API_KEY: a key can't hold white space"),
        ("GATEWAY_METRICS_KEY", "two words", "GATEWAY_METRICS_KEY: a key can't hold white space"),
        ("GATEWAY_MODELS__9__NAME", "x", "GATEWAY_MODELS__9__NAME: index 9 leaves a gap; the next free one is 3"),
        ("GATEWAY_MODELS__ORG_X__NAME", "x", "GATEWAY_MODELS__ORG_X__NAME: 'org_x' is not known"),
        ("GATEWAY_MODELS__0__DTYPE", "f8", "GATEWAY_MODELS__0__DTYPE: invalid enum value 'f8'; legal: bfloat16"),
        ("GATEWAY_MODELS", "{", "GATEWAY_MODELS: not valid JSON"),
        ("GATEWAY_SERVER__PORT__X", "1", "GATEWAY_SERVER__PORT__X: there is nothing called X here"),
    ],
)
def test_errors_name_the_variable(variable: str, text: str, says: str) -> None:
    with pytest.raises(VariableError) as caught:
        tree(**{variable: text})
    assert str(caught.value).startswith(says)


def test_two_models_of_one_spelling_need_their_index() -> None:
    found: dict[str, object] = {"models": [{"name": "a-b"}, {"name": "a.b"}]}
    with pytest.raises(VariableError, match="names two entries; use its index"):
        overlay(found, Settings, {"GATEWAY_MODELS__A_B__THREADS": "1"})


def test_slug() -> None:
    assert slug("Org/SmolLM2-135M--Instruct") == "org_smollm2_135m_instruct"
