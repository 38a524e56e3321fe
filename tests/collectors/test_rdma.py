from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.node.collectors.base import NotPresent
from stallscope.node.collectors.rdma import Rdma
from tests.collectors.recorded import copy_of, source_at, values

PORT = "sys/class/infiniband/mlx5_0/ports/1/counters"


def test_words_of_four_bytes_become_bytes() -> None:
    read = values(source_at(Rdma, "gpu_server"))
    assert read["rdma_receive_bytes_total", "mlx5_0", "1"] == 1_000_000_000_000
    assert read["rdma_transmit_bytes_total", "mlx5_0", "1"] == 960_000_000_000
    assert read["rdma_receive_bytes_total", "mlx5_1", "1"] == 5000
    assert read["rdma_transmit_bytes_total", "mlx5_1", "1"] == 10000


def test_a_port_that_cannot_count_is_absent() -> None:
    assert {key[1] for key in values(source_at(Rdma, "gpu_server"))} == {"mlx5_0", "mlx5_1"}  # and not mlx5_2


def test_the_wide_counters_of_old_kernels_go_before_the_narrow_ones() -> None:
    assert values(source_at(Rdma, "old_kernel")) == {
        ("rdma_receive_bytes_total", "mlx4_0", "2"): 20_000_000_000,
        ("rdma_transmit_bytes_total", "mlx4_0", "2"): 24_000_000_000,
    }


def test_a_missing_counter_takes_only_its_own_series_along(tmp_path: Path) -> None:
    root = copy_of("gpu_server", tmp_path)
    (root / PORT / "port_rcv_data").unlink()
    read = values(source_at(Rdma, root))
    assert ("rdma_receive_bytes_total", "mlx5_0", "1") not in read
    assert len(read) == 4


def test_counters_follow_the_kernel(tmp_path: Path) -> None:
    root = copy_of("gpu_server", tmp_path)
    source = source_at(Rdma, root)
    before = values(source)
    (root / PORT / "port_rcv_data").write_text("250000000001\n")
    assert values(source) == {**before, ("rdma_receive_bytes_total", "mlx5_0", "1"): 1_000_000_000_004}


@pytest.mark.parametrize("tree", ["workstation", "container"])
def test_a_machine_without_such_ports_has_no_series_and_no_failure(tree: str) -> None:
    with pytest.raises(NotPresent):
        source_at(Rdma, tree).read()


def test_ports_that_count_nothing_at_all_are_no_failure_either(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/efa_0/ports/1/hw_counters").mkdir(parents=True)
    with pytest.raises(NotPresent):
        source_at(Rdma, tmp_path).read()


@pytest.mark.parametrize("content", ["many\n", "", "12 34\n", "250000"])
def test_nonsense_is_refused_with_its_file(tmp_path: Path, content: str) -> None:
    root = copy_of("gpu_server", tmp_path)
    (root / PORT / "port_rcv_data").write_text(content)
    with pytest.raises(ValueError, match="mlx5_0/ports/1/counters/port_rcv_data: "):
        values(source_at(Rdma, root))


@pytest.mark.parametrize(
    ("state", "rate", "bytes_per_second"),
    [
        ("4: ACTIVE", "100 Gb/sec (4X EDR)", 12.5e9),
        ("4: ACTIVE", "2.5 Gb/sec (1X SDR)", 0.3125e9),
        ("1: DOWN", "40 Gb/sec (4X QDR)", 0),
        ("2: INIT", None, 0),
        ("4: ACTIVE", None, None),
        ("4: ACTIVE", "unknown", None),
        (None, "100 Gb/sec (4X EDR)", None),
    ],
)
def test_a_port_has_the_speed_of_an_active_link(
    state: str | None, rate: str | None, bytes_per_second: float | None, tmp_path: Path
) -> None:
    root = copy_of("gpu_server", tmp_path)
    for name, text in (("state", state), ("rate", rate)):
        if text is not None:
            (root / PORT).with_name(name).write_text(f"{text}\n")
    read = values(source_at(Rdma, root))
    assert read.get(("rdma_link_bytes_per_second", "mlx5_0", "1")) == bytes_per_second
    assert read["rdma_link_bytes_per_second", "mlx5_1", "1"] == 12.5e9
