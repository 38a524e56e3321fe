"""Compare summaries of `stallscope run` with the first of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, isfinite
from pathlib import Path
from textwrap import wrap
from typing import Any

from stallscope.common.formatting import duration, percent, rate, readable, several
from stallscope.tools.summary.document import VERSION

_WIDTH = 79
_NAME = 23
_LEAST_SHARE = 0.01
"""Share of the time from which a phase is shown."""
_SCATTER = 2.0
"""Standard errors of a difference that is certain at about 95 % confidence."""


class SummaryError(ValueError):
    """A file is not a summary; the message is one line."""


@dataclass(frozen=True)
class Summarised:
    """One run of a summary."""

    title: str
    """Name of the file."""
    run: str
    steps: int
    ranks: int
    seconds: float
    is_short: bool
    step: float | None
    uncertainty: float | None
    """Relative standard error of the step; None if it is unknown."""
    samples: float | None
    tokens: float | None
    lost: float | None
    phases: Mapping[str, float]


@dataclass(frozen=True)
class Difference:
    """The step of a run, relative to the first run's."""

    ratio: float
    """Relative difference: 0.1 is 10 % longer."""
    uncertainty: float | None
    """Of the ratio, at about 95 % confidence; None if it is unknown."""

    @property
    def is_certain(self) -> bool:
        """True if chance does not explain the difference."""
        return self.uncertainty is not None and abs(self.ratio) > self.uncertainty


def read(path: Path) -> Summarised:
    """Read the run of a summary; of several runs, the one with the most steps.

    Raises:
        SummaryError: it can't be read, or it has no run.
    """
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict) or not document.get("version", 0) <= VERSION:
            raise ValueError
        runs = [each for each in document["runs"] if each["steps"]]
        run: dict[str, Any] = max(runs, key=lambda each: float(each["steps"]))
        return Summarised(
            title=path.name,
            run=str(run["run"]),
            steps=int(run["steps"]),
            ranks=int(run["world_size"]),
            seconds=float(run["seconds"]),
            is_short=bool(run["is_short"]),
            step=_number(run["step_seconds"]),
            uncertainty=_number(run.get("step_uncertainty")),
            samples=_number(run["samples_per_second"]),
            tokens=_number(run["tokens_per_second"]),
            lost=_number(run["lost"]),
            phases={str(name): float(share) for name, share in run["phases"].items()},
        )
    except OSError as error:
        raise SummaryError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        problem = "expected a summary with steps, as `stallscope run --summary FILE.json` writes it"
        raise SummaryError(f"{path}: {problem}") from None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def difference(base: Summarised, run: Summarised) -> Difference | None:
    """Return the difference of the steps; None if one of them is unknown."""
    if not base.step or not run.step:
        return None
    ratio = run.step / base.step
    errors = [base.uncertainty, run.uncertainty]
    known = [error for error in errors if error is not None]
    return Difference(ratio - 1, _SCATTER * ratio * hypot(*known) if len(known) == len(errors) else None)


def document(runs: Sequence[Summarised]) -> dict[str, Any]:
    """Return the comparison for JSON: seconds, shares from 0 to 1, null for unknown values."""
    base = runs[0]
    found = [(run, difference(base, run)) for run in runs[1:]]
    return {
        "base": base.title,
        "runs": [{**vars(run), "phases": dict(run.phases)} for run in runs],
        "against_base": [
            {
                "file": run.title,
                "step_ratio": None if each is None else each.ratio,
                "uncertainty": None if each is None else each.uncertainty,
                "certain": each is not None and each.is_certain,
                "phases": {
                    name: run.phases.get(name, 0.0) - base.phases.get(name, 0.0) for name in _names((base, run))
                },
            }
            for run, each in found
        ],
        "notes": list(_notes(runs)),
    }


def text(runs: Sequence[Summarised]) -> str:
    """Return the comparison in 80 columns."""
    return "\n".join(_lines(runs)) + "\n"


def _lines(runs: Sequence[Summarised]) -> Iterator[str]:
    base = runs[0]
    names = [f"{number}: {readable(run.title, _WIDTH - 4)}" for number, run in enumerate(runs, 1)]
    yield from names
    yield ""
    size = max(9, min(14, (_WIDTH - _NAME) // len(runs)))

    def row(name: str, cells: Sequence[str]) -> str:
        return readable(name, _NAME - 1).ljust(_NAME) + "".join(cell.rjust(size) for cell in cells)

    yield row("", [str(number) for number in range(1, len(runs) + 1)])
    yield row("steps", [f"{run.steps:,}" for run in runs])
    yield row("mean step", ["-" if run.step is None else duration(run.step) for run in runs])
    for name, values in (
        ("samples/s", [run.samples for run in runs]),
        ("tokens/s", [run.tokens for run in runs]),
    ):
        if any(value is not None for value in values):
            yield row(name, ["-" if value is None else rate(value) for value in values])
    yield row("lost", ["-" if run.lost is None else percent(run.lost) for run in runs])
    for name in _names(runs):
        yield row(f"  {name.replace('_', ' ')}", [percent(run.phases.get(name, 0.0)) for run in runs])
    for number, run in enumerate(runs[1:], 2):
        yield ""
        yield from wrap(_sentence(number, base, run), _WIDTH)
    for note in _notes(runs):
        yield from wrap(f"Note: {note}.", _WIDTH)


def _names(runs: Sequence[Summarised]) -> list[str]:
    """Return the phases that are large in a run, the largest first."""
    most = {name: max(run.phases.get(name, 0.0) for run in runs) for run in runs for name in run.phases}
    return sorted((name for name in most if most[name] >= _LEAST_SHARE), key=lambda name: -most[name])


def _sentence(number: int, base: Summarised, run: Summarised) -> str:
    found = difference(base, run)
    if found is None:
        return f"The steps of {number} can't be compared: one of the two is unknown."
    changed = f"{100 * abs(found.ratio):.1f} % {'longer' if found.ratio > 0 else 'shorter'}"
    if found.uncertainty is None:
        return f"A step of {number} is {changed} than one of 1. The uncertainty is unknown."
    scatter = f"± {100 * found.uncertainty:.1f} %"
    if found.is_certain:
        # Per step, so that a phase that did not change stays out of the sentence.
        changes = {name: _spent(run, name) - _spent(base, name) for name in _names((base, run))}
        largest = max(changes, key=lambda name: changes[name] * (1 if found.ratio > 0 else -1), default="")
        because = f", most of it in {readable(largest.replace('_', ' '))}" if largest else ""
        return f"A step of {number} is {changed} than one of 1 ({scatter}){because}."
    return (
        f"The difference of the steps is not certain: {100 * found.ratio:+.1f} % {scatter}. "
        "Steps are counted by length, not one by one; longer runs narrow the range."
    )


def _spent(run: Summarised, phase: str) -> float:
    """Return the seconds of a phase in a step, the loop's time around the steps included."""
    return run.phases.get(phase, 0.0) * (run.step or 0.0)


def _notes(runs: Sequence[Summarised]) -> Iterator[str]:
    for run in runs:
        if run.is_short:
            yield f"{readable(run.title)} has {several(run.steps, 'step')}, the first, slow ones included"
    if len({run.ranks for run in runs}) > 1:
        yield "the numbers of ranks differ, so a step does not do the same work"
