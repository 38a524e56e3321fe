"""Web servers that say what a test wants: an exporter's pages, and Prometheus' API."""

from __future__ import annotations

import contextlib
import http.server
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stallscope.tools.doctor.checkup import Finding, Part, Subject, examined
from tests.handled import handled, reply

Vector = Sequence[tuple[Mapping[str, str], float]]


class Served:
    """Responses of a server; tests may change them while it runs."""

    def __init__(self) -> None:
        self.url = ""
        self.texts: dict[str, str] = {}
        """Pages by path."""
        self.data: dict[str, Any] = {}
        """Prometheus' `data` by path under `/api/v1/`, without parameters."""
        self.vectors: dict[str, Vector | Callable[[], Vector]] = {}
        """Answers to queries, by the expression; the others have no series."""

    def answer(self, path: str, form: Mapping[str, Sequence[str]]) -> str | None:
        if path in self.texts:
            return self.texts[path]
        name = path.removeprefix("/api/v1/")
        if name == "query":
            found = self.vectors.get(form["query"][0], [])
            result = [
                {"metric": labels, "value": [time.time(), str(value)]}
                for labels, value in (found() if callable(found) else found)
            ]
            return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
        return json.dumps({"status": "success", "data": self.data[name]}) if name in self.data else None


@contextlib.contextmanager
def serving() -> Iterator[Served]:
    """Answer on a free port."""
    served = Served()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            found = served.answer(self.path.partition("?")[0], urllib.parse.parse_qs(body))
            reply(self, (found or "").encode(), status=404 if found is None else 200)

        def do_POST(self) -> None:
            self.do_GET()

    with handled(Handler) as address:
        served.url = f"http://{address}"
        yield served


def findings(part: Part[Any], subject: Subject) -> dict[str, list[Finding]]:
    """Return the findings of a part by check."""
    found: dict[str, list[Finding]] = {}
    for _, check, finding in examined(part, subject):
        found.setdefault(check, []).append(finding)
    return found


def statuses(found: Mapping[str, Sequence[Finding]]) -> dict[str, set[str]]:
    """Return only the statuses of the findings, by check."""
    return {check: {finding.status for finding in each} for check, each in found.items()}
