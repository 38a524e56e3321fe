"""Run programs with a planted slow line under `stallscope run`, and compare the lines in their last report with it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from stallscope.training.protocol.report import CodeLine, ReportError, parse
from stallscope.training.shim import hot_lines, worker_samples
from tests.shim.loops import children

PROGRAMS = Path(__file__).parent / "programs"
_PLANTED = re.compile(r"# planted: (\w+)$")


class Found(NamedTuple):
    """The lines of a program's last report, next to the planted one."""

    program: Path
    phase: str
    location: str
    lines: tuple[CodeLine, ...]
    """Lines of the phase."""
    seconds: float
    """Seconds of the phase."""
    problem: str
    """The end of the program's standard error, if it failed."""

    @property
    def place(self) -> int:
        """The place of the planted line, from 1 on; 0 if it is not among the lines."""
        ordered = sorted(self.lines, key=lambda line: -line.seconds)
        return next((place for place, line in enumerate(ordered, 1) if line.location == self.location), 0)

    @property
    def share(self) -> float:
        """The share of the planted line in the time of its phase."""
        return sum(line.seconds for line in self.lines if line.location == self.location) / (self.seconds or 1.0)


def planted(program: Path) -> tuple[str, str]:
    """Return the phase and the location of the planted line.

    Raises:
        ValueError: the program has none.
    """
    for number, line in enumerate(program.read_text().splitlines(), 1):
        if found := _PLANTED.search(line):
            return found[1], f"{program.name}:{number}"
    raise ValueError(f"{program}: no line ends in `# planted: PHASE`; mark one")


def measure(
    programs: Sequence[Path], *, window: float, burst: float, jobs: int = 2, patience: float = 0.0
) -> list[Found]:
    """Run the programs, and return their lines.

    Args:
        programs: what to run.
        window: seconds of loss before a burst.
        burst: seconds of a burst.
        jobs: programs that run at a time.
        patience: seconds after which a program whose planted line is not the first has failed. By default, each runs
            for as long as two bursts take on a quiet machine.
    """
    found: list[Found] = []

    def ended(task: children.Task, outcome: children.Ended) -> Sequence[children.Task]:
        found.append(_found(task, outcome))
        return ()

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="hot-lines-") as folder:
        patch.setattr(hot_lines, "WINDOW", window)
        patch.setattr(hot_lines, "PAUSE", window)
        patch.setattr(hot_lines, "AGAIN", 10.0 * window)
        patch.setattr(worker_samples, "SECONDS", burst)
        # The burst begins after one window or two, and workers end up to one burst later.
        patch.setitem(os.environ, "PROGRAM_SECONDS", str(patience or 2.0 * window + 2.5 * burst + 1.0))
        children.warm_up(programs)
        tasks = [children.Task(each, True, Path(folder) / each.stem) for each in programs]
        children.run(tasks, jobs, ended, _is_first if patience else lambda _task, _payloads: False)
    return sorted(found, key=lambda each: each.program)


def _is_first(task: children.Task, payloads: Sequence[bytes]) -> bool:
    """Return whether the planted line is the first one of the newest report."""
    return _found(task, children.Ended(0, 0.0, tuple(payloads[-2:]))).place == 1  # one may be the notice of a signal


def _found(task: children.Task, outcome: children.Ended) -> Found:
    phase, location = planted(task.program)
    lines: tuple[CodeLine, ...] = ()
    seconds = 0.0
    for payload in reversed(outcome.payloads):
        try:
            report = parse(payload)
        except ReportError:  # not a report
            continue
        lines = report.code.get(phase, ())
        seconds = report.phases[phase].seconds if phase in report.phases else 0.0
        break
    failed = outcome.exit_code != 0
    problem = (task.folder / "stderr").read_text()[-500:] if failed else ""
    return Found(task.program, phase, location, lines, seconds, problem or f"{outcome.exit_code}" * failed)
