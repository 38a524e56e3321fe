from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.node.collectors.base import Collector
from stallscope.node.collectors.cpu import Cpu
from stallscope.node.sampling.clock import ScriptedClock
from tests.collectors.recorded import copy_of, edit, source_at, values

BUSIEST = ("busiest_cpu_seconds_total",)


class Machine:
    """A tree whose CPU times a test sets; ticks are user, nice, system, idle, iowait, irq, softirq, steal."""

    def __init__(self, folder: Path) -> None:
        self.root = copy_of("workstation", folder)
        self.clock = ScriptedClock()
        self.source: Collector = source_at(Cpu, self.root, self.clock)

    def show(self, *cpus: tuple[int, ...], names: tuple[int, ...] | None = None) -> Machine:
        total = [sum(column) for column in zip(*cpus, strict=True)]
        rows = [("cpu ", total), *((f"cpu{n}", row) for n, row in zip(names or range(len(cpus)), cpus, strict=True))]
        lines = [f"{name} {' '.join(map(str, row))} 0 0" for name, row in rows]
        (self.root / "proc/stat").write_text("\n".join([*lines, "intr 0", "btime 1732170000"]) + "\n")
        return self

    def busiest(self) -> object:
        return values(self.source)[BUSIEST]


def test_time_is_summed_by_mode() -> None:
    read = values(source_at(Cpu, "workstation"))
    assert {key[1]: value for key, value in read.items() if key[0] == "cpu_seconds_total"} == {
        "user": 4021.0,  # with nice
        "system": 1023.0,  # with irq and softirq
        "iowait": 404.0,
        "idle": 36003.0,
        "other": 0.0,
    }


def test_stolen_time_is_other_and_guests_are_not_counted_twice() -> None:
    read = values(source_at(Cpu, "gpu_server"))
    assert read["cpu_seconds_total", "other"] == 0.56
    assert read["cpu_seconds_total", "user"] == 4001.08


def test_the_number_of_cpus_and_names_are_exported() -> None:
    read = values(source_at(Cpu, "gpu_server"))
    assert read["cpus",] == 8
    assert read["info", "5.15.0-1066-nvidia", "Intel(R) Xeon(R) Platinum 8480C"] == 1


def test_blanks_in_a_cpu_name_are_evened_out() -> None:
    read = values(source_at(Cpu, "old_kernel"))
    assert ("info", "2.6.32-754.35.1.el6.x86_64", "Intel(R) Xeon(R) CPU E5520 @ 2.27GHz") in read


def test_a_kernel_that_names_no_cpu_leaves_the_name_empty() -> None:
    assert ("info", "6.1.0-27-cloud-arm64", "") in values(source_at(Cpu, "container"))


def test_lines_of_old_kernels_are_shorter() -> None:
    assert values(source_at(Cpu, "old_kernel"))["cpu_seconds_total", "system"] == 10.3


@pytest.mark.parametrize(("missing", "families"), [("sys/kernel/osrelease", 7), ("cpuinfo", 8)])
def test_a_missing_name_takes_no_other_series_along(tmp_path: Path, missing: str, families: int) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "proc" / missing).unlink()
    assert len(values(source_at(Cpu, root))) == families


def test_busiest_time_starts_at_zero_whatever_happened_before() -> None:
    assert values(source_at(Cpu, "workstation"))[BUSIEST] == 0


def test_in_each_interval_the_cpu_counts_that_was_busiest_in_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path).show((0, 0, 0, 0, 0, 0, 0, 0), (500, 0, 0, 0, 0, 0, 0, 0))
    machine.busiest()
    machine.clock.advance(1.0)
    machine.show((80, 0, 0, 20, 0, 0, 0, 0), (510, 0, 0, 90, 0, 0, 0, 0))
    assert machine.busiest() == pytest.approx(0.8)
    machine.clock.advance(1.0)
    machine.show((90, 0, 0, 110, 0, 0, 0, 0), (540, 10, 10, 100, 0, 5, 5, 0))
    assert machine.busiest() == pytest.approx(0.8 + 0.6)


def test_waiting_for_input_and_output_is_not_busy(tmp_path: Path) -> None:
    machine = Machine(tmp_path).show((0, 0, 0, 0, 0, 0, 0, 0))
    machine.busiest()
    machine.clock.advance(1.0)
    assert machine.show((0, 0, 0, 50, 50, 0, 0, 0)).busiest() == 0


