"""Cases with missing evidence: the right answer says so, or names the parent of an uncertain cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import CLOUD_WORK, INPUT_CHILDREN, LAPTOP_WORK, NODE_WORK, WELL, run_on, taking
from tests.scenarios.machines import CLOUD, LAPTOP, PAIR, SERVER, SERVER_4, SINGLE
from tests.scenarios.story import Story

_NO_DATA = "insufficient_data"


def _unknown(name: str, story: Story, *, cause: str = _NO_DATA, **fields: Any) -> Case:
    return Case(name=name, kind="abstention", subject="run", cause=cause, story=story, **fields)


def _cases() -> Iterator[Case]:
    # The shim has died, and the training goes on: its GPU says so.
    yield _unknown(
        "reports_ended_while_training_goes_on",
        run_on(CLOUD, reports_until=10.0),
        acceptable=frozenset({"stalled"}),
        allowed=frozenset({"TrainingStalled", "TrainingTelemetryMissing"}),
        forbidden=frozenset({"healthy", "compute_bound", "hang_spin", "hang_io", "lost"}),
        onset=15.0,
    )
    yield _unknown(
        "no_phases_measured",
        run_on(LAPTOP, before=taking(LAPTOP_WORK, "data_wait", 0.3), phases=False),
        acceptable=frozenset({"underused"}),
        allowed=frozenset({"GpuUnderused"}),
        forbidden=frozenset({"sync_stall", "input_bound", "healthy", "compute_bound"}) | INPUT_CHILDREN,
    )
    # The driver says nothing more, and steps go on: the GPUs are not lost.
    yield _unknown(
        "driver_is_silent",
        run_on(SERVER, more={"failing_source": (("nvidia", 8.0),)}),
        acceptable=WELL,
        alerts=frozenset({"StallscopeSourceFailing", "StallscopeSourceStuck"}),
        allowed=frozenset({"TrainingTelemetryMissing"}),
        forbidden=frozenset({"small_batch", "input_bound", "stalled", "lost"}),
        onset=8.0,
    )
    yield _unknown(
        "first_minute_of_a_run",
        run_on(SINGLE, before=taking(NODE_WORK, "data_wait", 0.5), start=1.0, initialization=0.5),
        forbidden=frozenset({"input_bound", "healthy", "compute_bound"}) | INPUT_CHILDREN,
        onset=1.5,
        length=2.0,
    )
    yield _unknown(
        "nothing_known_of_the_host",
        run_on(LAPTOP, taking(LAPTOP_WORK, "data_wait", 0.3), more={"absent": ("stallscope_host_",)}),
        cause="input_bound",
        alerts=frozenset({"TrainingInputBound"}),
        forbidden=INPUT_CHILDREN,
        lost=0.3,
    )
    yield _unknown(
        "gpu_without_utilisation",
        run_on(
            CLOUD,
            before=taking(replace(CLOUD_WORK, loader_cores=5.5), "data_wait", 0.3),
            more={
                "absent": tuple(
                    f"stallscope_gpu_{name}"
                    for name in (
                        "busy_seconds",
                        "memory_busy_seconds",
                        "idle_seconds",
                        "below_seconds",
                        "dips",
                        "dip_interval",
                        "utilization",
                        "memory_utilization",
                        "engine_busy",
                    )
                )
            },
        ),
        acceptable=frozenset({"input_bound"}),
        allowed=frozenset({"TrainingInputBound"}),
        forbidden=frozenset({"healthy", "compute_bound", "small_batch", "sync_stall"}) | INPUT_CHILDREN,
    )
    # One of two machines is not scraped at all: half of the world is missing.
    yield _unknown(
        "half_of_the_world_is_missing",
        run_on(PAIR, world_size=4, measures_communication=True),
        acceptable=WELL,
        alerts=frozenset({"TrainingTelemetryMissing"}),
        forbidden=frozenset({"straggler_rank", "comm_bound", "stalled", "scaling_inefficient"}),
    )
    yield _unknown(
        "exporter_is_down",
        run_on(SERVER, more={"exporter_down": ((0, 10.0),)}),
        acceptable=WELL,
        alerts=frozenset({"StallscopeExporterDown"}),
        allowed=frozenset({"TrainingTelemetryMissing"}),
        forbidden=frozenset({"stalled", "lost", "hang_io"}),
        onset=10.0,
        length=30.0,
        verdict_expected=False,
    )
    yield _unknown(
        "reports_are_refused",
        run_on(CLOUD, more={"reports_rejected": 20.0}),
        cause="healthy",
        acceptable=WELL,
        alerts=frozenset({"StallscopeReportsRejected"}),
        onset=5.0,
    )
    yield _unknown(
        "series_are_dropped",
        run_on(CLOUD, more={"series_dropped": 40.0}),
        cause="healthy",
        acceptable=WELL,
        alerts=frozenset({"StallscopeSeriesDropped"}),
        onset=5.0,
    )
    # A rank waits in half of the world's machines, and the other half can't be seen: no straggler can be named.
    yield _unknown(
        "one_rank_of_many_reports",
        run_on(SERVER_4, missing=(1, 2, 3), measures_communication=True),
        acceptable=WELL,
        alerts=frozenset({"TrainingTelemetryMissing"}),
        forbidden=frozenset({"straggler_rank", "straggler_hw", "straggler_input", "scaling_inefficient"}),
    )


CASES: tuple[Case, ...] = tuple(_cases())
