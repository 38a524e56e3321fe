"""The exporter's log on standard error: one line an event, as key=value pairs or as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("plain", "json")

_CLIENTS_DO = ("stallscope.tools.cli", "stallscope.node.intake", "stallscope.node.web")
"""Loggers of events that a client can cause."""
_BURST = 20
_WINDOW = 60.0
"""Each of their call sites logs at most this many messages in this many seconds."""
_HOUSE = re.compile(r"^stallscope\.(training\.|node\.|model\.|lab\.|tools\.)?")
"""Beginning of the names of loggers, before the unit."""
_PLAIN_VALUE = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class _Formatter(logging.Formatter):
    """One line a record: a line break in a message can't forge a second event."""

    def pairs(self, record: logging.LogRecord) -> dict[str, str]:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs = {
            "ts": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": _HOUSE.sub("", record.name),
            "msg": record.getMessage(),
        }
        pairs.update(getattr(record, "fields", {}))
        if record.exc_info:
            pairs["exception"] = self.formatException(record.exc_info)
        return pairs


class RateLimit(logging.Filter):
    """Drops messages that clients cause beyond `_BURST` a window; the next message reports how many."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._counting = threading.Lock()
        self._windows: dict[tuple[str, int], tuple[float, int]] = {}
        """Begin of the window and messages in it, by place in the code: clients can't add to these."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the message is logged."""
        if not record.name.startswith(_CLIENTS_DO):
            return True
        site, now = (record.pathname, record.lineno), self._monotonic()
        with self._counting:
            began, number = self._windows.get(site, (now, 0))
            if now - began < _WINDOW:
                self._windows[site] = began, number + 1
                return number < _BURST
            self._windows[site] = now, 1
        if number > _BURST:
            record.fields = {**getattr(record, "fields", {}), "dropped": number - _BURST}
        return True


class PlainFormatter(_Formatter):
    """`ts=… level=… logger=… msg="…"`, the way the rest of the Prometheus ecosystem logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return " ".join(f"{key}={_plain(value)}" for key, value in self.pairs(record).items())


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(self.pairs(record), default=str)


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send everything of at least that level to the stream; may be called again to change either.

    Args:
        level: one of `LEVELS`.
        form: one of `FORMATS`.
        stream: standard error by default.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    handler.addFilter(RateLimit())
    # A log without a reader (a closed pipe) must not cost the exporter anything.
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _plain(value: object) -> str:
    text = str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)