def test_no_cpu_is_busy_for_longer_than_time_went_by(tmp_path: Path) -> None:
    machine = Machine(tmp_path).show((0, 0, 0, 0, 0, 0, 0, 0))
    machine.busiest()
    machine.clock.advance(1.0)
    assert machine.show((103, 0, 0, 0, 0, 0, 0, 0)).busiest() == pytest.approx(1.0)


def test_a_cpu_that_comes_back_brings_no_old_time_along(tmp_path: Path) -> None:
    machine = Machine(tmp_path).show((0, 0, 0, 100, 0, 0, 0, 0), (900, 0, 0, 100, 0, 0, 0, 0))
    machine.busiest()
    for shown in [((10, 0, 0, 190, 0, 0, 0, 0),), ((20, 0, 0, 280, 0, 0, 0, 0), (960, 0, 0, 100, 0, 0, 0, 0))]:
        machine.clock.advance(1.0)
        machine.show(*shown)
        busiest = machine.busiest()
    assert busiest == pytest.approx(0.2)
    assert values(machine.source)["cpus",] == 2


def test_cpus_are_identified_by_name_and_not_by_position(tmp_path: Path) -> None:
    machine = Machine(tmp_path).show((0,) * 8, (5000, 0, 0, 0, 0, 0, 0, 0), (0,) * 8)
    machine.busiest()
    machine.clock.advance(1.0)
    machine.show((10, 0, 0, 90, 0, 0, 0, 0), (30, 0, 0, 70, 0, 0, 0, 0), names=(0, 2))
    assert machine.busiest() == pytest.approx(0.3)


def test_a_counter_holds_where_the_kernel_takes_a_little_time_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    shown = [(0, 0, 0, 500 - ticks, ticks, 0, 0, 0) for ticks in (100, 97, 99, 104)]
    waited = [values(machine.show(ticks).source)["cpu_seconds_total", "iowait"] for ticks in shown]
    assert waited == [1.0, 1.0, 1.0, 1.04]


def test_a_counter_goes_on_from_where_it_was_when_a_cpu_takes_its_idle_time_away(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    shown = [(0, 0, 0, ticks, 0, 0, 0, 0) for ticks in (90_000, 40_000, 40_100, 40_200)]
    idle = [values(machine.show(ticks).source)["cpu_seconds_total", "idle"] for ticks in shown]
    assert idle == [900.0, 900.0, 901.0, 902.0]


@pytest.mark.parametrize(
    ("line", "nonsense"),
    [
        ("cpu1 100100 500 25100 900100 10100 100 400 0 0 0", "cpu1 100100 500 many 900100 10100 100 400 0 0 0"),
        ("cpu1 100100 500 25100 900100 10100 100 400 0 0 0", "cpu1 100100 500 25100"),
        ("cpu  400100 2000 100200 3600300 40400 500 1600 0 700 0\n", ""),
    ],
)
def test_nonsense_is_refused_with_file_and_line(tmp_path: Path, line: str, nonsense: str) -> None:
    root = copy_of("workstation", tmp_path)
    edit(root / "proc/stat", line, nonsense)
    with pytest.raises(ValueError, match=r"proc/stat: expected .*: 'cpu[01] "):
        values(source_at(Cpu, root))


def test_a_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    whole = (root / "proc/stat").read_text()
    (root / "proc/stat").write_text(whole[:140])
    with pytest.raises(ValueError, match="proc/stat: the file ends in the middle of a line"):
        values(source_at(Cpu, root))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "proc/stat").write_text("")
    with pytest.raises(ValueError, match="proc/stat: expected the lines cpu"):
        values(source_at(Cpu, root))


def test_a_refused_reading_leaves_the_counters_for_the_next(tmp_path: Path) -> None:
    machine = Machine(tmp_path).show((0, 0, 0, 0, 0, 0, 0, 0))
    machine.busiest()
    (machine.root / "proc/stat").write_text("cpu nonsense\n")
    machine.clock.advance(1.0)
    with pytest.raises(ValueError, match="proc/stat"):
        values(machine.source)
    machine.clock.advance(1.0)
    assert machine.show((150, 0, 0, 50, 0, 0, 0, 0)).busiest() == pytest.approx(1.5)


def test_a_wrong_root_is_a_failure_and_not_an_absence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="proc/stat"):
        values(source_at(Cpu, tmp_path))
