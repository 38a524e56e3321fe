from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.node.collectors.base import NotPresent
from stallscope.node.collectors.pressure import Pressure
from tests.collectors.recorded import copy_of, edit, source_at, values


def test_every_family_is_read_in_seconds() -> None:
    assert values(source_at(Pressure, "workstation")) == {
        ("pressure_waiting_seconds_total", "cpu"): 812.345678,
        ("pressure_stalled_seconds_total", "cpu"): 0,
        ("pressure_waiting_seconds_total", "memory"): 1.234567,
        ("pressure_stalled_seconds_total", "memory"): 1.2,
        ("pressure_waiting_seconds_total", "io"): 98.765432,
        ("pressure_stalled_seconds_total", "io"): 87.654321,
    }


def test_stalls_of_cpus_are_absent_where_the_kernel_does_not_report_them(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "proc/pressure/cpu").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=7000000\n")
    read = values(source_at(Pressure, root))
    assert read["pressure_waiting_seconds_total", "cpu"] == 7.0
    assert ("pressure_stalled_seconds_total", "cpu") not in read


@pytest.mark.parametrize("tree", ["container", "old_kernel"])
def test_a_kernel_without_the_account_has_no_series_and_no_failure(tree: str) -> None:
    with pytest.raises(NotPresent):
        source_at(Pressure, tree).read()


def test_a_missing_resource_takes_only_its_own_series_along(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "proc/pressure/memory").unlink()
    assert {key[1] for key in values(source_at(Pressure, root))} == {"cpu", "io"}


def test_counters_follow_the_kernel(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    source = source_at(Pressure, root)
    before = values(source)
    edit(root / "proc/pressure/io", "total=98765432", "total=99000000")
    assert values(source) == {**before, ("pressure_waiting_seconds_total", "io"): 99.0}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=much\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00\n",
        "most avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=98765432\nfull avg10=0.0",
    ],
)
def test_nonsense_is_refused_with_its_file(tmp_path: Path, content: str) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "proc/pressure/io").write_text(content)
    with pytest.raises(ValueError, match="proc/pressure/io: "):
        values(source_at(Pressure, root))
