"""The log lines of every process, on stderr: text for people, or a JSON object a line for machines."""

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Literal

import msgspec
from msgspec import Struct

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

FIELDS = "fields"  # of a record: a mapping of names to values, beside its message

_plain = re.compile(r"[A-Za-z0-9._:@+/-]+").fullmatch
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}

_encoder = msgspec.json.Encoder(enc_hook=str)


class LogOptions(Struct, frozen=True):
    level: LogLevel = "info"
    format: LogFormat = "text"


def configure(options: LogOptions, model: str | None = None) -> None:
    """Every line of this process from now on, those of libraries, warnings and uncaught exceptions too. `model`: whose
    worker it is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(model) if options.format == "text" else JsonFormatter(model))
    logging.basicConfig(level=options.level.upper(), handlers=[handler], force=True)
    # What no format shows is not looked up: that costs, too.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


class TextFormatter(logging.Formatter):
    """`2026-11-30 08:05:22,123 INFO gateway.request: POST /v1/embeddings status=200 …`

    No record can pass for two: control characters are escaped, and further lines indented.
    """

    def __init__(self, model: str | None = None) -> None:
        super().__init__()
        self._model = f" [{model}]" if model else ""
        self._second = -1
        self._stamp = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        text = " ".join([record.getMessage(), *(f"{name}={_value(each)}" for name, each in fields(record).items())])
        if trace := _trace(self, record):
            text = f"{text}\n{trace}"
        if not text.isprintable():
            text = text.translate(_CONTROLS).replace("\n", "\n    ")
        return f"{self._stamp},{int(record.msecs):03d} {record.levelname}{self._model} {record.name}: {text}"


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC, RFC 3339), `level`, `logger`, `worker` (its model), `message`, the record's
    fields, and `exception`, a traceback."""

    def __init__(self, model: str | None = None) -> None:
        super().__init__()
        self._model = {"worker": model} if model else {}
        self._second = -1
        self._stamp = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        line: dict[str, object] = {
            "time": f"{self._stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._model,
            "message": record.getMessage(),
            **fields(record),
        }
        if trace := _trace(self, record):
            line["exception"] = trace
        try:
            return _encoder.encode(line).decode()
        except UnicodeEncodeError:  # a lone surrogate, as in names of files
            return json.dumps(line, default=str)


def fields(record: logging.LogRecord) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(record, FIELDS, {})
    return found


def _value(value: object) -> str:
    text = str(value)
    return text if _plain(text) else json.dumps(text, ensure_ascii=False)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logging.getLogger().critical("uncaught exception", exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        name = args.thread.name if args.thread else "a thread"
        logging.getLogger().critical("uncaught exception in %s", name, exc_info=args.exc_value)
