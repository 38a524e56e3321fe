"""Output of `stallscope pick`: the reasons why no GPU was chosen, a table of all GPUs, JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stallscope.common.formatting import percent, size
from stallscope.tools.capacity.choice import Assessment, Wanted
from stallscope.tools.capacity.gpu import GpuNow
from stallscope.tools.capacity.host import Host

_COLUMNS = 80


@dataclass(frozen=True)
class Picked:
    """State of the GPUs at one poll, and the GPUs chosen from it."""

    judged: Sequence[Assessment]
    host: Host
    host_problems: Sequence[str]
    """Requirements that the host does not meet."""
    chosen: Sequence[GpuNow]
    warnings: Sequence[str]
    descriptors: Sequence[int]
    """File descriptors that hold the claims."""


def named(gpus: Sequence[GpuNow], form: str) -> str:
    """Return the GPUs in the form that programs read: `uuids`, `indices`, or `env` for the whole variable."""
    if form == "indices":
        return ",".join(str(gpu.identity.index) for gpu in gpus)
    uuids = ",".join(gpu.identity.uuid for gpu in gpus)
    return f"CUDA_VISIBLE_DEVICES={uuids}" if form == "env" else uuids


def refusal(picked: Picked, wanted: Wanted, *, brief: bool = False) -> str:
    """Return why no GPU was chosen, with the reason for each GPU unless brief."""
    required = [
        "free" if wanted.exclusive else "",
        f"with {size(wanted.memory)} free" if wanted.memory else "",
        "" if wanted.exclusive else f"at most {percent(wanted.max_utilization)} busy",
    ]
    count = "GPU" if wanted.count == 1 else f"{wanted.count} GPUs"
    fitting = sum(not each.against for each in picked.judged)
    lines = [
        f"no {count} {', '.join(part for part in required if part)} now" + (f" ({fitting} suitable)" if fitting else "")
    ]
    lines += [f"the host: {reason}" for reason in picked.host_problems]
    if not brief:
        lines += [f"{each.gpu.name}: {'; '.join(each.against) or 'suitable'}" for each in picked.judged]
    return "\n".join([lines[0], *(_wrapped(line, "  ", "    ") for line in lines[1:])])


def table(picked: Picked) -> str:
    """Return a table of all GPUs with their free resources, and why each was chosen or not."""

    def share(ratio: float | None) -> str:
        return "-" if ratio is None else percent(ratio).replace(" ", "")

    rows = [("", "total", "room", "busy", "SMs", "")]
    for each in picked.judged:
        gpu = each.gpu
        total, room = ("-" if amount is None else size(amount) for amount in (gpu.memory_total, each.room))
        rows.append((gpu.name, total, room, share(gpu.busy), share(gpu.sm_active), _decision(each, picked)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for name, *figures, decision in rows:
        cells = [
            name.ljust(widths[0]),
            *(figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)),
        ]
        lines.append(_wrapped(decision, "  ".join(cells) + "  ", "      ") if decision else "  ".join(cells))
    lines.append("")
    machine = picked.host
    idle = "" if machine.idle_cores is None else f", {machine.idle_cores:.1f} idle"
    memory = "" if machine.memory_available is None else f"; {size(machine.memory_available)} of memory free"
    lines.append(
        _wrapped(f"host: {machine.cores:g} cores{idle}{memory}{_share_of_host(machine, picked.judged)}", "", "  ")
    )
    lines += [_wrapped(reason, "  ", "    ") for reason in picked.host_problems]
    return "\n".join(lines)


def _decision(each: Assessment, picked: Picked) -> str:
    if each.against:
        return f"no: {'; '.join(each.against)}"
    if each.gpu in picked.chosen:
        return "taken"
    return "suitable, but others fit better" if picked.chosen else "suitable"


def _share_of_host(machine: Host, judged: Sequence[Assessment]) -> str:
    """Return the host's cores and memory for each GPU if all GPUs are in use."""
    count = sum(not each.gpu.cut for each in judged)
    if not count or machine.memory_total is None:
        return ""
    return f"; for each of {count} GPUs: {machine.cores / count:.3g} cores and {size(machine.memory_total / count)}"


def document(picked: Picked, wanted: Wanted) -> dict[str, Any]:
    """Return the whole state for JSON; unknown values are null."""
    return {
        "cuda_visible_devices": named(picked.chosen, "uuids") or None,
        "wanted": {
            "count": wanted.count,
            "memory_bytes": wanted.memory,
            "exclusive": wanted.exclusive,
            "max_utilization": wanted.max_utilization,
            "cpus": wanted.cores,
            "host_memory_bytes": wanted.host_memory,
        },
        "gpus": [
            {
                "index": each.gpu.identity.index,
                "uuid": each.gpu.identity.uuid,
                "mig": each.gpu.identity.mig or None,
                "model": each.gpu.identity.model,
                "taken": each.gpu in picked.chosen,
                "against": list(each.against),
                "memory_total_bytes": each.gpu.memory_total,
                "memory_free_bytes": each.gpu.memory_free,
                "room_bytes": each.room,
                "busy": each.gpu.busy,
                "busy_seconds": each.gpu.busy_seconds,
                "busy_now": each.gpu.busy_now,
                "sm_active": each.gpu.sm_active,
                "processes": [
                    {"pid": holder.pid, "user": holder.user, "command": holder.command, "memory_bytes": holder.memory}
                    for holder in each.gpu.holders
                ],
                "runs": list(each.gpu.runs),
                "claims": [
                    {
                        "user": claim.user,
                        "pid": claim.pid,
                        "memory_bytes": claim.memory,
                        "exclusive": claim.exclusive,
                        "age_seconds": claim.age,
                        "held": claim.held,
                    }
                    for claim in each.claims
                ],
            }
            for each in picked.judged
        ],
        "host": {
            "cores": picked.host.cores,
            "idle_cores": picked.host.idle_cores,
            "memory_total_bytes": picked.host.memory_total,
            "memory_available_bytes": picked.host.memory_available,
            "against": list(picked.host_problems),
        },
    }


def _wrapped(text: str, first: str, others: str) -> str:
    return textwrap.fill(text, _COLUMNS, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
