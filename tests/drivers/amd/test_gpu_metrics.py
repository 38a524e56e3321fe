from __future__ import annotations

import struct

import pytest

from stallscope.node.drivers.amd.gpu_metrics import Residencies, ThrottledTime, parse


def table(revision: int, size: int, *fields: tuple[int, str, int], version: int = 1) -> bytes:
    """A table with all bits set, as the driver begins one, and these fields: offset, format, value."""
    made = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", made, 0, size, version, revision)
    for offset, kind, value in fields:
        struct.pack_into("<" + kind, made, offset, value)
    return bytes(made)


def test_a_radeons_table_has_its_throttle_reasons() -> None:
    metrics = parse(table(3, 120, (18, "H", 41), (112, "Q", 1 << 0 | 1 << 36 | 1 << 47)))
    assert metrics is not None
    assert metrics.memory_activity == 0.41
    assert metrics.throttle_reasons == frozenset({"power_cap", "sw_thermal", "hw_thermal"})
    assert metrics.energy is None, "its unit differs by model"


@pytest.mark.parametrize(
    ("bit", "reasons"),
    [
        (0, {"power_cap"}),
        (22, {"power_cap"}),
        (34, {"sw_thermal"}),
        (44, {"hw_thermal"}),
        (57, set()),
        (60, {"other"}),
        (None, set()),
    ],
)
def test_a_bit_stands_for_a_reason(bit: int | None, reasons: set[str]) -> None:
    metrics = parse(table(3, 120, (112, "Q", 0 if bit is None else 1 << bit)))
    assert metrics is not None
    assert metrics.throttle_reasons == frozenset(reasons)


@pytest.mark.parametrize(("revision", "offset"), [(4, 24), (5, 88), (6, 16), (7, 24), (8, 24)])
def test_an_instincts_table_has_energy(revision: int, offset: int) -> None:
    metrics = parse(table(revision, 512, (offset, "Q", 65536 * 1000)))
    assert metrics is not None
    assert metrics.energy == 1000
    assert metrics.throttle_reasons is None


@pytest.mark.parametrize(("revision", "clock", "rounds"), [(6, 24, 32), (7, 32, 40), (8, 32, 40)])
def test_a_newer_instincts_table_has_throttle_residencies(revision: int, clock: int, rounds: int) -> None:
    fields = [(rounds + 4 * place, "I", place + 1) for place in range(6)]
    metrics = parse(table(revision, 512, (clock, "Q", 99), *fields))
    assert metrics is not None
    assert metrics.residencies == Residencies(99, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("revision", [3, 4, 7])
def test_fields_that_the_firmware_does_not_fill_are_absent(revision: int) -> None:
    metrics = parse(table(revision, 120 if revision == 3 else 512))
    assert metrics is not None
    assert set(metrics) == {None}


@pytest.mark.parametrize(
    "unknown",
    [
        b"",
        b"\x78",
        table(9, 512),
        table(0, 120),
        table(3, 120, version=2),
        table(3, 120)[:-1],
        table(3, 120) + b"\0",
        table(3, 100),
        table(7, 40),
    ],
)
def test_other_versions_and_cut_off_tables_are_left_alone(unknown: bytes) -> None:
    assert parse(unknown) is None


class TestThrottledTime:
    def test_is_the_share_of_rounds_in_the_time_between(self) -> None:
        time = ThrottledTime()
        time.add(Residencies(0, 1000, 0, 0, 0, 0, 0))
        seconds = time.add(Residencies(1_000_000_000, 2000, 100, 500, 10, 20, 300))
        assert seconds == pytest.approx({"power_cap": 0.5, "sw_thermal": 0.3, "hw_thermal": 0.1})

    def test_goes_on_where_a_counter_wraps(self) -> None:
        time = ThrottledTime()
        time.add(Residencies(0, 0xFFFF_FFFF - 99, 0, 0xFFFF_FFFF - 49, 0, 0, 0))
        assert time.add(Residencies(10**9, 900, 0, 50, 0, 0, 0))["power_cap"] == pytest.approx(0.1)

    @pytest.mark.parametrize(
        "restarted",
        [
            Residencies(2 * 10**9, 5, 0, 0, 0, 0, 0),
            Residencies(1, 2000, 0, 1900, 0, 0, 0),
            Residencies(2 * 10**9, 1010, 0, 800, 0, 0, 0),
        ],
    )
    def test_implausible_residencies_add_nothing(self, restarted: Residencies) -> None:
        time = ThrottledTime()
        time.add(Residencies(10**9, 1000, 0, 500, 0, 0, 0))
        assert set(time.add(restarted).values()) == {0}
