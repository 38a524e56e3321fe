"""Seven and fourteen tenths of a published threshold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.scenarios.case import Case
from tests.scenarios.cases.held_out.grounds import (
    A2,
    G2,
    G4,
    HGX_H200,
    Draw,
    near,
    on,
    scene,
)
from tests.scenarios.cases.settings import slowed, taking
from tests.scenarios.story import Gpu

_LEVELS = (0.7, 1.4)
_LENGTH = 38.0


def _cases() -> Iterator[Case]:
    for level in _LEVELS:
        over = level > 1
        draw = Draw(f"few_workers {level}")
        share = 0.10 * level
        yield near(
            "few_workers",
            "input_few_workers",
            "TrainingInputFewWorkers",
            level,
            scene(
                A2,
                draw.dress(),
                taking(replace(A2.work, loader_workers=1, loader_cores=draw.between(0.75, 0.88)), "data_wait", share),
            ),
            acceptable=frozenset({"input_few_workers", "input_bound"}) if not over else frozenset(),
            lost=share,
            length=_LENGTH,
        )
        draw = Draw(f"copies {level}")
        yield near(
            "copies",
            "h2d_bound",
            "TrainingH2dBound",
            level,
            scene(HGX_H200, draw.dress(), taking(HGX_H200.work, "host_copy", 0.10 * level)),
            lost=0.10 * level,
            length=_LENGTH,
        )
        draw = Draw(f"host time {level}")
        yield near(
            "host_time",
            "sync_stall",
            "TrainingSyncStall",
            level,
            scene(G2, draw.dress(), taking(G2.work, "other", 0.10 * level)),
            lost=0.10 * level,
            length=_LENGTH,
        )
        # A tenth of the time under the thermal bit, with half the clock meanwhile.
        draw = Draw(f"heat {level}")
        share = 0.10 * level
        yield near(
            "heat",
            "thermal_throttle",
            "GpuThermalThrottle",
            level,
            scene(
                G4,
                draw.dress(),
                slowed(G4.work, 1 + share),
                gpu=Gpu(throttled={"hw_thermal": share}, clock=0.86 - 0.5 * share, celsius=91),
            ),
            subject="gpu",
            culprit=on(0) if over else None,
            length=_LENGTH,
        )
        # DCGM allows sixteen lanes of generation 4 ceil(15.36) packets a minute again.
        draw = Draw(f"replays {level}")
        yield near(
            "replays",
            "pcie_replays",
            "GpuPcieReplays",
            level,
            scene(G2, draw.dress(), gpu=Gpu(replays=16 * level)),
            subject="gpu",
            culprit=on(0) if over else None,
            length=_LENGTH,
        )


CASES: tuple[Case, ...] = tuple(_cases())
