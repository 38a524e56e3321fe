"""Find the planted slow line of each program: `python -m tests.shim.hot_lines [NAME…]` prints a table."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

from stallscope.training.shim import hot_lines
from tests.shim.hot_lines.measuring import PROGRAMS, Found, measure
from tests.shim.loops import children

README = Path(hot_lines.__file__).with_name("README.md")
_BEGIN = "<!-- lines: written by `python -m tests.shim.hot_lines --write` -->\n"
_END = "<!-- /lines -->\n"


def main() -> int:
    """Run the programs; return 1 where a planted line is not the first one."""
    parser = argparse.ArgumentParser(prog="python -m tests.shim.hot_lines", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="parts of the names of programs (default: all)")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of loss before a burst (default: 10)")
    parser.add_argument("--burst", type=float, default=10.0, help="seconds of a burst (default: 10)")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="run each program until its line is the first, at most this long"
    )
    parser.add_argument("--jobs", type=int, default=2, help="programs that run at a time (default: 2)")
    parser.add_argument("--lines", action="store_true", help="also print the lines that were found")
    parser.add_argument("--write", action="store_true", help="write the table into the shim's README")
    arguments = parser.parse_args()
    programs = [
        path
        for path in sorted(PROGRAMS.glob("*.py"))
        if not arguments.names or any(name in path.stem for name in arguments.names)
    ]
    if not programs:
        parser.error("no program has such a name")
    children.LIMIT = 120.0 + arguments.patience
    found = measure(
        programs, window=arguments.window, burst=arguments.burst, jobs=arguments.jobs, patience=arguments.patience
    )
    table = "| program | phase | planted line | place | share of the phase |\n|---|---|---|---|---|\n"
    table += "".join(f"{_row(each)}\n" for each in found)
    print(table, end="")
    if arguments.write:
        before, _, rest = README.read_text().partition(_BEGIN)
        README.write_text(f"{before}{_BEGIN}{table}{_END}{rest.partition(_END)[2]}")
    for each in found if arguments.lines else ():
        for line in sorted(each.lines, key=lambda line: -line.seconds):
            print(f"{each.program.stem}: {line.location} {line.function}, {line.seconds / each.seconds:.0%}")
    return int(any(each.place != 1 for each in found))


def _row(found: Found) -> str:
    title = (ast.get_docstring(ast.parse(found.program.read_text())) or found.program.stem).rstrip(".")
    place = f"{found.place}" if found.place else f"not found {found.problem.splitlines()[-1:] or [*found.lines]}"
    return f"| {title} | {found.phase} | `{found.location}` | {place} | {found.share:.0%} |"


if __name__ == "__main__":
    sys.exit(main())
