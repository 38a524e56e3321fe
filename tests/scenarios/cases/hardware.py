"""GPUs that are ill, held back, or gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import (
    CLOUD_WORK,
    LAPTOP_WORK,
    NODE_WORK,
    SERVER_WORK,
    WELL,
    near,
    positive,
    run_on,
    slowed,
)
from tests.scenarios.machines import CLOUD, HGX, LAPTOP, PAIR, SERVER, SINGLE
from tests.scenarios.story import Gpu

_LEVELS = (0.8, 1.25)
_SOON = 22.0
_INFO: dict[str, Any] = {"subject": "gpu", "verdict_expected": False, "acceptable": WELL, "lost": 0.0}
_INSTEAD = frozenset({"healthy", "compute_bound", "input_bound", "comm_bound", "small_batch"})


def _on(gpu: int, node: int = 0) -> tuple[tuple[str, str], ...]:
    return (("instance", f"node{node}:19400"), ("gpu", str(gpu)))


def _clocks() -> Iterator[Case]:
    hot = frozenset({"GpuThermalThrottle"})
    yield positive(
        "thermal_throttle_laptop",
        "thermal_throttle",
        run_on(
            LAPTOP, slowed(LAPTOP_WORK, 0.97 / 0.72), gpu=Gpu(throttled={"sw_thermal": 0.98}, clock=0.72, celsius=87)
        ),
        subject="gpu",
        alerts=hot,
        forbidden=_INSTEAD | {"power_capped"},
        culprit=_on(0),
        lost=0.26,
        tolerance=0.06,
    )
    yield positive(
        "thermal_throttle_node",
        "thermal_throttle",
        run_on(
            PAIR,
            slowed(NODE_WORK, 0.97 / 0.7),
            only=(1,),
            gpu=Gpu(throttled={"hw_thermal": 0.9, "sw_thermal": 0.95}, clock=0.7, celsius=93),
            gpus=(1,),
            measures_communication=True,
        ),
        subject="gpu",
        alerts=hot,
        allowed=frozenset({"TrainingStragglerHw"}),
        forbidden=_INSTEAD,
        culprit=_on(1),
        lost=0.28,
        tolerance=0.06,
    )
    for level in _LEVELS:
        # A tenth of the time, with half the clock meanwhile.
        share = 0.10 * level
        yield near(
            "thermal_throttle",
            "thermal_throttle",
            level,
            run_on(
                CLOUD,
                slowed(CLOUD_WORK, 1 + share),
                gpu=Gpu(throttled={"hw_thermal": share}, clock=0.86 - 0.5 * share, celsius=90),
            ),
            subject="gpu",
            acceptable=frozenset({"thermal_throttle"}),
            alerts=hot,
            culprit=_on(0) if level > 1 else None,
        )
    brake = frozenset({"GpuPowerBrake"})
    yield positive(
        "power_brake_node",
        "power_brake",
        run_on(
            PAIR,
            slowed(NODE_WORK, 1.35),
            only=(1,),
            gpu=Gpu(throttled={"power_brake": 0.4, "hw_slowdown": 0.4}, clock=0.7),
            gpus=(1,),
            measures_communication=True,
        ),
        subject="gpu",
        alerts=brake,
        allowed=frozenset({"TrainingStragglerHw"}),
        forbidden=_INSTEAD | {"thermal_throttle", "power_capped"},
        culprit=_on(1),
        length=_SOON,
    )
    for level in _LEVELS:
        yield near(
            "power_brake",
            "power_brake",
            level,
            run_on(SERVER, gpu=Gpu(throttled={"power_brake": 0.01 * level}, clock=0.95), gpus=(1,)),
            subject="gpu",
            acceptable=frozenset({"power_brake"}),
            alerts=brake,
            culprit=_on(1) if level > 1 else None,
            length=_SOON,
        )
    yield positive(
        "power_capped_server",
        "power_capped",
        run_on(
            SERVER,
            slowed(SERVER_WORK, 1.25),
            gpu=Gpu(power_limit=0.6, throttled={"power_cap": 0.95}, clock=0.76),
        ),
        alerts=frozenset({"GpuPowerCapped"}),
        allowed=frozenset({"TrainingStepTimeDrift"}),
        **{**_INFO, "lost": None, "acceptable": WELL | {"step_time_drift"}},
    )
    for level in _LEVELS:
        yield near(
            "power_capped",
            "power_capped",
            level,
            run_on(
                CLOUD,
                before=CLOUD_WORK,
                onset=0.0,
                gpu=Gpu(power_limit=0.7, throttled={"power_cap": 0.5 * level}, clock=0.8),
            ),
            alerts=frozenset({"GpuPowerCapped"}),
            culprit=_on(0) if level > 1 else None,
            onset=0.0,
            **{**_INFO, "lost": None},
        )
    yield positive(
        "clocks_limited_node",
        "clocks_limited",
        run_on(SINGLE, onset=0.0, gpu=Gpu(clock_configured=0.6, clock=0.6)),
        alerts=frozenset({"GpuClocksLimited"}),
        culprit=_on(0),
        onset=0.0,
        length=45.0,
        **{**_INFO, "lost": None},
    )


def _events() -> Iterator[Case]:
    hard = frozenset({"GpuXidHw"})
    for name, node, code in (("xid_hw_gsp_timeout", PAIR, 119), ("xid_hw_double_bit", SERVER, 48)):
        yield positive(
            name,
            "xid_hw",
            run_on(node, gpu=Gpu(xids=(code,)), gpus=(1,)),
            subject="gpu",
            alerts=hard,
            forbidden=_INSTEAD | {"xid_app"},
            culprit=_on(1),
            length=_SOON,
        )
    yield positive(
        "xid_app_illegal_access",
        "xid_app",
        run_on(CLOUD, gpu=Gpu(xids=(31,))),
        alerts=frozenset({"GpuXidApp"}),
        culprit=_on(0),
        length=_SOON,
        **_INFO,
    )
    # Off the bus: the other ranks wait in a collective for ever.
    story = run_on(
        HGX,
        replace(NODE_WORK, hangs="spin"),
        gpu=Gpu(present=False, xids=(79,)),
        gpus=(5,),
        killed=(5,),
        measures_communication=True,
    )
    run = story.runs[0]
    dead = replace(run.work[-1], state=replace(NODE_WORK, hangs="idle", main_thread=0.0), only=(5,))
    yield positive(
        "lost_node",
        "lost",
        replace(story, runs=(replace(run, work=(*run.work, dead)),)),
        subject="gpu",
        acceptable=frozenset({"xid_hw"}),
        alerts=frozenset({"GpuLost"}),
        allowed=frozenset({"GpuXidHw", "TrainingHangSpin", "TrainingStalled", "TrainingTelemetryMissing"}),
        forbidden=_INSTEAD | {"idle_allocated", "insufficient_data"},
        culprit=_on(5),
        length=_SOON,
    )
    yield positive(
        "lost_laptop",
        "lost",
        run_on(
            LAPTOP,
            replace(LAPTOP_WORK, hangs="idle"),
            gpu=Gpu(present=False, lost_reason="reset_required"),
            killed=(0,),
        ),
        subject="gpu",
        alerts=frozenset({"GpuLost"}),
        allowed=frozenset({"TrainingStalled", "TrainingHangIo", "TrainingTelemetryMissing"}),
        forbidden=_INSTEAD | {"insufficient_data"},
        culprit=_on(0),
        length=_SOON,
    )


def _memory() -> Iterator[Case]:
    yield positive(
        "ecc_uncorrected_node",
        "ecc_uncorrected",
        run_on(PAIR, gpu=Gpu(uncorrected=2, corrected=40), gpus=(1,)),
        subject="gpu",
        alerts=frozenset({"GpuEccUncorrected"}),
        forbidden=_INSTEAD,
        culprit=_on(1),
        length=_SOON,
    )
    yield positive(
        "row_remap_pending_node",
        "row_remap_pending",
        run_on(PAIR, gpu=Gpu(remap_pending=True, remapped=1), gpus=(1,)),
        subject="gpu",
        alerts=frozenset({"GpuRowRemapPending"}),
        forbidden=frozenset({"row_remap_failed", "lost"}),
        culprit=_on(1),
        lost=0.0,
    )
    yield positive(
        "row_remap_failed_node",
        "row_remap_failed",
        run_on(PAIR, gpu=Gpu(remap_failed=True, remapped=8), gpus=(1,)),
        subject="gpu",
        alerts=frozenset({"GpuRowRemapFailed"}),
        forbidden=_INSTEAD,
        culprit=_on(1),
        length=_SOON,
    )


def _links() -> Iterator[Case]:
    for name, state in (("pcie_degraded_width", Gpu(width=8)), ("pcie_degraded_generation", Gpu(generation=3))):
        yield positive(
            name,
            "pcie_degraded",
            run_on(PAIR, gpu=state, gpus=(0,)),
            subject="gpu",
            alerts=frozenset({"GpuPcieDegraded"}),
            forbidden=frozenset({"lost", "thermal_throttle"}),
            culprit=_on(0),
            lost=0.0,
        )
    replays = frozenset({"GpuPcieReplays"})
    yield positive(
        "pcie_replays_server",
        "pcie_replays",
        run_on(SERVER, gpu=Gpu(replays=90), gpus=(1,)),
        subject="gpu",
        alerts=replays,
        forbidden=frozenset({"lost", "pcie_degraded"}),
        culprit=_on(1),
        lost=0.0,
    )
    for level in _LEVELS:
        # DCGM: 16 lanes of generation 4 may send ceil(15.36) packets a minute again.
        yield near(
            "pcie_replays",
            "pcie_replays",
            level,
            run_on(SERVER, gpu=Gpu(replays=16 * level), gpus=(1,)),
            subject="gpu",
            acceptable=frozenset({"pcie_replays"}),
            alerts=replays,
            culprit=_on(1) if level > 1 else None,
        )
    yield positive(
        "nvlink_errors_crc",
        "nvlink_errors",
        run_on(PAIR, gpu=Gpu(link_errors={"crc": 20, "replay": 2}), gpus=(0,)),
        subject="gpu",
        alerts=frozenset({"GpuNvlinkErrors"}),
        forbidden=frozenset({"nvlink_down", "lost"}),
        culprit=_on(0),
        lost=0.0,
    )
    yield positive(
        "nvlink_down_two_of_eighteen",
        "nvlink_down",
        run_on(PAIR, gpu=Gpu(links_down=2), gpus=(0,)),
        subject="gpu",
        alerts=frozenset({"GpuNvlinkDown"}),
        forbidden=frozenset({"lost", "pcie_degraded"}),
        culprit=_on(0),
        lost=0.0,
    )


CASES: tuple[Case, ...] = (*_clocks(), *_events(), *_memory(), *_links())
