"""Wishes for traces: taken from whoever may ask, kept until they expire, handed to the ranks.

Ranks that report over HTTP get the wish as the answer to a report; for those that send datagrams it stands in a file
beside the socket. The first step lies far enough ahead for every rank to have heard of it by then.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Collection
from errno import EPERM
from math import ceil
from pathlib import Path
from typing import Any

from stallscope.catalogue.metrics import STEP_BUCKETS
from stallscope.common import file_trust
from stallscope.intake.quotas import Key
from stallscope.intake.runs import Held, RunRegistry
from stallscope.protocol import trace_request
from stallscope.protocol.report import Report, StepSeconds
from stallscope.protocol.trace_request import MAX_STEPS, TraceRequest
from stallscope.sampling.clock import Clock, SystemClock

_logger = logging.getLogger(__name__)

_ALLOWANCE = 2.0
"""Seconds added to the time of two reports, by when every rank should have heard."""
_LONGEST_NOTICE = 300.0
_HTTP_INTERVAL = 5.0
"""Fewest seconds between two reports over HTTP, as the shim has it."""
_PATIENCE = 600.0
"""Seconds for which a wish lives on after its steps should be over."""
_HIGHEST_STEP = 2**52


class Refusal(ValueError):
    """A wish can't be granted: HTTP status, one word, and a sentence that says what to do."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class TraceRequests:
    """At most one wish for each run. Any thread may call; each change replaces the whole."""

    def __init__(
        self, registry: RunRegistry, folder: Path | None, *, allowed: bool = False, clock: Clock | None = None
    ) -> None:
        """Start without a wish.

        Args:
            registry: the runs.
            folder: where the socket lies; None where there is no socket.
            allowed: whether wishes are taken; the attribute may be replaced later.
            clock: the machine's own if left out.
        """
        self.allowed = allowed
        self._registry = registry
        self._folder = folder
        self._clock = clock or SystemClock()
        self._wishes: dict[str, TraceRequest] = {}
        self._over_http: set[Key] = set()

    def post(self, body: bytes, owner: int | None = None) -> tuple[int, bytes]:
        """Take in `{"run": …, "steps": …, "ranks": […], "first_step": …}`; the last two may be left out.

        Args:
            body: the request.
            owner: the user whose processes the ranks must be; None for ranks of everybody.

        Returns:
            HTTP status and JSON: 202 and the wish as it goes to the ranks, with `seconds`, the time until its first
            step, and `problem`, empty unless ranks that report through the socket won't hear; or 4xx with `error`, the
            reason's word, and `message`.
        """
        try:
            return 202, json.dumps(self._take(body, owner)).encode()
        except Refusal as refusal:
            answer = json.dumps({"error": refusal.reason, "message": refusal.message})
            return refusal.status, answer.encode()

    def answer(self, report: Report) -> bytes:
        """Return the trace request for the sender of a report over HTTP; empty if there is none."""
        self._over_http.add((report.run, report.rank))
        wish = self._wishes.get(report.run)
        if wish is None or (wish.ranks and report.rank not in wish.ranks) or self._clock.time() > wish.expires:
            return b""
        return trace_request.encode(wish)

    def let_go_of_expired(self) -> None:
        """Forget wishes whose time is over, and remove their files."""
        now = self._clock.time()
        self._over_http &= {(held.report.run, held.report.rank) for held in self._registry.held}
        self._forget([run for run, wish in self._wishes.items() if now > wish.expires])

    def close(self) -> None:
        """Forget every wish."""
        self._forget(list(self._wishes))

    def _take(self, body: bytes, owner: int | None) -> dict[str, Any]:
        if not self.allowed:
            raise Refusal(
                403, "off", "requests for traces are off; start the exporter with --report.allow-trace-requests"
            )
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        if type(document) is not dict or type(document.get("run")) is not str:
            raise Refusal(400, "bad_request", "expected a JSON object with run, a text, and steps, a number")
        try:
            steps = trace_request.whole(document.get("steps"), "steps", 1, MAX_STEPS)
            wanted = trace_request.rank_numbers(document.get("ranks", []))
            first = document.get("first_step")
            if first is not None:
                first = trace_request.whole(first, "first_step", 0, _HIGHEST_STEP)
        except ValueError as problem:
            raise Refusal(400, "bad_request", str(problem)) from None
        run = document["run"]
        ranks = self._ranks(run, wanted)
        if owner is not None and self._users(ranks) != {owner}:
            raise Refusal(
                403,
                "not_owner",
                f"run {run!r}: user {owner} is not the only one who reports under this name through the UNIX socket; "
                "request traces as the user who trains, as root, or as a member of the group in --web.control-group",
            )
        known, step_seconds = self._next_step(ranks)
        first = known if first is None else first
        left = max(first - max(_done(held) for held in ranks), 0) * step_seconds
        expires = self._clock.time() + left + steps * step_seconds + _PATIENCE
        wish = TraceRequest(run, first, steps, wanted, round(expires, 3))
        self._wishes = {**self._wishes, run: wish}
        _logger.info(
            "traces asked for",
            extra={"fields": {"run": run, "first_step": first, "steps": steps, "ranks": len(ranks)}},
        )
        return {
            **wish._asdict(),
            "ranks": sorted(held.report.rank for held in ranks),
            "seconds": round(left, 1),
            "problem": self._write(wish),
        }

    def _users(self, ranks: list[Held]) -> set[int]:
        """Return the users whose processes would hear: two users' runs of one name are held under two."""
        names = {held.told_run or held.report.run for held in ranks}
        alive = [held for held in self._registry.held if held.ended is None]
        return {held.uid for held in alive if held.uid is not None and (held.told_run or held.report.run) in names}

    def _ranks(self, run: str, wanted: Collection[int]) -> list[Held]:
        alive = [held for held in self._registry.held if held.report.run == run and held.ended is None]
        if not alive:
            runs = sorted({held.report.run for held in self._registry.held if held.ended is None})
            named = ", ".join(runs[:10]) or "none"
            raise Refusal(404, "unknown_run", f"no run {run!r:.150} is alive here; runs that are: {named}")
        ranks = [held for held in alive if not wanted or held.report.rank in wanted]
        if not ranks:
            numbers = ", ".join(str(number) for number in sorted(held.report.rank for held in alive)[:20])
            raise Refusal(404, "unknown_rank", f"run {run!r} has none of these ranks here; it has {numbers}")
        return ranks

    def _next_step(self, ranks: list[Held]) -> tuple[int, float]:
        """Return the first step that all ranks can be notified of in time, and a low estimate of its seconds."""
        now = self._clock.monotonic()
        timed = [held.report.step_seconds for held in ranks if held.report.step_seconds is not None]
        step_seconds = min([_usual(steps) for steps in timed if steps.count], default=1.0)
        furthest = 0
        notice = 0.0
        for held in ranks:
            report = held.report
            # How often a rank reports is how often it hears: by datagrams each half second, or each step.
            interval = max(report.sent - report.start, 0.0) / max(report.sequence, 1)
            if (report.run, report.rank) in self._over_http:
                interval = max(interval, _HTTP_INTERVAL)
            notice = max(notice, min(2.0 * interval + _ALLOWANCE, _LONGEST_NOTICE))
            silent = min(now - held.heard, 2.0 * interval)
            furthest = max(furthest, _done(held) + ceil(silent / step_seconds))
        return furthest + ceil(notice / step_seconds) + 1, step_seconds

    def _write(self, wish: TraceRequest) -> str:
        """Write the file next to the socket; return a description of the failure, or the empty string."""
        if self._folder is None:
            return ""
        path = self._folder / trace_request.file_name(wish.run)
        draft = path.with_suffix(".part")
        try:
            if problem := file_trust.folder_problem(self._folder.stat()):
                raise PermissionError(EPERM, f"{self._folder}: {problem}")
            # Readable for training of any user, writable for nobody else: that is what makes it trusted.
            with open(file_trust.create(draft, 0o644), "wb") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(trace_request.encode(wish))
            draft.replace(path)
        except OSError as error:
            _logger.warning("%s can't be written: %s", path, error.strerror or error)
            return f"{path} can't be written ({error.strerror or error}): ranks that report by datagrams won't hear"
        return ""

    def _forget(self, runs: Collection[str]) -> None:
        if not runs:
            return
        self._wishes = {run: wish for run, wish in self._wishes.items() if run not in runs}
        if self._folder is not None:
            for run in runs:
                with contextlib.suppress(OSError):
                    (self._folder / trace_request.file_name(run)).unlink()


def _done(held: Held) -> int:
    """Steps done, as the rank numbers them."""
    return int(max(held.report.gauges.get("step", 0.0), 0.0))


def _usual(steps: StepSeconds) -> float:
    """The lower bound of the bucket that the middle step lies in, since first steps spoil the mean."""
    passed = 0
    for position, count in enumerate(steps.counts):
        passed += count
        if passed * 2 >= steps.count:
            return min(STEP_BUCKETS[position - 1] if position else STEP_BUCKETS[0] / 2, steps.sum / steps.count)
    return steps.sum / steps.count
