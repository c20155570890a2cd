"""Files and modules that documentation, docstrings and comments name exist."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports import PACKAGES, ROOT, project

FOLDERS = (*PACKAGES, "tests", "scripts", "docs")
DOCUMENTS = ("README.md", "CHANGELOG.md", "Makefile", "Dockerfile", "gateway.example.toml", "docs")

# `pipelines/base.py`, models/files/; not the end of another path, nor a pattern.
FILE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(FOLDERS)})/[\w./-]*\w)(?![\w*{{])")
# A name that stands for another, as in `pipelines/KIND/`.
PLACEHOLDER = re.compile(r"/(NAME|KIND|FAMILY)\b")
# `pipelines.base.Pipeline`; the settings `models.text.…` are spelled the same way.
MODULE = re.compile(rf"`((?:{'|'.join(PACKAGES)}|tests)(?:\.\w+)+)(?:\(\))?`")
SETTINGS = re.compile(r"models\.(?:slo|text|embedding|audio|image)\b|gateway\.(?:toml|request|example)\b")


def missing(text: str) -> list[str]:
    """The names in a text that nothing has."""
    files = [name for name in FILE.findall(text) if not PLACEHOLDER.search(name) and not (ROOT / name).exists()]
    modules = [name for name in MODULE.findall(text) if not SETTINGS.match(name) and not exists(name)]
    return files + modules


def exists(name: str) -> bool:
    """Whether there is such a module, or something of that name in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            return count == len(parts) or re.search(rf"\b{re.escape(parts[count])}\b", file.read_text()) is not None
    return False


def words(source: str) -> Iterator[str]:
    """A module's comments and strings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string


def sources() -> list[Path]:
    return [file for folder in (*PACKAGES, "tests", "scripts") for file in sorted((ROOT / folder).rglob("*.py"))]


def documents() -> list[Path]:
    paths = [ROOT / name for name in DOCUMENTS]
    return [file for path in paths for file in (sorted(path.glob("**/*.md")) if path.is_dir() else [path])]


def test_documents_name_what_there_is() -> None:
    assert {str(file.relative_to(ROOT)): names for file in documents() if (names := missing(file.read_text()))} == {}


def test_comments_and_docstrings_name_what_there_is() -> None:
    found = {}
    for file in sources():
        text = file.read_text()
        if file == Path(__file__) or not missing(text):
            continue
        if names := [name for each in words(text) for name in missing(each)]:
            found[str(file.relative_to(ROOT))] = names
    assert found == {}


def test_native_sources_name_what_there_is() -> None:
    assert {
        file.name: names for file in (ROOT / "models").rglob("*.[ch]") if (names := missing(file.read_text()))
    } == {}


def test_the_tree_of_the_documentation_is_the_tree() -> None:
    """Every package has its line in docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text()
    listed = set(re.findall(r"^\| `([\w/]+)/` \|", text, re.MULTILINE))
    folders = {path for name in project() if (ROOT / (path := name.replace(".", "/"))).is_dir()}
    assert listed == folders


@pytest.mark.parametrize(
    "text",
    [
        "See `models/decoder/nothing.py`.",
        "tests/gateway/no.py",
        "`pipelines.base.Nothing`",
        "`gateway.nothing`",
        "(docs/no.md)",
    ],
)
def test_what_is_not_there_is_found(text: str) -> None:
    assert len(missing(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`models.text.sampling`",
        "`pipelines.base.Pipeline`",
        "https://x.org/docs/no.md",
        "`models/files/`",
        "tests/data/speech/made.ogg",
    ],
)
def test_what_is_there_or_elsewhere_is_not(text: str) -> None:
    assert missing(text) == []
