"""Embedding many texts over HTTP, against the libraries that do it in process."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter

from models.embedder import openvino
from tests.benchmarks import client, embedding_environment
from tests.benchmarks.embedding_texts import MODEL, PATH, Texts, folder, server
from tests.benchmarks.figures import Figure, at_least, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.processes import MeasurementFailed, Server, Service

TEXTS = 2000
CLIENTS = 32
TORCH, ONNX, FASTEMBED = "sentence-transformers", "sentence-transformers, ONNX", "fastembed"
ONE, MANY = "one request", f"{CLIENTS} clients"


def compare(bench: Bench) -> Iterator[Figure]:
    python = embedding_environment.prepare(bench.say)
    ours = server(bench)
    others = start(bench, python)
    texts = Texts(seed=1).some(bench.scaled(TEXTS, 200))
    number = len(texts)

    def library(service: Service) -> float:
        began = perf_counter()
        service.ask(texts=texts)
        return number / (perf_counter() - began)

    try:
        subjects = {name: Subject(partial(library, service), [service]) for name, service in others.items()}
        subjects[ONE] = Subject(lambda: number / client.run(bulk(ours, texts)), [ours])
        subjects[MANY] = Subject(lambda: number / client.run(singles(ours, texts)), [ours])
        found = bench.interleave(subjects)
    finally:
        for service in others.values():
            service.stop()
    rivals = [name for name in others if name != TORCH]
    best = [max(values) for values in zip(*(found[name] for name in rivals), strict=True)]
    precision = "float32 too" if openvino.missing() else "products in bfloat16"
    definition = (
        f"texts a second over {number} texts of 1 to 200 words (median 22), {bench.threads} threads; ours over HTTP in "
        f"base64, {precision}; the others' encode() of all at once, in their process, float32 as they come"
    )
    for name in (ONE, MANY):
        yield ratio(f"{name} ÷ {TORCH}", definition, found[name], found[TORCH], at_least(2.0, 1.6))
        yield ratio(f"{name} ÷ best of {' and '.join(rivals)}", definition, found[name], best, at_least(1.2, 1.0))
    for name, values in found.items():
        yield Figure(f"embedding: {name}", definition, "texts/s", values)


def start(bench: Bench, python: str) -> dict[str, Service]:
    """fastembed runs the graph that the one before it exports. What can't load the model here is left out."""
    export = str(bench.logs / "export")
    services: dict[str, Service] = {}
    for name, which in {TORCH: "torch", ONNX: "onnx", FASTEMBED: "fastembed"}.items():
        arguments = [str(folder()), str(bench.threads), which, export]
        service = bench.spawn(which, *arguments, module="embedding_reference", python=python)
        try:
            service.ask(texts=["hello"])
        except MeasurementFailed as reason:
            service.stop()
            bench.notes.append(f"{name} was left out: {str(reason)[-300:]}")
        else:
            services[name] = service
    if len(services) < 2 or TORCH not in services:
        raise MeasurementFailed("too few of the other libraries run here")
    return services


async def bulk(server: Server, texts: Sequence[str]) -> float:
    """Seconds for all of them in one request."""
    body = client.encode({"model": MODEL, "input": texts, "encoding_format": "base64"})
    connection = await client.Connection.open(server.port)
    began = perf_counter()
    reply = await connection.post(PATH, body)
    spent = perf_counter() - began
    connection.close()
    if reply.status != 200:
        raise MeasurementFailed(f"{reply.status}: {reply.body[:500]!r}")
    return spent


async def singles(server: Server, texts: Sequence[str]) -> float:
    """Seconds for each in a request of its own, from CLIENTS at a time."""
    connections = [await client.Connection.open(server.port) for _ in range(CLIENTS)]
    bodies = iter([client.encode({"model": MODEL, "input": text, "encoding_format": "base64"}) for text in texts])

    async def one(connection: client.Connection) -> None:
        for body in bodies:
            reply = await connection.post(PATH, body)
            if reply.status != 200:
                raise MeasurementFailed(f"{reply.status}: {reply.body[:500]!r}")

    began = perf_counter()
    await asyncio.gather(*map(one, connections))
    spent = perf_counter() - began
    for connection in connections:
        connection.close()
    return spent
