"""Against llama.cpp (llama-cpp-python): the same GGUF file, the same threads."""

import asyncio
from collections.abc import Iterator
from functools import partial
from time import monotonic

from gateway.backends.base import Call, State
from gateway.backends.worker import WorkerBackend
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.kinds import metrics_by_kind
from pipelines.messages.frames import Done, Failed, ModelSpec
from pipelines.messages.sampling import Sampling
from pipelines.messages.text import Delta, TextOptions, TextRequest, TokenPrompt
from tests.benchmarks import client, llama_environment
from tests.benchmarks.figures import Figure, at_least, at_most, ratio
from tests.benchmarks.harness import Bench, Subject, model_file
from tests.benchmarks.processes import MeasurementFailed, Service

PROMPT, DECODED, LONG = 128, 256, 1_000


def compare(bench: Bench) -> Iterator[Figure]:
    """Raises llama_environment.Unavailable."""
    python = llama_environment.prepare(str(model_file()), bench.say)
    arguments = (str(model_file()), str(bench.threads))
    sides = {"ours": bench.engine(), "llama.cpp": bench.service("llama", *arguments, module="llama", python=python)}
    yield from _decode(bench, sides)
    yield from _prefill(bench, sides)
    yield from _start(bench, python, arguments)


def _decode(bench: Bench, sides: dict[str, Service]) -> Iterator[Figure]:
    tokens = bench.scaled(DECODED, 64)

    def rate(service: Service) -> float:
        (stamps,) = service.generate(bench.prompts(1, PROMPT), tokens)
        return (tokens - 1) / (stamps[-1] - stamps[0])

    found = bench.interleave({name: Subject(partial(rate, service), [service]) for name, service in sides.items()})
    definition = f"one stream, {PROMPT}-token prompt, {tokens} tokens: (tokens − 1) / (last token − first token)"
    yield ratio("decode ÷ llama.cpp", definition, found["ours"], found["llama.cpp"], at_least(1.2, 1.0))
    yield from (Figure(f"decode, {name}", definition, "tokens/s", values) for name, values in found.items())


def _prefill(bench: Bench, sides: dict[str, Service]) -> Iterator[Figure]:
    def rate(service: Service) -> float:
        ((first,),) = service.generate(bench.prompts(1, LONG), 1)
        return LONG / first

    found = bench.interleave({name: Subject(partial(rate, service), [service]) for name, service in sides.items()})
    definition = f"prompt of {LONG} tokens without a prefix hit: tokens / (request → first token)"
    yield ratio("prefill ÷ llama.cpp", definition, found["ours"], found["llama.cpp"], at_least(2.5, 2.0))
    yield from (Figure(f"prefill, {name}", definition, "tokens/s", values) for name, values in found.items())


def _start(bench: Bench, python: str, arguments: tuple[str, ...]) -> Iterator[Figure]:
    def other() -> float:
        start = monotonic()
        service = bench.spawn("llama-start", *arguments, module="llama", python=python)
        try:
            service.generate(bench.prompts(1, PROMPT), 1)
            return monotonic() - start
        finally:
            service.stop()

    def ours() -> float:
        return client.run(_first_token(bench.spec(), bench.prompts(1, PROMPT)[0]))

    found = bench.interleave({"ours": Subject(ours), "llama.cpp": Subject(other)})
    definition = (
        f"process start → first token of a {PROMPT}-token prompt, file in the page cache; ours is the worker process"
    )
    yield ratio("start ÷ llama.cpp", definition, found["ours"], found["llama.cpp"], at_most(1.5))
    yield from (Figure(f"start, {name}", definition, "s", values) for name, values in found.items())


async def _first_token(spec: ModelSpec[TextOptions], prompt: list[int]) -> float:
    """Seconds from starting a worker to its first token."""
    backend = WorkerBackend(spec, registry=Registry(metrics_by_kind()))
    changed = asyncio.Event()
    backend.subscribe(changed.set)
    start = monotonic()
    await backend.start()
    try:
        while backend.state is not State.READY:
            if backend.state is not State.LOADING:
                raise MeasurementFailed(backend.reason)
            changed.clear()
            await changed.wait()
        request = TextRequest(prompts=[TokenPrompt(prompt)], sampling=Sampling(temperature=0.0, max_tokens=1))
        session = backend.open(Call("start", request), Timeline())
        while True:
            for event in await session.read():
                match event:
                    case Delta():
                        return monotonic() - start
                    case Done():
                        raise MeasurementFailed("it ended without a token")
                    case Failed(message=message):
                        raise MeasurementFailed(message)
    finally:
        await backend.stop(0)
