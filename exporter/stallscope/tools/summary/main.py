"""Write the summary of a folder of reports: in a process of its own, or at the end of `stallscope run --fail-on`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stallscope.common.whole_files import reason, whole_file
from stallscope.model.view.phase_shares import step_contents
from stallscope.tools.summary.conditions import EXCEEDED, LOST, STEP, UNKNOWN, Condition, parse
from stallscope.tools.summary.document import document_of
from stallscope.tools.summary.evidence import gather
from stallscope.tools.summary.kept import keep
from stallscope.tools.summary.measured import RunTime, read_runs
from stallscope.tools.summary.text import lines_of
from stallscope.tools.summary.trainjob import finish
from stallscope.training.shim.stored_reports import NEWEST, PAGE, SETTINGS, WARMED_UP, discard, is_alive, started


def main(folder: str) -> None:
    """Write the summary, and delete the reports. Called in a process of its own."""
    summarise(folder)


def summarise(folder: str, *, has_succeeded: bool = True) -> int:
    """Write the summary, and delete the reports.

    Args:
        folder: the folder of the reports.
        has_succeeded: False if the program has failed, so that no condition is checked.

    Returns:
        0, or the exit status of a condition that is exceeded or unknown.
    """
    logging.disable(logging.CRITICAL)  # problems are lines of the summary
    place = Path(folder)
    try:
        settings = json.loads((place / SETTINGS).read_text(encoding="utf-8"))
        before = (place / PAGE).read_text(encoding="utf-8") if (place / PAGE).exists() else ""
    except (OSError, ValueError) as problem:
        _print([f"stallscope run: no summary: {problem}"])
        return UNKNOWN
    try:
        runs = read_runs(place)
        finish(place, settings)
    finally:
        _clear(place)
    conditions = [parse(text) for text in settings["fail_on"]] if has_succeeded else []
    return _summarise(runs, settings, before, conditions)


def _summarise(runs: list[RunTime], settings: Mapping[str, Any], before: str, conditions: Sequence[Condition]) -> int:
    outcome, failures = judge(conditions, runs)
    if runs and (settings["form"] != "off" or settings["file"]):
        evidence = gather(runs, settings["exporter"], before, settings["prometheus"])
        document = document_of(settings["program"], runs, evidence, failures)
        further = _keep(document) if settings["form"] != "off" else []
        if settings["form"] == "json":
            _print([json.dumps(document, separators=(",", ":"))])
        elif settings["form"] == "text":
            _print([*lines_of(runs, evidence), *further])
        if settings["file"]:
            path = Path(settings["file"])
            try:
                with whole_file(path) as file:
                    file.write(json.dumps(document, indent=2).encode() + b"\n")
            except OSError as problem:
                _print([f"stallscope run: --summary: {reason(problem, path)}"])
    _print([f"stallscope run: --fail-on: {failure}" for failure in failures])
    return outcome


def _keep(document: Mapping[str, Any]) -> list[str]:
    """Keep the summary; return the command that compares it with the previous one of the program, as a line."""
    if not any(run["steps"] for run in document["runs"]):
        return []
    try:
        path, earlier = keep(document)
    except OSError:  # a home that can't be written must not end a training with a message
        return []
    return [f"  compare   stallscope compare {earlier.name} {path.name}"] if earlier else []


def judge(conditions: Sequence[Condition], runs: Sequence[RunTime]) -> tuple[int, list[str]]:
    """Return the exit status, and a sentence for each condition that is exceeded or unknown."""
    outcome, sentences = 0, []
    for condition in conditions:
        if not runs:
            outcome = outcome or UNKNOWN
            sentences.append(f"{condition.text}: nothing was measured")
        for run in runs:
            value, problem = _value(condition.name, run)
            if value is None:
                outcome = outcome or UNKNOWN
                sentences.append(f"{condition.text}: {problem}")
            elif value > condition.limit:
                outcome = EXCEEDED
                sentences.append(f"{condition.text}: {_worded(condition, value, run)} in run {run.name}")
    return outcome, sentences


def _value(name: str, run: RunTime) -> tuple[float | None, str]:
    """Return a value of a run, and why it is unknown."""
    if run.is_short:
        return None, f"run {run.name} has too few steps ({run.all_steps})"
    if name == STEP:
        return run.step, "no step was measured"
    if name == LOST:
        return run.lost, "no time was measured"
    measured = ", ".join(sorted(run.shares))
    return run.shares.get(name), f"run {run.name} has no phase {name}; it has {measured}"


def _worded(condition: Condition, value: float, run: RunTime) -> str:
    if condition.name == STEP:
        return f"{1000 * value:.4g} ms {step_contents(run.shares)}".rstrip()
    return f"{100 * value:.3g} %"


def _clear(folder: Path) -> None:
    """Delete the reports; and the folder, if its processes are gone or wait for this one."""
    own = (os.getpid(), os.getppid())
    if all(process in own or not is_alive(process) for process in started(str(folder))):
        discard(str(folder))
        return
    for path in folder.iterdir():
        if path.suffix in (NEWEST, WARMED_UP):
            path.unlink(missing_ok=True)


def _print(lines: Sequence[str]) -> None:
    # The program may have closed standard error, or its reader may be gone.
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None and lines:
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()
