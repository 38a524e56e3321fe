"""Output of `stallscope compare`: text in 80 columns, or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from stallscope.common.formatting import duration, readable
from stallscope.model.analysis.batch_size import BatchSizeStudy
from stallscope.model.analysis.comparison import UNEXPLAINED, Against, Comparison
from stallscope.model.analysis.run_figures import RunFigures
from stallscope.model.catalogue.causes import CAUSES

_WIDTH = 79
_NAME = 23
_MIN_SHARE_SHOWN = 0.005
"""Minimum share of the baseline's GPU time that a cause must explain to be shown."""
_MIN_SHARE_ADVISED = 0.05
"""Minimum share of the baseline's GPU time that a cause must explain for its remedy to be shown."""
_MIN_SCATTER_SHOWN = 0.0005
"""Minimum uncertainty of a difference to be shown."""
_GOOD_FIT = 0.05
"""Maximum relative deviation of a run from the fitted line without a note."""
_COLUMNS = (("GPUs", 6), ("batch", 9), ("{work}/s", 11), ("times", 7), ("a GPU", 8), ("step", 9), ("lost", 6))
_UNKNOWN = "-"


def text(comparison: Comparison) -> str:
    """Return the whole comparison, for a terminal or a file."""
    return "\n".join(_lines(comparison)) + "\n"


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison for JSON: seconds, shares from 0 to 1, null for unknown values."""
    study = comparison.batch_sizes
    return {
        "base": comparison.base.name,
        "work": comparison.work,
        "runs": [dataclasses.asdict(run) for run in comparison.runs],
        "against_base": [
            {
                "run": each.run.name,
                "scaling": None if each.scaling is None else each.scaling._asdict(),
                "gpu_time": each.gpu_time,
                "uncertainty": each.uncertainty,
                "causes": [part._asdict() for part in each.parts],
            }
            for each in comparison.against
        ],
        "batch_sizes": None if study is None else _study(study, comparison.studied),
        "no_batch_sizes": comparison.no_batch_sizes,
        "notes": list(comparison.notes),
    }


def _study(study: BatchSizeStudy, runs: tuple[RunFigures, ...]) -> dict[str, Any]:
    return {
        "runs": [run.name for run in runs],
        "fixed_seconds": study.step.fixed,
        "seconds_per_sample": study.step.slope,
        "deviation": study.step.deviation,
        "most_samples_per_second_per_gpu": study.most_samples_per_second,
        "largest_batch_that_fits": study.largest_that_fits,
        "next_batch": study.next_batch,
        "next_samples_per_second_per_gpu": study.samples_per_second(study.next_batch),
    }


def _lines(comparison: Comparison) -> Iterator[str]:
    yield "".join(["run".ljust(_NAME), *(title.format(work=comparison.work).rjust(size) for title, size in _COLUMNS)])
    found = {each.run.name: each for each in comparison.against}
    for run in comparison.runs:
        yield from _row(run, found.get(run.name), comparison)
    yield ""
    yield from _wrapped(
        f"times: speed relative to {_name(comparison.base, _WIDTH)}. a GPU: the same per GPU. lost: share of GPU time."
    )
    for against in comparison.against:
        yield from _difference(against, comparison)
    yield ""
    yield "Batch size, if nothing else differs between the runs"
    if comparison.batch_sizes is None:
        yield from _wrapped(f"no study: {comparison.no_batch_sizes}", indent=2)
    else:
        yield from _batch_sizes(comparison.batch_sizes, comparison.studied)
    if comparison.notes:
        yield ""
        yield "Notes"
        for note in comparison.notes:
            yield from _wrapped(readable(note, 300), indent=2)


def _row(run: RunFigures, against: Against | None, comparison: Comparison) -> Iterator[str]:
    """Yield the run's line of the table. A long name gets a line of its own, since names may differ at the end."""
    found = None if against is None else against.scaling
    is_base = against is None
    cells = (
        _number(run.units),
        _number(run.batch),
        _number(run.rate(comparison.work)),
        "base" if is_base else _UNKNOWN if found is None else f"{found.speed_up:.2f}",
        "base" if is_base else _UNKNOWN if found is None else _share(found.efficiency),
        _UNKNOWN if run.step_seconds is None else duration(run.step_seconds),
        _share(run.time_lost),
    )
    name = _name(run, _WIDTH)
    if len(name) >= _NAME:
        yield name
        name = ""
    yield "".join([name.ljust(_NAME), *(cell.rjust(size) for cell, (_, size) in zip(cells, _COLUMNS, strict=True))])


