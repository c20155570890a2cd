"""What kind of model files are of, by their own descriptions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from models.errors import ModelLoadError, SourceError
from models.files.description import read_json
from models.files.fields import Fields

ANY = "*"  # a GGUF architecture that no kind has by its name


class Signs(Struct, frozen=True, kw_only=True):
    """By what the files of one kind are known. One of the first three settles it; else the architecture does."""

    members: Sequence[str] = ()  # files or folders of a model's folder
    config_keys: Sequence[str] = ()  # of its config.json
    model_types: Sequence[str] = ()  # `model_type` there
    architectures: Sequence[str] = ()  # how a name in `architectures` there ends
    gguf_architectures: Sequence[str] = ()  # `general.architecture` of a GGUF file
    suffixes: Sequence[str] = ()  # of a file


def detect_kind(path: Path, signs: Mapping[str, Signs]) -> str:
    """Of which kind the files at `path` are. `signs`: by kind. Raises SourceError where they don't say."""
    return _kind_of_file(path, signs) if path.is_file() else _kind_of_folder(path, signs)


def _kind_of_folder(path: Path, signs: Mapping[str, Signs]) -> str:
    for kind, sign in signs.items():
        if any((path / member).exists() for member in sign.members):
            return kind
    config_file = path / "config.json"
    try:
        config = read_json(config_file)
        if config is None:
            raise SourceError(f"{path} has no config.json, so its kind is not known; set `kind`")
        architectures = Fields(config, str(config_file)).items("architectures", str, "texts") or ()
    except SourceError:
        raise
    except ModelLoadError as error:
        raise SourceError(f"{error}; so its kind is not known") from error
    for kind, sign in signs.items():
        if config.get("model_type") in sign.model_types or any(key in config for key in sign.config_keys):
            return kind
    for kind, sign in signs.items():
        if any(name.endswith(tuple(sign.architectures)) for name in architectures):
            return kind
    raise SourceError(
        f"{config_file} names no architecture whose kind is known ({', '.join(architectures) or None}); set `kind`"
    )


def _kind_of_file(path: Path, signs: Mapping[str, Signs]) -> str:
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
        for wanted in (architecture, ANY):
            for kind, sign in signs.items():
                if wanted in sign.gguf_architectures:
                    return kind
    for kind, sign in signs.items():
        if path.suffix in sign.suffixes:
            return kind
    raise SourceError(f"{path} is neither a GGUF nor an ONNX file; set `kind`, or name the model's folder")
