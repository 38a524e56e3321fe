"""Tables of a hardware day, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.hardware.judge_inputs import Machine, Program, numbers
from tests.hardware.judge_signals import Measured
from tests.hardware.judge_verdicts import Judgement

_CHAPTER = "## On real GPUs"
_SLOWEST = 10
_LEAST_WHOLE = 1000
"""Larger numbers are shown without a fraction."""
_COSTS = {
    "first_poll_seconds": "first poll of all GPUs, seconds",
    "poll_seconds": "poll of all GPUs, seconds",
    "scrape_seconds": "scrape, seconds",
    "page_bytes": "page, bytes",
    "exporter_cpu_share": "exporter with polls every second, share of a core",
    "record_cpu_share": "`record --pages`, share of a core",
    "shim.with_us": "step with the shim, µs",
    "shim.without_us": "step without the shim, µs",
    "shim.ratio": "ratio of both",
    "shim.pairs": "pairs of steps compared",
}
"""Keys of `costs.json` with their descriptions; other numbers are shown under their key."""


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], *, is_aligned: bool = False) -> str:
    """Return a table in Markdown.

    Args:
        heading: names of the columns.
        rows: texts of the cells.
        is_aligned: True to pad the cells for a terminal.
    """
    lines = [list(heading), *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(map(len, column)) if is_aligned else 0 for column in zip(*lines, strict=True)]
    texts = [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines]
    rule = "|".join("-" * (width + 2) if is_aligned else "---" for width in widths)
    return "\n".join([texts[0], f"|{rule}|", *texts[1:]]) + "\n"


def verdict_table(judgements: Sequence[Judgement], skipped: Sequence[Program], *, is_aligned: bool = False) -> str:
    """Return the verdicts on programs."""
    heading = (
        "program",
        "planted cause",
        "verdict",
        "right",
        "first right after",
        "lost: verdict, truth",
        "false alerts",
    )
    rows = [_verdict_row(each) for each in judgements]
    rows += [(each.name, _causes(each), f"skipped: {each.skipped}", "", "", "", "") for each in skipped]
    return table(heading, rows, is_aligned=is_aligned)


def verdict_summary(judgements: Sequence[Judgement]) -> str:
    """Return how many verdicts are right, in one line."""
    seen = [each for each in judgements if each.is_recorded and each.program.is_rehearsed]
    right = sum(each.is_right for each in seen)
    alerts = sum(len(each.false_alerts) for each in seen)
    errors = [
        abs(each.lost - each.program.lost) for each in seen if each.lost is not None and each.program.lost is not None
    ]
    mean = f"; mean error of the lost share: {sum(errors) / len(errors):.3f}" if errors else ""
    return f"Right verdicts: {right} of {len(seen)}; false alerts: {alerts}{mean}"


def _verdict_row(judgement: Judgement) -> tuple[str, ...]:
    program = judgement.program
    name = program.name if program.status == 0 else f"{program.name} (exit status {program.status})"
    if not judgement.is_recorded:
        return name, _causes(program), "not in the recording", "", "", "", ""
    held = f"`{judgement.verdict}`, {_share(judgement.held)} of the time" if judgement.verdict else "missing"
    after = "never" if judgement.right_after is None else f"{judgement.right_after:.0f} s"
    lost = f"{_share(judgement.lost)}, {_share(program.lost)}"
    right = "yes" if judgement.is_right else "no" if program.is_rehearsed else "not rehearsed"
    return name, _causes(program), held, right, after, lost, ", ".join(judgement.false_alerts) or "none"


def _causes(program: Program) -> str:
    return ", ".join(f"`{cause}`" for cause in sorted(program.planted)) or "no cause"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.0f} %"


def signal_table(found: Sequence[Measured], *, is_aligned: bool = False) -> str:
    """Return the exporter's values next to the known ones."""
    heading = ("load", "metric", "truth", "exporter", "difference", "tolerance", "right", "source of the truth")
    rows = []
    for each in found:
        signal = each.signal
        labels = ",".join(f'{name}="{value}"' for name, value in signal.labels.items() if name not in ("gpu", "uuid"))
        value = difference = "missing"
        if each.value is not None:
            value, difference = _number(each.value), f"{each.value - signal.truth:+.3g}"
        rows.append(
            (
                *(signal.load, f"`{signal.metric}{f'{{{labels}}}' if labels else ''}`", _number(signal.truth), value),
                *(difference, f"{signal.tolerance:.3g}", "yes" if each.is_right else "no", signal.source),
            )
        )
    return table(heading, rows, is_aligned=is_aligned)


def cost_table(costs: Mapping[str, Any], *, is_aligned: bool = False) -> str:
    """Return the costs, and the slowest calls of the driver."""
    calls = costs.get("nvml")
    slow = []
    for name, entry in calls.items() if isinstance(calls, dict) else ():
        values = dict(numbers(entry))
        if "median_us" in values:
            slow.append((values["median_us"], values.get("p99_us"), str(name)))
    slow.sort(key=lambda each: each[0], reverse=True)
    rows = [*_cost_rows({key: value for key, value in costs.items() if key != "nvml"})]
    if slow:
        rows.append((f"driver calls measured; the slowest {min(_SLOWEST, len(slow))} follow", str(len(slow))))
    for median, late, name in slow[:_SLOWEST]:
        limit = "" if late is None else f", 99th percentile {late:.0f} µs"
        rows.append((f"`{name}`", f"median {median:.0f} µs{limit}"))
    return table(("measurement", "value"), rows, is_aligned=is_aligned)


def _cost_rows(costs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in costs.items():
        path = f"{prefix}{key}"
        name = _COSTS.get(path, f"`{path}`")
        found = dict(numbers(value)) if isinstance(value, dict) else {}
        if "median" in found:
            late = f", 99th percentile {_number(found['p99'])}" if "p99" in found else ""
            yield name, f"median {_number(found['median'])}{late}"
        elif isinstance(value, dict):
            yield from _cost_rows(value, f"{path}.")
        else:
            yield from ((name, _number(each)) for _, each in numbers(value))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _LEAST_WHOLE else f"{value:.4g}"


def with_section(page: str, machine: Machine, content: str) -> str:
    """Return a Markdown page with a section on a machine, in place of an earlier one.

    Args:
        page: the whole page.
        machine: named by the heading.
        content: below the heading.
    """
    before, _, after = page.partition(f"\n{_CHAPTER}\n")
    inside, next_chapter, rest = after.partition("\n## ")
    introduction, *sections = f"\n{inside}".split("\n### ")
    kept = [each.strip() for each in sections if each.partition("\n")[0] != machine.name]
    chapter = [
        introduction.strip(),
        *(f"### {each}" for each in sorted([*kept, f"{machine.name}\n\n{content.strip()}"])),
    ]
    text = "\n\n".join([before.rstrip(), _CHAPTER, *filter(None, chapter)])
    return f"{text}\n{next_chapter}{rest}"
