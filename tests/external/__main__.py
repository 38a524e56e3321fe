"""`make external`: replay recordings of trainings that were measured elsewhere, and compare with the published answers.

Dumps of hangs, in the folder `flight-recorder` next to recordings, are read as `stallscope stacks` reads them.

python -m tests.external                       ../shared/external and the casebook in tests/external/cases
python -m tests.external FOLDER                every recording of a folder
python -m tests.external --write               the same as without arguments; replaces the table of alerts/VERDICTS.md
python -m tests.external synthetic [REGEX]     trainings by formula, whose truth is known; prints n right of n by class
python -m tests.external convert FORMAT FILE…  write a recording from traces or logs; FORMAT: see README.md
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.external import convert, hangs, synthetic
from tests.external.errors import ExternalError
from tests.external.judge import judged, trials
from tests.external.recording import Recording, read
from tests.external.replay import MINUTES, check_size
from tests.external.report import lines, summary, table

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "external"
CASES = Path(__file__).parent / "cases"
VERDICTS = ROOT / "alerts" / "VERDICTS.md"
HEADING = "## Data from elsewhere"
_TOGETHER = 64
"""Ranks that are evaluated in one run of promtool, unless one recording has more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit status: 1 if a file can't be used."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["convert"]:
        return convert.main(given[1:])
    if given[:1] == ["synthetic"]:
        return synthetic.main(given[1:])
    parser = argparse.ArgumentParser(
        prog="python -m tests.external", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help=f"folder with recordings (default {SHARED} and {CASES})")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="length of each replay (default %(default)g)")
    parser.add_argument("--write", action="store_true", help="replace the table of alerts/VERDICTS.md")
    options = parser.parse_args(given)
    if not 15 <= options.minutes <= 600:
        parser.error("--minutes: expected 15 to 600; the rules judge a run after five minutes")
    if options.folder is not None and options.write:
        parser.error("--write: not with FOLDER; the table has the recordings that everyone can replay")
    return replay(options.folder, options.minutes, write=options.write)


def replay(folder: Path | None, minutes: float, *, write: bool = False) -> int:
    """Replay all recordings, print the findings, and return the exit status."""
    wanted = folder or SHARED
    if not wanted.is_dir():
        print(f"{wanted}: no such folder; nothing of it is replayed")
    paths = [path for place in ((wanted,) if folder else (wanted, CASES)) for path in recordings_in(place)]
    found: list[Recording] = []
    problems = 0
    stuck: list[hangs.Hang] = []
    try:
        for hang in hangs.hangs_in(wanted):
            stuck.append(hang)
            print("\n".join(hangs.lines(hang)) + "\n", flush=True)
    except ExternalError as error:
        print(error, file=sys.stderr)
        problems += 1
    for path in paths:
        recording = _usable(path)
        if recording is None:
            problems += 1
        else:
            found.append(recording)
    findings = []
    for group in _groups(found):
        for finding in judged(trials(group), minutes=minutes):
            findings.append(finding)
            print("\n".join(lines(finding)) + "\n", flush=True)
    known = [hang for hang in stuck if hang.is_right is not None]
    of_hangs = f"{sum(hang.is_right is True for hang in known)} of {len(known)} conclusions about hangs are right"
    if findings:
        print("\n".join(summary(findings)))
    if known:
        print(of_hangs)
    if write and findings:
        right = "\n".join(summary(findings)).partition("\n")[0]
        rows = [*table(findings), *hangs.table(stuck)]
        _write("\n".join(rows), f"{right}; {of_hangs}" if known else right)
    return 1 if problems else 0


def _usable(path: Path) -> Recording | None:
    """Return the recording of a file, or print why it can't be replayed."""
    try:
        recording = read(path)
        check_size(recording)
    except ExternalError as error:
        print(error, file=sys.stderr)
        return None
    return recording


def recordings_in(folder: Path) -> list[Path]:
    """Return the recordings of a folder: JSON files, compressed with gzip or not."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))


def _groups(recordings: Sequence[Recording]) -> list[list[Recording]]:
    """Return recordings that are evaluated together."""
    groups: list[list[Recording]] = []
    ranks = 0
    for recording in recordings:
        count = 2 * len(recording.ranks)
        if not groups or ranks + count > _TOGETHER:
            groups.append([])
            ranks = 0
        groups[-1].append(recording)
        ranks += count
    return groups


def _write(rows: str, right: str) -> None:
    """Replace the table between the heading and the next heading."""
    text = VERDICTS.read_text(encoding="utf-8")
    before, heading, after = text.partition(f"{HEADING}\n")
    if not heading:
        raise SystemExit(f"{VERDICTS}: {HEADING}: missing; add this heading")
    introduction, _, rest = after.partition("\n| ")
    _, _, following = rest.partition("\n\n")
    day = dt.datetime.now(dt.timezone.utc).date()
    counted = f"{introduction.partition('Result of ')[0]}Result of {day}: {right}."
    VERDICTS.write_text(f"{before}{heading}{counted}\n\n{rows}\n\n{following}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
