"""What users install: distributions that are whole, serve from anywhere, tell nobody, and leave no trace."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from models.files.cache import FOLDER, cache_root
from scripts.first_answers import QUESTIONS, SPEECH, served
from tests.models import checkpoints

ROOT = Path(__file__).parent.parent.parent
STRACE = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-e", "signal=none"]
# An address of the Internet's families, as strace prints it, that is not this machine's own.
ADDRESS = re.compile(r"sa_family=AF_INET6?, .*?(?:inet_addr|inet_pton)\((?:AF_INET6, )?\"([^\"]+)\"")
LOOPBACK = re.compile(r"127\.|::1$|::ffff:127\.|0\.0\.0\.0$|::$")


def build(source: Path, out: Path, kind: str, **environ: str) -> Path:
    """One distribution, by the build backend itself: with what is installed, nothing fetched."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)],
        cwd=source,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a copy of what git tracks, unpacked."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git repository: which files belong to the project is not known")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folder = tmp_path_factory.mktemp("dist")
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).exists():  # else it is being removed
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "tree" / name)
    with tarfile.open(build(folder / "tree", folder / "out", "sdist")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(sdist, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory that holds the export of the embedded model, where there is one already, and nothing else."""
    folder = tmp_path_factory.mktemp("home")
    if (cache_root() / "onnx").is_dir():
        shutil.copytree(cache_root() / "onnx", folder / ".cache" / FOLDER / "onnx")
    return folder


@pytest.fixture(scope="module")
def environ(wheel: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of somebody who has installed the wheel and set nothing."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    silenced = re.compile(r"XDG_|HF_|ORT_|DO_NOT_TRACK|CUDA_CACHE|TRITON_CACHE|GATEWAY_")
    kept = {name: value for name, value in os.environ.items() if not silenced.match(name)}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(folder)}


def traced(trace: Path) -> list[str]:
    """What to put before a command so that `trace` tells whom it and its children spoke to; nothing without strace."""
    command = [*STRACE, "-o", str(trace)]
    works = shutil.which("strace") and not subprocess.run([*command, "true"], capture_output=True).returncode
    return command if works else []


def spoken_to(trace: Path) -> list[str]:
    lines = trace.read_text(errors="replace").splitlines()
    found = [(line, address[1]) for line in lines if (address := ADDRESS.search(line))]
    return [line for line, address in found if not LOOPBACK.match(address)]


def left_behind(home: Path) -> list[str]:
    """Files in the home directory that are none of ours."""
    ours = home / ".cache" / FOLDER
    return [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and ours not in path.parents]


# --- distributions ----------------------------------------------------------------------------------------------------


def test_the_source_distribution_is_whole(sdist: Path) -> None:
    tree = sdist.parent.parent / "tree"
    tracked = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    packed = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    assert {name for name in tracked - packed if ".egg-info/" not in name} == set()


def test_the_wheel_is_for_every_python_of_its_platform(wheel: Path) -> None:
    assert re.fullmatch(r"multimodal_gateway-[\d.]+-py3-none-\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    # A library makes it one platform's; there is none where there is no compiler.
    assert any(name.endswith("/_library.so") for name in names) == (not wheel.name.endswith("-any.whl"))
    assert not any(re.search(r"\.cpython-|^tests/|^setup\.py", name) for name in names)
    for file in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f".dist-info/licenses/{file}") for name in names)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert "# Multimodal gateway" in text


def test_without_a_compiler_the_wheel_is_for_every_platform(sdist: Path, tmp_path: Path) -> None:
    shutil.copytree(sdist, tmp_path / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "tests"))
    made = build(tmp_path / "source", tmp_path / "out", "wheel", CC="false")
    assert made.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(made) as archive:
        assert not any(name.endswith(".so") for name in archive.namelist())


# --- served from an empty folder, by somebody who has set nothing -----------------------------------------------------


@pytest.fixture(scope="module")
def serving(
    environ: dict[str, str], home: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, str], Path]:
    """The answers of every pipeline, and the trace of all processes behind them, which have ended."""
    folder = tmp_path_factory.mktemp("trace")
    (folder / "trace").touch()
    answers = {}
    with served(folder / "log", command=traced(folder / "trace"), environ=environ) as url:
        for name, ask in QUESTIONS.items():
            answers[name] = ask(url)
    return answers, folder / "trace"


def test_every_pipeline_answers_from_the_wheel(serving: tuple[dict[str, str], Path]) -> None:
    answers, _ = serving
    assert answers.keys() == QUESTIONS.keys()
    assert all(answers.values())


def test_serving_speaks_to_nobody(serving: tuple[dict[str, str], Path]) -> None:
    _, trace = serving
    if not trace.stat().st_size:
        pytest.skip("strace is not installed, or may not trace: who is spoken to is not known")
    assert spoken_to(trace) == []


def test_serving_leaves_nothing_in_the_home_directory(serving: tuple[dict[str, str], Path], home: Path) -> None:
    assert serving
    assert left_behind(home) == []


def commands(folder: Path) -> list[list[str]]:
    """The others, and what only some processors run."""
    gateway = [sys.executable, "-m", "gateway"]
    source = folder / "clip"
    source.mkdir()
    checkpoints.clip(source)
    config = f'[[models]]\nname = "tiny"\nkind = "embedding"\ndevice = "cpu"\nsource = "{source}"\n'
    (folder / "gateway.toml").write_text(config)
    openvino = "import os; from models.privacy import silence; silence(os.environ)\n"
    openvino += "from models.embedder import openvino; openvino._runtime().Core()"
    return [
        [*gateway, "doctor"],
        [*gateway, "models", "prepare", "--config", str(folder / "gateway.toml")],
        [*gateway, "transcribe", str(SPEECH)],
        [sys.executable, "-c", openvino],
    ]


def test_commands_speak_to_nobody_and_leave_nothing_in_the_home_directory(
    environ: dict[str, str], home: Path, tmp_path: Path
) -> None:
    for number, command in enumerate(commands(tmp_path)):
        trace = tmp_path / f"{number}.trace"
        run = [*traced(trace), *command]
        done = subprocess.run(run, cwd=home.parent, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 or "doctor" in command, done.stdout + done.stderr
        assert left_behind(home) == [], command
        if trace.exists():
            assert spoken_to(trace) == [], command


def test_the_trace_tells_of_a_look_up_and_of_a_connection(tmp_path: Path) -> None:
    code = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('192.0.2.1', 53)); s.send(b'x')"
    command = traced(tmp_path / "trace")
    if not command:
        pytest.skip("strace is not installed, or may not trace")
    subprocess.run([*command, sys.executable, "-c", code.replace("192.0.2.1", "127.0.0.1")], check=True)
    assert spoken_to(tmp_path / "trace") == []
    subprocess.run([*command, sys.executable, "-c", code], check=False)
    assert len(spoken_to(tmp_path / "trace")) == 1
