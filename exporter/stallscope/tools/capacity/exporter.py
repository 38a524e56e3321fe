"""Add the exporter's data to the driver's: activity from its counters, Xids and training runs.

Two pages some seconds apart are compared. The exporter is optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stallscope.common.formatting import ago, readable
from stallscope.common.xids import xids_of_hardware
from stallscope.model.catalogue.metrics import Family, family
from stallscope.model.clients.exposition import Page
from stallscope.tools.capacity.gpu import GpuNow

_BUSY = family("stallscope_gpu_busy_seconds_total")
_SM_ACTIVE = family("stallscope_gpu_sm_active_seconds_total")
_LAST_READING = family("stallscope_gpu_last_reading_timestamp_seconds")
_XID_LAST = family("stallscope_gpu_xid_last_timestamp_seconds")
_RANK_GPU = family("stallscope_training_rank_gpu_info")
_NUMBERS = (_BUSY, _SM_ACTIVE, _LAST_READING)

WANTED = frozenset(each.name for each in (*_NUMBERS, _XID_LAST, _RANK_GPU))
"""Names of the samples that a page is read for."""
_XID_SECONDS = 3600.0
"""How long a GPU is avoided after an error of its hardware: as long as the error is its verdict."""


@dataclass
class _PageValues:
    """Values of one GPU on a page."""

    numbers: dict[Family, float] = field(default_factory=dict)
    xids: dict[str, float] = field(default_factory=dict)
    """Unix time of the newest event, by Xid."""
    runs: set[str] = field(default_factory=set)


def with_exporter(gpus: Sequence[GpuNow], earlier: Page, later: Page, now: float) -> list[GpuNow]:
    """Return the GPUs with the values of two pages added; values from the driver take precedence.

    Args:
        gpus: as read from the driver.
        earlier: a page.
        later: another page, from some seconds after.
        now: wall clock.
    """
    before, after = _reported(earlier), _reported(later)
    actions = xids_of_hardware() if any(each.xids for each in after.values()) else {}
    nothing = _PageValues()
    found = []
    for gpu in gpus:
        uuid = gpu.identity.uuid
        then, reported = before.get(uuid, nothing), after.get(uuid, nothing)
        seconds = reported.numbers.get(_LAST_READING, 0.0) - then.numbers.get(_LAST_READING, 0.0)
        busy, active = (_share(then, reported, each, seconds) for each in (_BUSY, _SM_ACTIVE))
        if gpu.busy is None and busy is not None:
            gpu = replace(gpu, busy=busy, busy_seconds=seconds, busy_now=busy)
        xids = after.get(gpu.identity.parent_uuid or uuid, nothing).xids
        faults = [
            f"Xid {xid} {ago(now - when)}: {actions[xid]}"
            for xid, when in sorted(xids.items())
            if xid in actions and now - when < _XID_SECONDS
        ]
        found.append(
            replace(
                gpu,
                sm_active=active if gpu.sm_active is None else gpu.sm_active,
                faults=(*gpu.faults, *faults),
                runs=tuple(sorted(reported.runs)),
            )
        )
    return found


def _reported(page: Page) -> dict[str, _PageValues]:
    """Return the values of a page, by UUID."""
    found: dict[str, _PageValues] = {}
    for each in _NUMBERS:
        for labels, value in page.samples(each):
            found.setdefault(labels.get("uuid", ""), _PageValues()).numbers[each] = value
    for labels, value in page.samples(_XID_LAST):
        found.setdefault(labels.get("uuid", ""), _PageValues()).xids[labels.get("xid", "")] = value
    for labels, _ in page.samples(_RANK_GPU):
        found.setdefault(labels.get("uuid", ""), _PageValues()).runs.add(readable(labels.get("run", "")))
    return found


def _share(before: _PageValues, after: _PageValues, counter: Family, seconds: float) -> float | None:
    if seconds <= 0 or counter not in before.numbers or counter not in after.numbers:
        return None
    growth = after.numbers[counter] - before.numbers[counter]
    return min(growth / seconds, 1.0) if growth >= 0 else None
