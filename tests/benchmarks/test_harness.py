"""The harness measures what it says: order of rounds, ratios, bounds, processes that fail, stamps of a stream."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks import client, report
from tests.benchmarks.figures import Comparison, Figure, at_least, at_most, ratio
from tests.benchmarks.harness import Bench, Subject
from tests.benchmarks.machine import describe
from tests.benchmarks.processes import ProcessFailed, Service

ECHO = """
from tests.benchmarks.services.loop import serve
def answer(request):
    print("what a library says")
    return request["value"] * 2
serve(answer)
"""


def test_rounds_alternate_and_the_first_is_thrown_away() -> None:
    bench = Bench(rounds=3, quick=True, threads=1, say=lambda _: None)
    order: list[str] = []
    calls = iter(range(100))

    def call(name: str) -> int:
        order.append(name)
        return next(calls)

    found = bench.interleave({name: Subject(lambda name=name: call(name)) for name in ("a", "b")})
    bench.close()
    assert "".join(order) == "baabbaab"
    assert found == {"a": [2, 5, 6], "b": [3, 4, 7]}


def test_ratios_are_taken_within_a_round() -> None:
    figure = ratio("speed", "a / b", [10.0, 40.0, 90.0], [10.0, 20.0, 30.0], at_least(2.5, 2.0))
    assert (list(figure.values), figure.value, figure.verdict) == ([1.0, 2.0, 3.0], 2.0, "floor met")


@pytest.mark.parametrize(
    ("bounds", "value", "verdict"),
    [
        (at_least(1.2, 1.0), 1.2, "goal met"),
        (at_least(1.2, 1.0), 0.99, "below the floor"),
        (at_most(3.0), 3.0, "goal met"),
        (at_most(3.0), 3.1, "below the floor"),
    ],
)
def test_verdicts(bounds: object, value: float, verdict: str) -> None:
    assert Figure("f", "d", "×", [value], bounds).verdict == verdict  # type: ignore[arg-type]


def test_prompts_share_no_prefix() -> None:
    bench = Bench(rounds=1, quick=True, threads=1, say=lambda _: None)
    prompts = [*bench.prompts(8, 100), *bench.prompts(8, 100)]
    bench.close()
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 16


def test_a_service_answers_lines_and_says_why_it_ended(tmp_path: Path) -> None:
    service = Service("echo", [sys.executable, "-c", ECHO], tmp_path)
    try:
        assert service.ask(value=21) == 42
        assert service.ask(value="x") == "xx"
        with pytest.raises(ProcessFailed, match="TypeError"):
            service.ask(value=None)
    finally:
        service.stop()


async def test_the_client_stamps_each_text_of_a_stream() -> None:
    events = [b'data: {"text":"a"}\n\n', b'data: {"text":""}\n\n', b'data: {"text":"b"}\n\ndata: {"text":"c"}\n\n']

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in events:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        reply = await client.post(server.sockets[0].getsockname()[1], "/", {})
    assert (reply.status, reply.body) == (200, b"".join(events))
    first, second, third = reply.stamps
    assert 0 < first < second == third


def test_the_report_has_every_figure_and_the_machine(tmp_path: Path) -> None:
    figures = [ratio("speed", "how fast", [3.0], [2.0], at_most(1.0)), Figure("rate", "how many", "tokens/s", [123.4])]
    report.write(tmp_path, describe(), [Comparison("one", "2026-01-01", 5, 90, figures, ["a note"])])
    document = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [figure["median"] for figure in document["comparisons"][0]["figures"]] == [1.5, 123.4]
    assert document["machine"]["versions"]["torch"]
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| speed | 1.5 × | 1.5 … 1.5 | ≤ 1 | ≤ 1 | below the floor | how fast |" in page
    assert "| rate | 123 tokens/s | 123 … 123 | how many |" in page
    assert "- one: 5 round(s), 1.5 minutes, 2026-01-01" in page
    assert "- a note" in page


def test_a_comparison_that_is_measured_again_replaces_itself_alone(tmp_path: Path) -> None:
    def measured(name: str, value: float) -> Comparison:
        return Comparison(name, "2026-01-01", 1, 60, [Figure(name, "what", "ms", [value], at_most(9.0))])

    for comparison in (measured("first", 1.0), measured("second", 2.0), measured("first", 3.0)):
        report.write(tmp_path, describe(), [comparison])
    document = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [each["figures"][0]["median"] for each in document["comparisons"]] == [3.0, 2.0]
    page = (tmp_path / "benchmarks.md").read_text()
    assert page.count("| first |") == page.count("| second |") == 1
    assert "| second | 2 ms | 2 … 2 | ≤ 9 | ≤ 9 | goal met | what |" in page
