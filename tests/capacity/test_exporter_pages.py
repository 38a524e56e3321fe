"""Two pages of the exporter add to the driver's values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallscope.common.xids import xids_of_hardware
from stallscope.model.clients.exposition import Page
from stallscope.node.drivers.device import Identity
from stallscope.tools.capacity.exporter import WANTED, with_exporter
from stallscope.tools.capacity.gpu import GpuNow

NOW = 1_000_000.0
GPU = GpuNow(Identity(0, "GPU-0", "H100", "", "", "", "", ""))
INSTANCE = GpuNow(Identity(0, "MIG-0", "H100", "", "", "", "", "", mig="1g.10gb", parent_uuid="GPU-0"))


def page(*, at: float, busy: float, active: float, more: str = "") -> Page:
    gpu = 'gpu="0",uuid="GPU-0"'
    return Page(
        f"stallscope_gpu_last_reading_timestamp_seconds{{{gpu}}} {at}\n"
        f"stallscope_gpu_busy_seconds_total{{{gpu}}} {busy}\n"
        f"stallscope_gpu_sm_active_seconds_total{{{gpu}}} {active}\n{more}",
        WANTED,
    )


BEFORE, AFTER = page(at=NOW - 2, busy=100, active=50), page(at=NOW, busy=101, active=50.5)


def test_counters_give_activity_where_the_driver_has_no_value() -> None:
    (gpu,) = with_exporter([GPU], BEFORE, AFTER, NOW)
    assert (gpu.busy, gpu.busy_seconds, gpu.busy_now, gpu.sm_active) == (0.5, 2.0, 0.5, 0.25)


def test_values_of_the_driver_take_precedence() -> None:
    reported = replace(GPU, busy=0.1, busy_seconds=16.0, busy_now=0.0, sm_active=0.05)
    assert with_exporter([reported], BEFORE, AFTER, NOW) == [reported]


@pytest.mark.parametrize("later", [BEFORE, page(at=NOW, busy=1, active=1), Page("", WANTED)])
def test_pages_without_a_difference_add_nothing(later: Page) -> None:
    assert with_exporter([GPU], BEFORE, later, NOW) == [GPU]


def test_errors_of_the_hardware_within_the_hour_are_ills_of_the_gpu_and_its_instances() -> None:
    xids = "".join(
        f'stallscope_gpu_xid_last_timestamp_seconds{{gpu="0",uuid="GPU-0",xid="{xid}"}} {NOW - ago}\n'
        for xid, ago in (("79", 120), ("48", 4000), ("31", 10))
    )
    for gpu in with_exporter([GPU, INSTANCE], BEFORE, page(at=NOW, busy=101, active=51, more=xids), NOW):
        assert gpu.faults == (
            "Xid 79 2 min ago: drain and reboot the node, and reseat the GPU if the error comes back",
        )


def test_the_hardwares_errors_are_those_of_the_rules() -> None:
    xids = xids_of_hardware()
    assert {"48", "64", "74", "79", "95", "119"} <= xids.keys()
    assert not {"13", "31", "43", "45", "94"} & xids.keys()


def test_runs_on_a_gpu_are_listed() -> None:
    run = 'stallscope_training_rank_gpu_info{gpu="0",uuid="GPU-0",run="res\\"net",rank="0"} 1\n'
    (gpu,) = with_exporter([GPU], BEFORE, page(at=NOW, busy=101, active=51, more=run), NOW)
    assert gpu.runs == ('res"net',)
