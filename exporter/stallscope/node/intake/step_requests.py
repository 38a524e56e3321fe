"""Requests to the ranks of a run: accepted from authorized users, kept until they expire, passed to the ranks.

Ranks that report over HTTP receive the request in the response to a report. Ranks that send datagrams read it from a
file next to the socket. The first step is far enough ahead for every rank to receive the request in time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from math import ceil
from pathlib import Path
from typing import Any

from stallscope.model.catalogue.metrics import STEP_BUCKETS
from stallscope.node.intake.held import Held
from stallscope.node.intake.quotas import Key
from stallscope.node.intake.requests import Refusal, RequestFolder, answer, document_of, live_ranks, refuse_foreign
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.training.protocol import step_request
from stallscope.training.protocol.report import Report, StepSeconds
from stallscope.training.protocol.request_name import request_name
from stallscope.training.protocol.step_request import MAX_STEPS, StepRequest

_logger = logging.getLogger(__name__)

_ALLOWANCE = 2.0
"""Seconds added to two report intervals, after which every rank should have the request."""
_LONGEST_NOTICE = 300.0
_HTTP_INTERVAL = 5.0
"""Minimum seconds between two reports over HTTP, as in the shim."""
_GRACE_SECONDS = 600.0
"""Seconds that a request stays valid after its steps should have ended."""
_HIGHEST_STEP = 2**52
_WORDS = {"trace": "traces", "stop": "a stop"}
"""Words for each action in messages."""


class StepRequests:
    """At most one request for each run and action. Thread-safe: each change replaces the dictionary."""

    def __init__(
        self, registry: RunRegistry, folder: Path | None, *, allowed: Collection[str] = (), clock: Clock | None = None
    ) -> None:
        """Start without a request.

        Args:
            registry: the runs.
            folder: folder of the socket; None without a socket.
            allowed: actions that are accepted; the attribute may be replaced later.
            clock: the machine's own if left out.
        """
        self.allowed = allowed
        self._registry = registry
        self._folder = RequestFolder(folder)
        self._clock = clock or SystemClock()
        self._requests: dict[tuple[str, str], StepRequest] = {}
        """By action and run."""
        self._over_http: set[Key] = set()

    def post(self, action: str, body: bytes, owner: int | None = None, sender: str = "") -> tuple[int, bytes]:
        """Accept `{"run": …, "steps": …, "ranks": […], "first_step": …}`; ranks and first_step are optional.

        Args:
            action: one of `step_request.ACTIONS`.
            body: the request. Only traces have `steps`.
            owner: uid that must own the ranks' processes; None for any.
            sender: who sends the request, for the log.

        Returns:
            HTTP status and JSON: 202 and the request as sent to the ranks, with `seconds`, the time until its first
            step; `silent`, the longest time since a rank's last step; `world_size`, the ranks of the run on all nodes,
            or 0; and `problem`, the reason why ranks that report through the socket will not receive it, or empty.
            Or 4xx with `error`, the reason, and `message`.
        """
        return answer(lambda: (202, self._accept(action, body, owner, sender)))

    def answer(self, report: Report) -> bytes:
        """Return the requests for the sender of a report over HTTP, one in each line; empty without one."""
        self._over_http.add((report.run, report.rank))
        now = self._clock.time()
        return b"\n".join(
            step_request.encode(request)
            for (_, run), request in self._requests.items()
            if run == report.run and (not request.ranks or report.rank in request.ranks) and now <= request.expires
        )

    def drop_expired(self) -> None:
        """Drop expired requests, and remove their files."""
        now = self._clock.time()
        self._over_http &= {held.key for held in self._registry.held}
        self._drop([key for key, request in self._requests.items() if now > request.expires])

    def close(self) -> None:
        """Drop every request."""
        self._drop(list(self._requests))

    def _accept(self, action: str, body: bytes, owner: int | None, sender: str) -> dict[str, Any]:
        if action not in self.allowed:
            switch = f"--report.allow-{action}-requests"
            raise Refusal(403, "off", f"{action} requests are off; start the exporter with {switch}")
        document = document_of(body, "run, a string")
        try:
            steps = step_request.whole(document.get("steps"), "steps", 1, MAX_STEPS) if action == "trace" else 1
            wanted = step_request.rank_numbers(document.get("ranks", []))
            first = document.get("first_step")
            if first is not None:
                first = step_request.whole(first, "first_step", 0, _HIGHEST_STEP)
        except ValueError as problem:
            raise Refusal(400, "bad_request", str(problem)) from None
        run = document["run"]
        ranks = live_ranks(self._registry, run, wanted)
        refuse_foreign(self._registry, ranks, owner, _WORDS[action])
        known, step_seconds = self._next_step(ranks)
        first = known if first is None else first
        left = max(first - max(_done(held) for held in ranks), 0) * step_seconds
        now = self._clock.time()
        expires = now + left + steps * step_seconds + _GRACE_SECONDS
        request = StepRequest(action, run, first, steps, wanted, round(now, 3), round(expires, 3))
        self._requests = {**self._requests, (action, run): request}
        _logger.info(
            "%s requested",
            action,
            extra={"fields": {"run": run, "first_step": first, "ranks": len(ranks), "sender": sender or "unknown"}},
        )
        return {
            **request._asdict(),
            "ranks": sorted(held.report.rank for held in ranks),
            "seconds": round(left, 1),
            "silent": round(max(now - (held.report.last_step or held.report.start) for held in ranks), 1),
            "world_size": max(_world_size(held) for held in ranks),
            "problem": self._folder.write(request_name(action, run), step_request.encode(request)),
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
            if held.key in self._over_http:
                interval = max(interval, _HTTP_INTERVAL)
            notice = max(notice, min(2.0 * interval + _ALLOWANCE, _LONGEST_NOTICE))
            silent = min(now - held.last_seen, 2.0 * interval)
            furthest = max(furthest, _done(held) + ceil(silent / step_seconds))
        return furthest + ceil(notice / step_seconds) + 1, step_seconds

    def _drop(self, keys: Collection[tuple[str, str]]) -> None:
        if not keys:
            return
        self._requests = {key: request for key, request in self._requests.items() if key not in keys}
        for action, run in keys:
            self._folder.remove(request_name(action, run))


def _done(held: Held) -> int:
    """Return the number of the rank's latest step."""
    return int(max(held.report.gauges.get("step", 0.0), 0.0))


def _world_size(held: Held) -> int:
    """Return the number of ranks of the whole run, on all nodes; 0 if the rank does not report it."""
    text = held.report.info.get("world_size", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0


def _typical(steps: StepSeconds) -> float:
    """Return the lower bound of the median's bucket; the mean would include slow first steps."""
    passed = 0
    for position, count in enumerate(steps.counts):
        passed += count
        if passed * 2 >= steps.count:
            return min(STEP_BUCKETS[position - 1] if position else STEP_BUCKETS[0] / 2, steps.sum / steps.count)
    return steps.sum / steps.count
