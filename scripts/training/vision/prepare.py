"""From the emoji pictures of both styles to what training reads: pictures, things, and a pool of drawn scenes."""

import argparse
import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.privacy import silence
from scripts.training.emoji.pictures import read_pictures
from scripts.training.vision import EDGE, STYLES
from scripts.training.vision.scenes import Drawing, Scene, Scenes
from scripts.training.vision.things import Thing, read_listed, read_things

CHUNK = 4000  # scenes of one seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for style in STYLES:
        parser.add_argument(f"--{style}", type=Path, required=True, help=f"an unpacked emoji-datasource-{style}")
    parser.add_argument("--work", type=Path, required=True, help="where everything is left")
    parser.add_argument("--scenes", type=int, default=240_000)
    parser.add_argument("--processes", type=int, default=2, help="that draw; 0: this one does")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    sources = [getattr(given, style) for style in STYLES]
    by_style = [read_pictures(source, style) for source, style in zip(sources, STYLES, strict=True)]
    listed = {name: where for name, where in read_listed(sources[0]).items() if all(name in each for each in by_style)}
    things = read_things(listed)
    save(given.work, things, by_style)
    chunks = -(-given.scenes // CHUNK)
    pool = np.lib.format.open_memmap(
        given.work / "scenes.npy", mode="w+", dtype=np.uint8, shape=(chunks * CHUNK, EDGE, EDGE, 3)
    )
    with (
        ProcessPoolExecutor(given.processes or 1) as processes,
        (given.work / "scenes.jsonl").open("wb") as described,
    ):
        each = processes.map if given.processes else map  # 0: in this process
        for at, (scenes, pixels) in enumerate(each(_draw, [given.work] * chunks, range(chunks))):
            pool[at * CHUNK : (at + 1) * CHUNK] = pixels
            described.writelines(msgspec.json.encode(scene) + b"\n" for scene in scenes)
    core = sum(thing.core for thing in things)
    print(f"{len(things)} things, {core} of them the core; {len(pool)} scenes")


def save(work: Path, things: list[Thing], by_style: list[dict[str, Image.Image]]) -> None:
    (work / "things.json").write_text(json.dumps([asdict(thing) for thing in things], indent=1), encoding="utf-8")
    pictures = [[np.asarray(each[thing.short_name]) for each in by_style] for thing in things]
    np.save(work / "pictures.npy", np.asarray(pictures))


def load_scenes(work: Path) -> Scenes:
    things = msgspec.json.decode((work / "things.json").read_bytes(), type=list[Thing])
    pictures = np.load(work / "pictures.npy")  # [things, styles, edge, edge, 4]
    drawings = [Drawing.of([Image.fromarray(picture) for picture in each]) for each in pictures]
    return Scenes(things, drawings)


class Pool:
    """The drawn scenes, read in order, but for the last ones, which are to try on, and some whose thing is not core."""

    def __init__(self, work: Path, *, core: int, others: float, probe: int) -> None:
        """`core`: how many things are; `others`: the share of scenes with other things that is read."""
        self._pixels: NDArray[np.uint8] = np.load(work / "scenes.npy", mmap_mode="r")
        lines = (work / "scenes.jsonl").read_bytes().splitlines()
        scenes = [msgspec.json.decode(line, type=Scene) for line in lines]
        choose, last = random.Random(0), len(lines) - probe
        self._read = [at for at in range(last) if scenes[at].things[0] < core or choose.random() < others]
        self.scenes = [scenes[at] for at in self._read]
        self.probe = scenes[last:], self._pixels[last:]

    def batches(self, size: int, start: int = 0) -> Iterator[tuple[list[Scene], NDArray[np.uint8]]]:
        """Endless; from the beginning again behind the last one. Raises ValueError where the pool has no such batch."""
        if size > len(self.scenes):
            raise ValueError(f"there are {len(self.scenes)} scenes, fewer than a batch of {size}")
        while True:
            for at in range(start, len(self._read) - size + 1, size):
                yield self.scenes[at : at + size], self._pixels[self._read[at : at + size]]
            start = 0


def _draw(work: Path, seed: int) -> tuple[list[Scene], Any]:
    choose, scenes = random.Random(seed), load_scenes(work)
    drawn = [scenes.draw(choose) for _ in range(CHUNK)]
    return [scene for scene, _ in drawn], np.stack([pixels for _, pixels in drawn])


if __name__ == "__main__":
    silence(os.environ)
    main()
