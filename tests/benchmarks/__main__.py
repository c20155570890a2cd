"""`python -m tests.benchmarks [--only NAME …] [--quick] [--out DIRECTORY]`"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.benchmarks import (
    audio_accuracy,
    audio_beside_text,
    audio_files,
    audio_live,
    embedding_latency,
    embedding_memory,
    embedding_speed,
    http_streaming,
    overhead,
    prefix_hit,
    preparing,
    speculation,
    streams,
    versus_llama,
    versus_transformers,
)
from tests.benchmarks.figures import Figure
from tests.benchmarks.harness import Bench
from tests.benchmarks.machine import describe
from tests.benchmarks.processes import ROOT, MeasurementFailed
from tests.benchmarks.report import line, write

COMPARISONS: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {
    "llama": versus_llama.compare,
    "transformers": versus_transformers.compare,
    "streams": streams.compare,
    "prefix": prefix_hit.compare,
    "speculation": speculation.compare,
    "http": http_streaming.compare,
    "preparing": preparing.compare,
    "overhead": overhead.compare,
    "audio": audio_files.compare,
    "live": audio_live.compare,
    "accuracy": audio_accuracy.compare,
    "together": audio_beside_text.compare,
    "embedding": embedding_speed.compare,
    "short": embedding_latency.compare,
    "memory": embedding_memory.compare,
}
ROUNDS = 5


def main() -> int:
    """1 where a comparison failed or a figure is below its floor."""
    arguments = _arguments()
    started = time.monotonic()
    bench = Bench(rounds=1 if arguments.quick else ROUNDS, quick=arguments.quick, threads=arguments.threads, say=_say)
    figures: list[Figure] = []
    failed = False
    try:
        for name in arguments.only or COMPARISONS:
            _say(f"== {name}")
            try:
                for figure in COMPARISONS[name](bench):
                    if not figures or figures[-1].definition != figure.definition:
                        print(f"{figure.definition}:")
                    figures.append(figure)
                    print(f"  {line(figure)}", flush=True)
            except MeasurementFailed as reason:
                failed = True
                bench.notes.append(f"{name} was not measured in full: {reason}")
                _say(bench.notes[-1])
    finally:
        bench.close()
    for note in bench.notes:
        _say(f"note: {note}")
    everything = not arguments.only and not arguments.quick
    out = arguments.out or (ROOT / "docs" if everything else None)
    if out:
        write(out, describe(), figures, bench.notes, bench.rounds, time.monotonic() - started)
    return int(failed or any(figure.verdict == "below the floor" for figure in figures))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure, in ratios.")
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--quick", action="store_true", help="one short round: whether it works, not how fast")
    parser.add_argument("--out", type=Path, help="where to write benchmarks.md and .json (docs/, if all is measured)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
