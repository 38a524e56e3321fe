"""A trace as a file: trace-event JSON, which Perfetto and chrome://tracing open.

The format is Google's "Trace Event Format": complete events (`X`) for phases and spans, counter events (`C`), metadata
events (`M`) for names; times in microseconds, here of Unix time, so that the files of several ranks line up.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from zlib import crc32

from stallscope.common.file_trust import create
from stallscope.common.version import __version__
from stallscope.training.shim.tolerance import label
from stallscope.training.shim.tracing.recording import Recording

if TYPE_CHECKING:
    from stallscope.training.shim.session import Session
    from stallscope.training.shim.timeline import Phase

_MAX_NAME_LENGTH = 128
_LONGEST_FOLDER = 100


def trace_document(recording: Recording, run: Session, step: int, counters: Mapping[str, float]) -> dict[str, Any]:
    """Put what was recorded into the format's one object.

    Args:
        recording: a recording that has stopped.
        run: whose step it was.
        step: the step's number.
        counters: further values as they are now, by name.
    """
    pid = os.getpid()
    zero = recording.zero
    phases, began = _phases(recording)
    seconds: dict[str, float] = {}
    for occurrence in phases:
        name = occurrence.phase.name
        seconds[name] = seconds.get(name, 0.0) + occurrence.seconds

    def complete(name: str, category: str, begin: float, end: float, thread: int) -> dict[str, Any]:
        return {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": (ts := _microseconds(begin + zero)),
            "dur": _microseconds(end + zero) - ts,
            "pid": pid,
            "tid": thread,
        }

    threads = {recording.thread: recording.thread_name}
    events = [complete(f"step {step}", "step", began, recording.ended, recording.thread)]
    events += [complete(each.phase.name, "phase", each.begin, each.end, recording.thread) for each in phases]
    for span in list(recording.spans):  # other threads may still be adding
        threads.setdefault(span.thread, span.thread_name)
        end = recording.ended if span.ended is None else min(span.ended, recording.ended)
        begin = max(span.began, recording.began)
        events.append(complete(label(span.name, _MAX_NAME_LENGTH), "span", begin, max(begin, end), span.thread))
    events.sort(key=lambda event: (event["ts"], -event["dur"]))  # what contains comes before what it contains
    read_at = _microseconds(run.timeline.now() + zero)
    for name, value in counters.items():
        events.append({"name": name, "ph": "C", "ts": read_at, "pid": pid, "args": {"value": value}})
    titles: list[tuple[str, int, Mapping[str, object]]] = [
        ("process_name", 0, {"name": f"{run.name} rank {run.rank}"}),
        ("process_sort_index", 0, {"sort_index": run.rank}),
    ]
    titles += [("thread_name", thread, {"name": title}) for thread, title in threads.items()]
    metadata = [{"name": name, "ph": "M", "pid": pid, "tid": thread, "args": args} for name, thread, args in titles]
    return {
        "traceEvents": metadata + events,
        "displayTimeUnit": "ms",
        "otherData": {
            **run.about(),
            "step": step,
            "start": round(began + zero, 6),
            "step_seconds": round(recording.ended - began, 6),
            "phase_seconds": {name: round(spent, 6) for name, spent in seconds.items()},
            "complete": recording.complete,
            "version": __version__,
        },
    }


def _microseconds(seconds: float) -> float:
    """Unix time in halves of a microsecond: the finest that begin, length and end all have exactly as text.

    Perfetto drops an event that ends after the one around it, be it by a digit lost in rounding.
    """
    return round(seconds * 2e6) / 2.0


class _Occurrence:
    """A phase from where it was opened to where it was left."""

    __slots__ = ("begin", "end", "phase", "seconds")

    def __init__(self, phase: Phase, begin: float) -> None:
        self.phase = phase
        self.begin = begin
        self.end = begin
        self.seconds = 0.0
        """Seconds without inner phases."""


def _phases(recording: Recording) -> tuple[list[_Occurrence], float]:
    """Rebuild phases from moments, outer before inner ones, and return where the step began.

    `other` is what no phase explains, so it is a gap and no event.
    """
    found: list[_Occurrence] = []
    opened: list[_Occurrence] = []
    before = began = recording.began
    initializing = True
    for now, phases in [*recording.moments, (recording.ended, ())]:
        if now > recording.ended:  # a report, after the step
            continue
        kept = 0
        while kept < min(len(opened), len(phases)) and opened[kept].phase is phases[kept]:
            kept += 1
        for occurrence in opened[kept:]:
            occurrence.end = before
        fresh = [_Occurrence(phase, before) for phase in phases[kept:]]
        found += fresh
        opened[kept:] = fresh
        if phases:
            opened[-1].seconds += now - before
            if initializing and phases[0].name != "initialization":
                initializing = False
                began = before
        before = now
    return [occurrence for occurrence in found if occurrence.phase.name != "other"], began


def write(path: str, document: dict[str, Any]) -> None:
    """Write a trace atomically.

    Raises:
        OSError: it can't be written; nothing of it is left.
    """
    draft = f"{path}.{os.getpid()}.part"
    try:
        with open(create(draft, 0o666), "w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
        os.replace(draft, path)
    except BaseException:
        if os.path.exists(draft):
            os.unlink(draft)
        raise


def folder_of(directory: str, run: str) -> str:
    """Return the folder of a run's traces; a digest distinguishes runs whose names are not valid file names."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", run).lstrip(".")[:_LONGEST_FOLDER]
    if name != run or not name:
        name = f"{name}-{crc32(run.encode(errors='replace')):08x}"
    return os.path.join(os.path.abspath(directory), name)
