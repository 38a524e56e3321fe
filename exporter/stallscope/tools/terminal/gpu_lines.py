"""GPUs as lines: a table row or a block for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stallscope.common.formatting import gpu_name, percent, readable, several, size, time_since
from stallscope.model.catalogue.gpu_losses import explained
from stallscope.model.view.model import Gpu, Owner
from stallscope.model.view.verdict_words import words_of
from stallscope.model.view.verdicts import Verdicts
from stallscope.tools.terminal.lines import (
    BAR,
    Column,
    Line,
    Span,
    bar,
    fit,
    flow,
    line,
    or_dash,
    plain,
    share,
    share_bar,
    table,
    usage,
    wrapped,
)
from stallscope.tools.terminal.owner_lines import owner_name
from stallscope.tools.terminal.verdict_lines import ROLES, verdict_lines

SORTS = ("number", "activity", "memory", "power", "owner")
"""Sort orders of GPUs."""


def sorted_gpus(gpus: Sequence[Gpu], by: str) -> Sequence[Gpu]:
    """Return the GPUs in one of `SORTS`, the greatest first."""
    if by == "owner":
        return sorted(gpus, key=lambda gpu: (not gpu.owners, [owner_name(owner) for owner in gpu.owners]))
    value = _SORTED_BY.get(by)
    return sorted(gpus, key=value, reverse=True) if value else gpus


def _known(number: float | None) -> float:
    """Return a value less than any other for an unknown number."""
    return -1.0 if number is None else number


_SORTED_BY: Mapping[str, Callable[[Gpu], float]] = {
    "activity": lambda gpu: _known(gpu.utilization),
    "memory": lambda gpu: _known(gpu.memory_used),
    "power": lambda gpu: _known(gpu.power),
}
_GPU_COLUMNS = (
    Column("GPU"),
    Column("Activity"),
    Column("Memory", right=True),
    Column("Power", right=True, dispensable=3),
    Column("Temp", right=True, dispensable=4),
    Column("MHz", right=True, dispensable=6),
    Column("Slowed", right=True, dispensable=5),
    Column("Proc", right=True, dispensable=7),
    Column("Owner", least=8, dispensable=2),
)
_VERDICT_COLUMN = Column("Verdict", least=20, dispensable=8)


def gpu_table(gpus: Sequence[Gpu], verdicts: Verdicts | None, width: int) -> list[Line]:
    """Return a table row for each GPU; nothing without GPUs."""
    if not gpus:
        return []
    columns: tuple[Column, ...] = _GPU_COLUMNS
    rows: list[tuple[Line, ...]] = [_gpu_row(gpu) for gpu in gpus]
    if verdicts is not None:
        columns = (*columns, _VERDICT_COLUMN)
        rows = [(*row, _gpu_verdict(gpu, verdicts)) for row, gpu in zip(rows, gpus, strict=True)]
    head, *lines = table(columns, rows, width)
    if verdicts is None or _VERDICT_COLUMN.title in plain(head):
        return [head, *lines]
    shown = [head]
    # The table has no room for verdicts, so show only problems of the GPU itself below its row.
    for gpu, row in zip(gpus, lines, strict=True):
        shown.append(row)
        verdict = verdicts.gpus.get(gpu.uuid)
        if verdict is not None and not (words := words_of(verdict)).of_run and words.severity:
            shown += verdict_lines(verdict, width, "    ")
    return shown


def _gpu_row(gpu: Gpu) -> tuple[Line, ...]:
    name = line(f"{' ' if gpu.mig else ''}{readable(gpu.index, 8)}{f' {readable(gpu.mig, 16)}' if gpu.mig else ''}")
    if gpu.up is not True:
        state = line(Span(f"down {readable(gpu.reason)}", "bad") if gpu.up is False else Span("not read yet", "quiet"))
        return (name, fit(state, BAR + len(share(1.0)) + 1), *[line("")] * 6, _owner_cell(gpu))
    return (
        name,
        share_bar(gpu.utilization),
        or_dash(_memory(gpu)),
        or_dash(_power(gpu)),
        or_dash(_temperature(gpu)),
        or_dash(None if gpu.clock is None else f"{gpu.clock / 1e6:.0f}"),
        line(Span(share(max(gpu.throttled.values())), "warn")) if gpu.throttled else or_dash(None),
        or_dash(None if gpu.processes is None else str(gpu.processes)),
        _owner_cell(gpu),
    )


def _owner_cell(gpu: Gpu) -> Line:
    return or_dash(", ".join(owner_name(owner) for owner in gpu.owners) or None)


def _memory(gpu: Gpu) -> str | None:
    if gpu.memory_used is None or gpu.memory_total is None:
        return None
    return usage(gpu.memory_used, gpu.memory_total)


def _power(gpu: Gpu) -> str | None:
    if gpu.power is None:
        return None
    if gpu.power_limit is None:
        return f"{gpu.power:.0f} W"
    limit = f"{gpu.power_limit:.0f}"
    return f"{gpu.power:{len(limit)}.0f}/{limit} W"  # constant width, so that columns do not move


def _temperature(gpu: Gpu) -> str | None:
    return None if gpu.temperature is None else f"{gpu.temperature:.0f} °C"


def _gpu_verdict(gpu: Gpu, verdicts: Verdicts) -> Line:
    verdict = verdicts.gpus.get(gpu.uuid)
    if verdict is None:
        return or_dash(None)
    words = words_of(verdict)
    cost = f", {percent(verdict.share)}" if words.cost else ""
    return line(Span(f"{readable(words.title)}{cost}", ROLES.get(words.severity or "", "")))


def gpu_block(gpu: Gpu, now: float | None, verdicts: Verdicts | None, width: int) -> list[Line]:
    """Return all values of a GPU."""
    indent = "    "
    head = [line(Span(name_of(gpu), "title")), line(readable(gpu.model)), line(Span(readable(gpu.uuid), "quiet"))]
    lines = flow(head, width)
    if gpu.up is not True:
        last = time_since(now, gpu.last_reading)
        text, role = "Not read yet.", ""
        if gpu.up is False:
            text, role = f"Down: {readable(gpu.reason or 'unknown')}. {explained(gpu.reason)}", "bad"
        lines += wrapped(text + (f" Last reading {last}." if last else ""), width, role, indent)
    else:
        lines += flow(_gpu_activity(gpu), width, indent) + flow(_gpu_state(gpu), width, indent)
    if gpu.owners:
        lines += wrapped(f"held by {', '.join(map(_holder, gpu.owners))}", width, indent=indent)
    verdict = verdicts.gpus.get(gpu.uuid) if verdicts is not None else None
    if verdict is not None and (words := words_of(verdict)).of_run:
        # The run's verdict has the remedy, which may concern another GPU.
        said = f"Verdict of its run: {readable(words.title)}, {percent(verdict.share)}."
        lines += wrapped(said, width, "quiet", indent)
    elif verdict is not None:
        lines += verdict_lines(verdict, width, indent)
    return lines


def _holder(owner: Owner) -> str:
    """Return the name of an owner and its use of the GPU."""
    facts = [size(owner.memory)] if owner.memory is not None else []
    if owner.busy is not None:
        facts.append(f"busy {percent(owner.busy)}")
    return owner_name(owner) + (f" ({', '.join(facts)})" if facts else "")


def _gpu_activity(gpu: Gpu) -> list[Line]:
    items = []
    for name, ratio in (
        ("activity", gpu.utilization),
        ("SMs", gpu.sm_active),
        ("memory bandwidth", gpu.memory_bandwidth),
    ):
        if ratio is not None:
            items.append(line(f"{name} ", *bar(ratio, BAR), f" {share(ratio)}"))
    if gpu.processes is not None:
        items.append(line(several(gpu.processes, "process", "processes")))
    return items


def _gpu_state(gpu: Gpu) -> list[Line]:
    items = [line(each) for each in (_power(gpu), _temperature(gpu)) if each is not None]
    memory = _memory(gpu)
    if memory is not None:
        items.insert(0, line(f"memory {memory}{', shared with the host' if gpu.unified_memory else ''}"))
    if gpu.clock is not None:
        most = "" if gpu.clock_max is None else f" of {gpu.clock_max / 1e6:.0f}"
        items.append(line(f"{gpu.clock / 1e6:.0f}{most} MHz"))
    items += [
        line(Span(f"slowed by {readable(reason)} {share(ratio).strip()} of the time", "warn"))
        for reason, ratio in sorted(gpu.throttled.items())
    ]
    return items


def name_of(gpu: Gpu) -> str:
    """Return the name of a GPU or MIG instance."""
    return gpu_name(gpu.index, gpu.mig, lambda text: readable(text, 16))
