"""Judge the shim by the programs: `python -m tests.shim.loops [NAME…]` prints a table."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.shim.loops import children
from tests.shim.loops.readme import write
from tests.shim.loops.results import Result, Run, judge

REPORTS = "reports"
"""File in a program's folder with its reports, one a line."""


def main() -> int:
    """Run the programs; return 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.shim.loops", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="programs, or parts of their names (default: all)")
    parser.add_argument("--exact", action="store_true", help="take names as whole names only")
    parser.add_argument("--jobs", type=int, default=2, help="programs that run at a time (default: 2)")
    parser.add_argument("--keep", type=Path, help="folder for what the programs write, and for their reports")
    parser.add_argument("--results", type=Path, help="file for the results, as JSON")
    parser.add_argument("--write", action="store_true", help="write the table into the shim's README")
    parser.add_argument(
        "--disabled",
        action="store_true",
        help="check the programs: with Stallscope switched off, all but the reports must be identical",
    )
    parser.add_argument("--quiet", action="store_true", help="print no table")
    arguments = parser.parse_args()
    programs = sorted(
        path
        for path in children.PROGRAMS.glob("*.py")
        if not arguments.names
        or path.stem in arguments.names
        or (not arguments.exact and any(name in path.stem for name in arguments.names))
    )
    if not programs:
        parser.error("no program has such a name")
    began = time.monotonic()
    children.warm_up(programs)
    children.disabled = arguments.disabled
    with tempfile.TemporaryDirectory(prefix="loops-") as temporary:
        results = _results(programs, arguments.keep or Path(temporary), arguments)
    if arguments.results:
        rows = [{"program": result.program, "problems": result.problems} for result in results]
        arguments.results.write_text(json.dumps(rows, indent=1))
    failed = [result.program for result in results if result.problems]
    if not arguments.quiet:
        print(f"{len(results) - len(failed)} of {len(results)} ok, {time.monotonic() - began:.0f} s", end="")
        print("; FAIL: " + " ".join(failed) if failed else "")
    if arguments.write:
        write(results)
    return 1 if failed else 0


def _results(programs: list[Path], folder: Path, arguments: argparse.Namespace) -> list[Result]:
    runs: dict[tuple[Path, bool], Run] = {}
    results: dict[Path, Result] = {}

    def ended(task: children.Task, outcome: children.Ended) -> None:
        program = task.program
        if arguments.keep:
            (task.folder / REPORTS).write_bytes(b"\n".join(outcome.payloads))
        runs[program, task.watched] = Run(task.folder, outcome.exit_code, outcome.seconds, outcome.payloads)
        if (program, True) not in runs or (program, False) not in runs:
            return
        results[program] = judge(program, runs[program, False], runs[program, True], arguments.disabled)
        if not arguments.quiet:
            show(results[program])

    tasks = []
    for program in programs:
        tasks.append(children.Task(program, False, folder / f"{program.stem}-bare", True))
        tasks.append(children.Task(program, True, folder / f"{program.stem}-with", True))
    children.run(tasks, arguments.jobs, ended)
    return [results[program] for program in programs]


def show(result: Result) -> None:
    """Print one program's row: seconds of each phase, true/reported, `!` after those that are wrong."""
    for number, rank in enumerate(result.ranks or (None,)):
        label = result.program if number == 0 or rank is None else f"  rank {rank.rank}"
        verdict = "FAIL" if result.problems else "ok"
        row = f"{label:<28} {verdict if number == 0 else '':<4} "
        if rank is not None:
            row += f"steps {_pair(rank.steps)} samples {_pair(rank.samples, rank.samples[0] is None)}"
            for name, phase in rank.phases.items():
                either = f"(+{phase.either:.3f})" if phase.either and name != "initialization" else ""
                row += f" {name} {phase.true:.3f}{either}/{phase.reported:.3f}{'!' if phase.is_wrong else ''}"
        print(row, flush=True)
    for problem in result.problems:
        if ", reported " not in problem:  # else it is in the row
            print(f"{'':<33} {problem}", flush=True)


def _pair(values: tuple[float | None, float | None], uncompared: bool = False) -> str:
    shown = "/".join("-" if value is None else f"{value:g}" for value in values)
    return shown if uncompared or values[0] == values[1] else shown + "!"


if __name__ == "__main__":
    sys.exit(main())
