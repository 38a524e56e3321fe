"""Judge a hardware day without a GPU: `python -m tests.hardware.judge OUT`.

OUT is what `python -m tests.hardware.day OUT` wrote. The verdicts come from the bundle's rules in faster time, since
each program lasts half a minute. What a real GPU shows is also written into the repository: the capture with its golden
page, and the tables in `alerts/VERDICTS.md` and `exporter/COST.md`. A day on a stand-in only prints.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from stallscope.lab.replay.pages import Recording, RecordingError
from stallscope.lab.replay.rule_engine import EngineError
from stallscope.lab.stack.programs import find_programs
from stallscope.node.drivers.nvidia.capture import Capture, CaptureError, parse, text
from stallscope.node.drivers.nvidia.identifiers import masked
from stallscope.tools.cli import record
from tests.hardware import judge_inputs as inputs
from tests.hardware import judge_tables as tables
from tests.hardware.judge_signals import Measured, measured
from tests.hardware.judge_verdicts import FACTOR, THRESHOLDS, Judgement, judged, replayed

ROOT = Path(__file__).parents[2]
_MAX_CAPTURE = 1_000_000
"""Bytes that a committed capture may have."""
_Found = TypeVar("_Found")
Show = Callable[[str], None]


@dataclass
class Results:
    """Results of a day; None or empty for a part that was not judged."""

    machine: inputs.Machine
    factor: int
    suite: str = ""
    judgements: Sequence[Judgement] = ()
    skipped: Sequence[inputs.Program] = ()
    signals: Sequence[Measured] = ()
    costs: Mapping[str, Any] = field(default_factory=dict)
    capture: Capture | None = None
    golden: str = ""
    """The page that the exporter makes from the capture."""

    @property
    def is_empty(self) -> bool:
        """True if no part was judged."""
        seen = any(each.is_recorded for each in self.judgements)
        return not (self.suite or seen or self.signals or self.costs or self.capture)

    def verdict_text(self, *, is_aligned: bool = False) -> str:
        """Return the verdicts and signals as Markdown."""
        parts = []
        other = ", ".join(f"`{name}` is {value:g} s" for name, value in THRESHOLDS.items())
        if self.judgements or self.skipped:
            parts += [
                f"All durations of the rules are divided by {self.factor}, since programs are short; {other}.\n",
                tables.verdict_table(self.judgements, self.skipped, is_aligned=is_aligned),
                f"{tables.verdict_summary(self.judgements)}.\n",
            ]
        if self.signals:
            right = sum(each.is_right for each in self.signals)
            parts += [
                f"Signals under loads of known size, {right} of {len(self.signals)} within the tolerance:\n",
                tables.signal_table(self.signals, is_aligned=is_aligned),
            ]
        return "\n".join(parts)

    def cost_text(self, *, is_aligned: bool = False) -> str:
        """Return the costs as Markdown."""
        return tables.cost_table(self.costs, is_aligned=is_aligned) if self.costs else ""


def judge(folder: Path, promtool: str | None, factor: int, show: Show) -> Results:
    """Judge every part of a day that can be judged; `show` receives a message for each other part."""

    def attempted(read: Callable[[], _Found]) -> _Found | None:
        try:
            return read()
        except (inputs.InputError, RecordingError, EngineError, CaptureError) as problem:
            show(str(problem))
            return None

    results = Results(attempted(lambda: inputs.machine(folder)) or inputs.UNKNOWN, factor)
    for step in results.machine.steps:
        if step.status != "done":
            show(f"{step.name}: {step.status}{f': {step.message}' if step.message else ''}")
    results.suite = attempted(lambda: inputs.suite(folder)) or ""
    programs = attempted(lambda: inputs.programs(folder, show)) or []
    results.skipped = [each for each in programs if each.skipped]
    signals = attempted(lambda: inputs.signals(folder, show)) or []
    results.costs = attempted(lambda: inputs.costs(folder)) or {}
    results.capture = attempted(lambda: _capture(folder))
    if results.capture is not None:
        results.golden, unanswered = record.replay(results.capture)
        for call in sorted(set(unanswered)):
            show(f"capture.json.gz: never recorded: {call}; its page is incomplete")
        if not (results.capture.header.hardware or results.machine.stand_in):
            show("capture.json.gz: recorded from a stand-in, which machine.json does not state; nothing is written")
            results.machine = replace(results.machine, stand_in=True)
    recording = attempted(lambda: Recording(folder / "pages.rec"))
    if recording is None:
        return results
    if promtool is None:
        show("promtool is not on PATH, so there are no verdicts; install Prometheus, which includes it")
    elif programs:
        start = float(recording.header["start"])
        found = attempted(lambda: replayed(recording, promtool, factor))
        results.judgements = judged(programs, found.answers, start) if found else ()
    if signals:
        results.signals = attempted(lambda: measured(recording, signals)) or []
    if recording.is_cut:
        show(f"{recording.path}: the file was cut off; it was judged up to the cut")
    return results


def _capture(folder: Path) -> Capture:
    try:
        capture = parse(inputs.capture_lines(folder))
    except CaptureError as problem:
        raise CaptureError(f"{folder / 'capture.json.gz'}: {problem}") from None
    return capture if capture.header.masked else masked(capture)


def lines(results: Results) -> Iterator[str]:
    """Yield the results for a terminal."""
    machine = results.machine
    yield f"{machine.name}, Stallscope {machine.stallscope}, {_date(machine)}"
    if machine.stand_in:
        yield "a stand-in: none of this was measured on hardware, and nothing is written into the repository"
    if results.suite:
        yield f"\nhardware suite: {results.suite}"
    for title, content in (
        ("verdicts", results.verdict_text(is_aligned=True)),
        ("costs", results.cost_text(is_aligned=True)),
    ):
        if content:
            yield f"\n{title}\n\n{content.rstrip()}"


def write(results: Results, root: Path, show: Show) -> None:
    """Write what was measured on hardware into the repository.

    Args:
        results: of a day on a real GPU.
        root: the repository.
        show: receives the path of each file.
    """
    machine = results.machine
    about = f"Measured on {_date(machine)} with Stallscope {machine.stallscope}.\n\n"
    for name, content in (
        ("alerts/VERDICTS.md", results.verdict_text()),
        ("exporter/COST.md", results.cost_text()),
    ):
        if content:
            page = (root / name).read_text(encoding="utf-8")
            (root / name).write_text(tables.with_section(page, machine, about + content), encoding="utf-8")
            show(f"wrote {name}")
    if results.capture is None:
        return
    name = f"tests/captures/{record.file_name(results.capture)}"
    content = text(results.capture)
    if len(content) > _MAX_CAPTURE:
        show(f"capture.json.gz: larger than {_MAX_CAPTURE} bytes; record less with `stallscope record --duration 10s`")
    else:
        (root / name).write_text(content, encoding="ascii")
        golden = name.replace(".capture.jsonl", ".golden.txt")
        (root / golden).write_text(results.golden, encoding="utf-8")
        show(f"wrote {name} and {golden}")


def _date(machine: inputs.Machine) -> str:
    day = datetime.fromtimestamp(machine.started, timezone.utc)
    return f"{day.day} {day:%B %Y}" if machine.started else "at an unknown time"


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Judge; return 0 if any part was judged, 1 if no part was."""
    parser = argparse.ArgumentParser(prog="python -m tests.hardware.judge", description="Judge a hardware day.")
    parser.add_argument("folder", type=Path, metavar="OUT", help="folder that `python -m tests.hardware.day` wrote")
    parser.add_argument(
        "--factor", type=int, default=FACTOR, help="divide all durations of the rules by this (default: %(default)s)"
    )
    parsed = parser.parse_args(arguments)
    if parsed.factor < 1:
        parser.error(f"--factor: expected an integer of at least 1, got {parsed.factor}")
    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    results = judge(parsed.folder, find_programs().promtool, parsed.factor, _show)
    if results.is_empty:
        _show(f"{parsed.folder}: nothing could be judged; name the folder that `python -m tests.hardware.day` wrote")
        return 1
    for line in lines(results):
        print(line)
    if not results.machine.stand_in:
        sys.stdout.flush()
        write(results, root, _show)
    return 0


def _show(line: str) -> None:
    print(f"judge: {line}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
