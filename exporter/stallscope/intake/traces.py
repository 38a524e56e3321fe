"""Trace requests: accepted from authorized users, kept until they expire, passed to the ranks.

Ranks that report over HTTP receive the request in the response to a report. Ranks that send datagrams read it from a
file next to the socket. The first step is far enough ahead for every rank to receive the request in time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from math import ceil
from pathlib import Path
from typing import Any

from stallscope.catalogue.metrics import STEP_BUCKETS
from stallscope.intake.quotas import Key
from stallscope.intake.requests import Refusal, RequestFolder, answer, document_of, live_ranks, refuse_foreign
from stallscope.intake.runs import Held, RunRegistry
from stallscope.protocol import trace_request
from stallscope.protocol.report import Report, StepSeconds
from stallscope.protocol.trace_request import MAX_STEPS, TraceRequest
from stallscope.sampling.clock import Clock, SystemClock

_logger = logging.getLogger(__name__)

_ALLOWANCE = 2.0
"""Seconds added to two report intervals, after which every rank should have the request."""
_LONGEST_NOTICE = 300.0
_HTTP_INTERVAL = 5.0
"""Minimum seconds between two reports over HTTP, as in the shim."""
_GRACE_SECONDS = 600.0
"""Seconds that a request stays valid after its steps should have ended."""
_HIGHEST_STEP = 2**52


class TraceRequests:
    """At most one request for each run. Thread-safe: each change replaces the dictionary."""

    def __init__(
        self, registry: RunRegistry, folder: Path | None, *, allowed: bool = False, clock: Clock | None = None
    ) -> None:
        """Start without a request.

        Args:
            registry: the runs.
            folder: folder of the socket; None without a socket.
            allowed: accept requests; the attribute may be replaced later.
            clock: the machine's own if left out.
        """
        self.allowed = allowed
        self._registry = registry
        self._folder = RequestFolder(folder)
        self._clock = clock or SystemClock()
        self._requests: dict[str, TraceRequest] = {}
        self._over_http: set[Key] = set()

    def post(self, body: bytes, owner: int | None = None) -> tuple[int, bytes]:
        """Accept `{"run": …, "steps": …, "ranks": […], "first_step": …}`; the last two are optional.

        Args:
            body: the request.
            owner: uid that must own the ranks' processes; None for any.

        Returns:
            HTTP status and JSON: 202 and the request as sent to the ranks, with `seconds`, the time until its first
            step, and `problem`, the reason why ranks that report through the socket will not receive it, or empty; or
            4xx with `error`, the reason, and `message`.
        """
        return answer(lambda: (202, self._accept(body, owner)))

    def answer(self, report: Report) -> bytes:
        """Return the request for the sender of a report over HTTP; empty without one."""
        self._over_http.add((report.run, report.rank))
        request = self._requests.get(report.run)
        if request is None or (request.ranks and report.rank not in request.ranks):
            return b""
        return b"" if self._clock.time() > request.expires else trace_request.encode(request)

    def drop_expired(self) -> None:
        """Drop expired requests, and remove their files."""
        now = self._clock.time()
        self._over_http &= {(held.report.run, held.report.rank) for held in self._registry.held}
        self._drop([run for run, request in self._requests.items() if now > request.expires])

    def close(self) -> None:
        """Drop every request."""
        self._drop(list(self._requests))

    def _accept(self, body: bytes, owner: int | None) -> dict[str, Any]:
        if not self.allowed:
            raise Refusal(
                403, "off", "requests for traces are off; start the exporter with --report.allow-trace-requests"
            )
        document = document_of(body, "run, a string, and steps, a number")
        try:
            steps = trace_request.whole(document.get("steps"), "steps", 1, MAX_STEPS)
            wanted = trace_request.rank_numbers(document.get("ranks", []))
            first = document.get("first_step")
            if first is not None:
                first = trace_request.whole(first, "first_step", 0, _HIGHEST_STEP)
        except ValueError as problem:
            raise Refusal(400, "bad_request", str(problem)) from None
        run = document["run"]
        ranks = live_ranks(self._registry, run, wanted)
        refuse_foreign(self._registry, ranks, owner, "traces")
        known, step_seconds = self._next_step(ranks)
        first = known if first is None else first
        left = max(first - max(_done(held) for held in ranks), 0) * step_seconds
        expires = self._clock.time() + left + steps * step_seconds + _GRACE_SECONDS
        request = TraceRequest(run, first, steps, wanted, round(expires, 3))
        self._requests = {**self._requests, run: request}
        _logger.info(
            "traces requested",
            extra={"fields": {"run": run, "first_step": first, "steps": steps, "ranks": len(ranks)}},
        )
        return {
            **request._asdict(),
            "ranks": sorted(held.report.rank for held in ranks),
            "seconds": round(left, 1),
            "problem": self._folder.write(trace_request.file_name(run), trace_request.encode(request)),
        }

    def _next_step(self, ranks: list[Held]) -> tuple[int, float]:
        """Return the first step that every rank can be notified of in time, and a low estimate of a step's seconds."""
        now = self._clock.monotonic()
        timed = [held.report.step_seconds for held in ranks if held.report.step_seconds is not None]
        step_seconds = min([_typical(steps) for steps in timed if steps.count], default=1.0)
        furthest = 0
        notice = 0.0
        for held in ranks:
            report = held.report
            # A rank receives requests when it reports: every half second by datagrams, or every step if that is longer.
            interval = max(report.sent - report.start, 0.0) / max(report.sequence, 1)
            if (report.run, report.rank) in self._over_http:
                interval = max(interval, _HTTP_INTERVAL)
            notice = max(notice, min(2.0 * interval + _ALLOWANCE, _LONGEST_NOTICE))
            silent = min(now - held.last_seen, 2.0 * interval)
            furthest = max(furthest, _done(held) + ceil(silent / step_seconds))
        return furthest + ceil(notice / step_seconds) + 1, step_seconds

    def _drop(self, runs: Collection[str]) -> None:
        if not runs:
            return
        self._requests = {run: request for run, request in self._requests.items() if run not in runs}
        for run in runs:
            self._folder.remove(trace_request.file_name(run))


def _done(held: Held) -> int:
    """Return the number of the rank's latest step."""
    return int(max(held.report.gauges.get("step", 0.0), 0.0))


def _typical(steps: StepSeconds) -> float:
    """Return the lower bound of the median's bucket; the mean would include slow first steps."""
    passed = 0
    for position, count in enumerate(steps.counts):
        passed += count
        if passed * 2 >= steps.count:
            return min(STEP_BUCKETS[position - 1] if position else STEP_BUCKETS[0] / 2, steps.sum / steps.count)
    return steps.sum / steps.count
