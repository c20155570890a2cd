"""What a log line looks like, in both formats, whatever it is about."""

import json
import logging
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines.logs import FIELDS, JsonFormatter, TextFormatter


def record(message: str, *args: object, fault: BaseException | None = None, **fields: object) -> logging.LogRecord:
    info = (type(fault), fault, fault.__traceback__) if fault is not None else None
    made = logging.LogRecord("gateway.test", logging.WARNING, __file__, 1, message, args, info)
    setattr(made, FIELDS, fields)
    return made


def parsed(line: str) -> dict[str, Any]:
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def raised() -> ValueError:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        return error


def test_text() -> None:
    line = TextFormatter("org/m").format(record("%s is %d", "it", 3, id="req_1", key="two words", ms=1.5, none=None))
    stamp, _, rest = line.partition(" WARNING ")
    datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f")
    assert rest == '[org/m] gateway.test: it is 3 id=req_1 key="two words" ms=1.5 none=None'


def test_json() -> None:
    line = parsed(JsonFormatter("org/m").format(record("%s is %d", "it", 3, id="req_1", ms=1.5, odd=Path("x"))))
    at = datetime.fromisoformat(line.pop("time"))
    assert abs(at - datetime.now(UTC)) < timedelta(minutes=1)
    assert line == {
        "level": "warning",
        "logger": "gateway.test",
        "worker": "org/m",
        "message": "it is 3",
        "id": "req_1",
        "ms": 1.5,
        "odd": "x",
    }


def test_a_traceback_belongs_to_its_line() -> None:
    fault = raised()
    assert "ValueError: two\nlines" in parsed(JsonFormatter().format(record("broke", fault=fault)))["exception"]
    first, *others = TextFormatter().format(record("broke", fault=fault)).split("\n")
    assert first.endswith("gateway.test: broke")
    assert others
    assert all(line.startswith("    ") for line in others)


@pytest.mark.parametrize("forged", ["\n2026-11-30 08:00:00,000 INFO x", "\r", "\x1b[2J", "\x85", "a\x00b"])
def test_nobody_writes_lines_of_their_own(forged: str) -> None:
    for line in (TextFormatter().format(record(f"no {forged}")), TextFormatter().format(record("no", model=forged))):
        others = line.split("\n")[1:]
        assert not any(char in line for char in "\r\x1b\x85\x00")
        assert all(other.startswith("    ") for other in others)
    assert parsed(JsonFormatter().format(record("no %s", forged)))["message"] == f"no {forged}"


def test_what_is_no_unicode_is_written_too() -> None:
    assert parsed(JsonFormatter().format(record("file %s", "\udcff")))["message"] == "file \udcff"


PROGRAM = """
import logging, threading, warnings
from pipelines.logs import LogOptions, configure
configure(LogOptions("warning", "json"), "m")
logging.getLogger("a.library").info("not asked for")
logging.getLogger("a.library").warning("asked for")
warnings.warn("deprecated")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise SystemError("the end")
"""


def test_every_line_of_a_process_has_the_format() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert told.returncode == 1
    lines = [parsed(line) for line in told.stderr.splitlines()]
    assert [line["logger"] for line in lines] == ["a.library", "py.warnings", "root", "root"]
    assert all(line["worker"] == "m" for line in lines)
    assert "ZeroDivisionError" in lines[2]["exception"]
    assert "SystemError: the end" in lines[3]["exception"]
