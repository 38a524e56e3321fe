from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stallscope.node.collectors.base import Collector, NotPresent
from stallscope.node.collectors.network import Network
from stallscope.node.sampling.clock import ScriptedClock
from tests.collectors.recorded import copy_of, edit, source_at, values


def devices(source: Collector) -> set[str]:
    return {key[1] for key in values(source)}


def test_every_family_is_read() -> None:
    read = values(source_at(Network, "workstation"))
    assert {key[0]: value for key, value in read.items() if key[1] == "enp4s0"} == {
        "network_receive_bytes_total": 81234567890,
        "network_transmit_bytes_total": 1234567890,
        "network_drops_total": 40 + 2,
        "network_errors_total": 3 + 1,
        "network_link_bytes_per_second": 2500 * 1_000_000 / 8,
    }


def test_bridges_tunnels_and_loopback_are_left_out() -> None:
    assert devices(source_at(Network, "workstation")) == {"enp4s0", "wlp5s0"}


def test_a_bond_counts_and_its_ports_do_not() -> None:
    read = values(source_at(Network, "gpu_server"))
    assert {key[1] for key in read} == {"bond0", "ib0"}
    assert read["network_receive_bytes_total", "bond0"] == 1_000_000_000_000
    assert read["network_link_bytes_per_second", "bond0"] == 25_000_000_000


def test_a_port_that_leaves_its_bond_counts_by_itself(tmp_path: Path) -> None:
    root = copy_of("gpu_server", tmp_path)
    source = source_at(Network, root)
    values(source)
    shutil.rmtree(root / "sys/class/net/ens1f0np0/master")
    read = values(source)
    assert {key[1] for key in read} == {"bond0", "ens1f0np0", "ib0"}
    assert read["network_link_bytes_per_second", "ens1f0np0"] == 12_500_000_000


def test_a_virtual_function_behind_a_synthetic_interface_is_not_counted_twice(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "sys/class/net/wlp5s0/master/device").mkdir(parents=True)
    assert devices(source_at(Network, root)) == {"enp4s0"}


def test_a_port_of_a_bridge_still_counts(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "sys/class/net/enp4s0/master/bridge").mkdir(parents=True)
    assert "enp4s0" in devices(source_at(Network, root))


def test_inside_a_container_the_way_out_counts_and_nothing_else() -> None:
    read = values(source_at(Network, "container"))
    assert read == {
        ("network_receive_bytes_total", "eth0"): 5000,
        ("network_transmit_bytes_total", "eth0"): 6000,
        ("network_drops_total", "eth0"): 2 + 4,
        ("network_errors_total", "eth0"): 1 + 3,
        ("network_link_bytes_per_second", "eth0"): 1_250_000_000,
    }


def test_numbers_that_touch_the_name_are_read() -> None:
    assert values(source_at(Network, "old_kernel"))["network_receive_bytes_total", "eth0"] == 123456789


@pytest.mark.parametrize("speed", ["-1\n", "0\n", "4294967295\n", "", None])
def test_an_unknown_speed_is_absent(tmp_path: Path, speed: str | None) -> None:
    root = copy_of("workstation", tmp_path)
    file = root / "sys/class/net/enp4s0/speed"
    if speed is None:
        file.unlink()
    else:
        file.write_text(speed)
    read = values(source_at(Network, root))
    assert ("network_link_bytes_per_second", "enp4s0") not in read
    assert ("network_receive_bytes_total", "enp4s0") in read


def test_the_speed_is_read_once_a_minute(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    clock = ScriptedClock()
    source = source_at(Network, root, clock)
    speed = ("network_link_bytes_per_second", "enp4s0")
    assert values(source)[speed] == 312_500_000
    (root / "sys/class/net/enp4s0/speed").write_text("1000\n")
    clock.advance(59.0)
    assert values(source)[speed] == 312_500_000
    clock.advance(1.0)
    assert values(source)[speed] == 125_000_000


def test_counters_follow_the_kernel(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    source = source_at(Network, root)
    before = values(source)
    edit(root / "proc/net/dev", "81234567890", "81234569999")
    changed = ("network_receive_bytes_total", "enp4s0")
    assert values(source) == {**before, changed: 81234569999}


def test_an_interface_that_goes_takes_only_its_own_series_along(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    source = source_at(Network, root)
    values(source)
    lines = (root / "proc/net/dev").read_text().splitlines()
    (root / "proc/net/dev").write_text("\n".join(line for line in lines if "wlp5s0" not in line) + "\n")
    assert devices(source) == {"enp4s0"}


def test_loopback_alone_is_no_network(tmp_path: Path) -> None:
    root = copy_of("container", tmp_path)
    (root / "sys/class/net/eth0/operstate").write_text("down\n")
    with pytest.raises(NotPresent):
        source_at(Network, root).read()


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("81234567890", "8123x567890", "'enp4s0: 8123x"),
        ("enp4s0: 81234567890 71234567", "enp4s0: 81234567890\nenp4s1: 5 5", "'enp4s0: 81234567890'"),
        ("enp4s0:", "enp4s0 ", "'enp4s0  "),
    ],
)
def test_nonsense_is_refused_with_file_and_line(tmp_path: Path, before: str, after: str, shown: str) -> None:
    root = copy_of("workstation", tmp_path)
    edit(root / "proc/net/dev", before, after)
    with pytest.raises(ValueError, match=f"proc/net/dev: expected .*: {shown}"):
        values(source_at(Network, root))


def test_a_nonsensical_speed_is_refused_with_its_file(tmp_path: Path) -> None:
    root = copy_of("workstation", tmp_path)
    (root / "sys/class/net/enp4s0/speed").write_text("fast\n")
    with pytest.raises(ValueError, match=r"sys/class/net/enp4s0/speed: .*: 'fast'"):
        values(source_at(Network, root))


@pytest.mark.parametrize(("length", "problem"), [(0, "below two lines"), (260, "middle of a line")])
def test_a_file_that_breaks_off_is_refused(tmp_path: Path, length: int, problem: str) -> None:
    root = copy_of("workstation", tmp_path)
    whole = (root / "proc/net/dev").read_text()
    (root / "proc/net/dev").write_text(whole[:length])
    with pytest.raises(ValueError, match=f"proc/net/dev: .*{problem}"):
        values(source_at(Network, root))


def test_a_wrong_root_is_a_failure_and_not_an_absence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="proc/net/dev"):
        values(source_at(Network, tmp_path))
