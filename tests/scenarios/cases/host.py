"""Machines in trouble that trainings do not feel yet, or end of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import QUIET, WELL, near, positive, run_on
from tests.scenarios.machines import CLOUD, LAPTOP, PAIR, SINGLE
from tests.scenarios.story import Host, Node, Story

_LEVELS = (0.8, 1.25)
_HOST: dict[str, Any] = {
    "subject": "host",
    "verdict_expected": False,
    "acceptable": WELL,
    "culprit": (("instance", "node0:19400"),),
    "lost": 0.0,
}


def _with(node: Node, **changes: float) -> Host:
    return replace(QUIET[node], **changes)


def _on_one_of_two(story: Story) -> Story:
    """The host state, but only the first machine is in trouble."""
    return replace(story, hosts=(story.hosts[0], replace(story.hosts[1], only=(0,))))


def _cases() -> Iterator[Case]:
    pressure = frozenset({"HostMemPressure"})
    full = frozenset({"HostShmFull"})
    swap = frozenset({"HostSwapping"})
    load = frozenset({"HostCpuSaturated"})
    yield positive(
        "mem_pressure_laptop",
        "mem_pressure",
        run_on(LAPTOP, host=_with(LAPTOP, memory_used=0.96, page_cache=0.02, memory_waiting=0.25)),
        alerts=pressure,
        length=45.0,
        **_HOST,
    )
    yield positive(
        "oom_kill_cloud",
        "oom_kill",
        run_on(CLOUD, host=_with(CLOUD, oom_kills=0.05, memory_used=0.6)),
        alerts=frozenset({"HostOomKill"}),
        length=25.0,
        **_HOST,
    )
    yield positive(
        "shm_full_cloud",
        "shm_full",
        run_on(CLOUD, host=_with(CLOUD, shared_memory=0.97)),
        alerts=full,
        **_HOST,
    )
    yield positive(
        "swapping_laptop",
        "swapping",
        run_on(LAPTOP, host=_with(LAPTOP, swap_in=3e7, swap_out=2e7, faults=4000, memory_used=0.88)),
        alerts=swap,
        length=45.0,
        **_HOST,
    )
    yield positive(
        "cpu_saturated_node",
        "cpu_saturated",
        run_on(PAIR, host=_with(PAIR, cores=36.5, cpu_waiting=0.3)),
        alerts=load,
        length=50.0,
        **_HOST,
    )
    yield positive(
        "network_errors_two_nodes",
        "network_errors",
        _on_one_of_two(run_on(PAIR, count=2, host=_with(PAIR, errors=250.0, dropped=400.0, received=5e7))),
        alerts=frozenset({"HostNetworkErrors"}),
        length=42.0,
        **_HOST,
    )
    for level in _LEVELS:
        blamed = {} if level > 1 else {"culprit": None}
        # Nine tenths used leave a tenth: the level is of what is left.
        yield near(
            "mem_pressure",
            "mem_pressure",
            level,
            run_on(CLOUD, host=_with(CLOUD, memory_used=1 - 0.1 / level, memory_waiting=0.10 * level)),
            alerts=pressure,
            length=45.0,
            **{**_HOST, **blamed},
        )
        yield near(
            "shm_full",
            "shm_full",
            level,
            run_on(CLOUD, host=_with(CLOUD, shared_memory=min(0.995, 0.80 * level))),
            alerts=full,
            **{**_HOST, **blamed},
        )
        yield near(
            "swapping",
            "swapping",
            level,
            run_on(LAPTOP, host=_with(LAPTOP, swap_in=4096 * 500 * level, swap_out=1e6, faults=500 * level)),
            alerts=swap,
            length=45.0,
            **{**_HOST, **blamed},
        )
        # Over nine tenths there is but one: the level is of what is left.
        yield near(
            "cpu_saturated",
            "cpu_saturated",
            level,
            run_on(SINGLE, host=_with(SINGLE, cores=24 * (1 - 0.1 / level) - 5.35, cpu_waiting=0.05)),
            alerts=load,
            length=50.0,
            **{**_HOST, **blamed},
        )


CASES: tuple[Case, ...] = tuple(_cases())
