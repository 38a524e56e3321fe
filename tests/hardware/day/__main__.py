"""Measure everything on a machine with a real GPU: `python -m tests.hardware.day OUT`. See tests/hardware/README.md."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.hardware.day.steps import PROGRAMS, STEPS, Day, Options

_FILES = (
    *("machine.json", "suite.xml", "capture.json.gz", "nvidia-smi.txt.gz"),
    *("pages.rec", "programs.jsonl", "signals.json", "costs.json"),
)
_GROUPS = {"programs": PROGRAMS, "costs": ("nvml", "scrapes", "shim")}


def main(arguments: Sequence[str]) -> int:
    """Run the day; return 0 if every step was done or skipped, 1 if one failed, 2 for an invalid command line."""
    parser = argparse.ArgumentParser("python -m tests.hardware.day", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the results: at most 8 files, 16 MiB")
    parser.add_argument(
        "--stand-in", action="store_true", help="rehearse on the stand-in driver and a CPU; nothing is measured"
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="of each program at most (default: 40)")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds of the whole day (default: 540)")
    parser.add_argument(
        "--only",
        type=_names,
        default=(),
        metavar="NAMES",
        help=f"some steps, with commas between: {', '.join((*_GROUPS, *STEPS, *PROGRAMS))}",
    )
    parsed = parser.parse_args(arguments)
    out: Path = parsed.out
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (out / name).unlink(missing_ok=True)
    except OSError as problem:
        print(f"{out}: cannot write: {problem.strerror}; name another folder", file=sys.stderr)
        return 2
    options = Options(out, parsed.stand_in, parsed.seconds, parsed.limit, parsed.only)
    day = Day(options, lambda line: print(line, file=sys.stderr, flush=True))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: day.machine.interrupt())
    day.run()
    if day.machine.is_interrupted:
        print(f"interrupted; machine.json has the steps that are missing: {out}", file=sys.stderr)
        return 1
    if failed := day.machine.failed:
        print(f"failed: {', '.join(failed)}; the other results are complete: {out}", file=sys.stderr)
        return 1
    print(f"done: {out}; judge it elsewhere with: python -m tests.hardware.judge {out}", file=sys.stderr)
    return 0


def _names(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for name in text.split(","):
        if name not in (*_GROUPS, *STEPS, *PROGRAMS):
            raise argparse.ArgumentTypeError(f"{name!r} is no step or program; see --help")
        found += _GROUPS.get(name, (name,))
    return tuple(found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