def _difference(against: Against, comparison: Comparison) -> Iterator[str]:
    """Yield how the GPU time of a sample differs from the baseline, by cause."""
    if against.gpu_time is None:
        return
    yield ""
    one = comparison.work.removesuffix("s")
    scatter = against.uncertainty
    doubt = f" (± {100 * scatter:.1f} %)" if scatter is not None and scatter >= _MIN_SCATTER_SHOWN else ""
    if scatter is not None and _MIN_SCATTER_SHOWN <= abs(against.gpu_time) <= scatter:
        doubt += ", which may be chance"
    yield from _wrapped(
        f"{_name(against.run, _WIDTH)} takes {_change(against.gpu_time)} GPU time for each {one}{doubt}"
        + (", of which" if any(_is_shown(part.explains) for part in against.parts) else "")
    )
    worst = next(
        (part for part in against.parts if part.cause in CAUSES and (part.explains or 0.0) > _MIN_SHARE_ADVISED), None
    )
    for part in against.parts:
        if part.explains is None or not _is_shown(part.explains):
            continue
        if part.cause == UNEXPLAINED:
            yield f"  {100 * part.explains:+6.1f} %  not explained by the recorded causes"
        else:
            title = CAUSES[part.cause].title if part.cause in CAUSES else readable(part.cause, 40)
            yield f"  {100 * part.explains:+6.1f} %  {title} ({_share(part.base)} there, {_share(part.run)} here)"
        if part is worst:
            yield from _wrapped(CAUSES[part.cause].remedy, indent=12)
    found, gpus, fewer = against.scaling, against.run.units, comparison.base.units
    if found is not None and gpus and fewer and gpus > fewer and found.efficiency < 1:
        yield from _wrapped(
            f"Scaling from {_number(fewer)} to {_number(gpus)} GPUs: {_share(found.efficiency)}, as if "
            f"{found.gpus_lost:.2g} of them did nothing."
        )


def _batch_sizes(study: BatchSizeStudy, runs: tuple[RunFigures, ...]) -> Iterator[str]:
    smallest = min(run.batch_on_unit or 0.0 for run in runs)
    gpus = runs[0].units or 1.0
    where = "on one GPU" if gpus == 1 else f"on each of {gpus:.0f} GPUs"
    fixed, each = duration(study.step.fixed), duration(study.step.slope)
    yield from _wrapped(
        f"A step takes {fixed} whatever its batch, and {each} for each sample {where}: "
        f"{_share(study.fixed_share(smallest))} of the step is fixed at a batch of {_number(smallest)}, "
        f"{_share(study.fixed_share(study.largest))} at {_number(study.largest)}.",
        indent=2,
    )
    if study.next_batch > study.largest:
        rate, now = study.samples_per_second(study.next_batch), study.samples_per_second(study.largest)
        yield from _wrapped(
            f"A batch of {_number(study.next_batch)} {where} would do {_number(gpus * rate)} samples/s, "
            f"{rate / now:.2f} times as many as {_number(study.largest)}; no batch does more than "
            f"{_number(gpus * study.most_samples_per_second)}.",
            indent=2,
        )
    fits = study.largest_that_fits
    yield from _wrapped(
        "The largest batch that fits into memory is unknown: the framework does not report the memory of tensors, or "
        "that memory does not grow with the batch."
        if fits is None
        else f"By the peak memory of tensors, {_number(fits)} {where} is the largest batch that fits.",
        indent=2,
    )
    if study.step.places == 2:
        yield from _wrapped("Two batch sizes define a line but do not test it; add a third.", indent=2)
    elif study.step.deviation > _GOOD_FIT:
        yield from _wrapped(
            f"The fitted line misses one run by {_share(study.step.deviation)}; the prediction may be off as much.",
            indent=2,
        )


def _is_shown(explains: float | None) -> bool:
    return explains is not None and abs(explains) >= _MIN_SHARE_SHOWN


def _change(share: float) -> str:
    if abs(share) < _MIN_SHARE_SHOWN:
        return "as much"
    return f"{100 * abs(share):.1f} % {'more' if share > 0 else 'less'}"


def _name(run: RunFigures, longest: int) -> str:
    return readable(run.name, longest)


def _share(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{100 * share:.0f} %"


def _number(number: float | None) -> str:
    if number is None:
        return _UNKNOWN
    return f"{number:,.0f}" if abs(number) >= 100 or number == round(number) else f"{number:.3g}"


def _wrapped(sentence: str, indent: int = 0) -> list[str]:
    return wrap(sentence, _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)
