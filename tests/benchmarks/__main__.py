"""`python -m tests.benchmarks [--only NAME …] [--quick] [--out DIRECTORY]`"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from models.device import available_cpus
from models.privacy import silence
from tests.benchmarks import (
    audio_accuracy,
    audio_beside_text,
    audio_doors,
    audio_files,
    audio_live,
    contended,
    embedding_latency,
    embedding_memory,
    embedding_speed,
    fairness,
    grammar,
    http_streaming,
    images,
    overhead,
    prefix_hit,
    preparing,
    speculation,
    streams,
    versus_llama,
    versus_transformers,
)
from tests.benchmarks.figures import Comparison, Figure
from tests.benchmarks.harness import Bench
from tests.benchmarks.machine import describe
from tests.benchmarks.processes import ROOT, MeasurementFailed
from tests.benchmarks.report import line, write

COMPARISONS: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {
    "llama": versus_llama.compare,
    "transformers": versus_transformers.compare,
    "streams": streams.compare,
    "contended": contended.compare,
    "prefix": prefix_hit.compare,
    "speculation": speculation.compare,
    "grammar": grammar.compare,
    "http": http_streaming.compare,
    "preparing": preparing.compare,
    "overhead": overhead.compare,
    "audio": audio_files.compare,
    "doors": audio_doors.compare,
    "live": audio_live.compare,
    "accuracy": audio_accuracy.compare,
    "together": audio_beside_text.compare,
    "embedding": embedding_speed.compare,
    "short": embedding_latency.compare,
    "memory": embedding_memory.compare,
    "images": images.compare,
    "fairness": fairness.compare,
}
ROUNDS = 5


def main() -> int:
    """1 where a comparison failed or a figure is below its floor."""
    arguments = _arguments()
    bench = Bench(rounds=1 if arguments.quick else ROUNDS, quick=arguments.quick, threads=arguments.threads, say=_say)
    everything = not arguments.only and not arguments.quick
    out = arguments.out or (ROOT / "docs" if everything else None)
    failed = False
    try:
        for name in arguments.only or COMPARISONS:
            _say(f"== {name}")
            comparison, whole = _measure(bench, name)
            failed = failed or not whole or any(each.verdict == "below the floor" for each in comparison.figures)
            if out:
                write(out, describe(), [comparison])
    finally:
        bench.close()
    return int(failed)


def _measure(bench: Bench, name: str) -> tuple[Comparison, bool]:
    """What it yields, printed as it comes, and whether it came to its end."""
    started = time.monotonic()
    figures: list[Figure] = []
    whole = True
    bench.notes.clear()
    try:
        for figure in COMPARISONS[name](bench):
            if not figures or figures[-1].definition != figure.definition:
                print(f"{figure.definition}:")
            figures.append(figure)
            print(f"  {line(figure)}", flush=True)
    except MeasurementFailed as reason:
        whole = False
        bench.notes.append(f"{name} was not measured in full: {reason}")
    for note in bench.notes:
        _say(f"note: {note}")
    seconds = time.monotonic() - started
    return Comparison(name, describe().date, bench.rounds, seconds, figures, list(bench.notes)), whole


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure, in ratios.")
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--quick", action="store_true", help="one short round: whether it works, not how fast")
    parser.add_argument("--out", type=Path, help="where to write benchmarks.md and .json (docs/, if all is measured)")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="of each engine")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    silence(os.environ)
    sys.exit(main())
