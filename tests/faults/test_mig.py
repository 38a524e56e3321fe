"""GPUs that are split into MIG instances, split again and made whole while the exporter runs."""

from __future__ import annotations

from tests.faults.machine import SOURCE_UP, Machine, Page

GIBIBYTE = 1 << 30


def parts(machine: Machine, index: int) -> list[str]:
    """UUIDs of a GPU's instances."""
    gpu = machine.node.gpu[index]
    return [each.uuid.decode() for each in gpu.instance[: gpu.instances]]


def states(page: Page, uuids: list[str]) -> list[str | None]:
    return [page.state(uuid) for uuid in uuids]


def test_instances_come_and_go_with_names_of_their_own(machine: Machine) -> None:
    gpu, whole, others = machine.node.gpu[1], machine.uuid(1), [machine.uuid(index) for index in (0, 2, 3)]
    before = machine.until_healthy(lambda page: page.get("busy_seconds_total", uuid=whole) is not None)

    gpu.cut(("1g.10gb", 10 * GIBIBYTE), ("1g.10gb", 10 * GIBIBYTE), ("3g.40gb", 40 * GIBIBYTE))
    machine.node.raise_mig_change(1)
    first = parts(machine, 1)
    assert not before.series("up", uuid=first[0])
    page = machine.until(
        lambda page: (
            states(page, [*first, whole]) == ["up"] * 4
            and page.get("power_watts", uuid=whole) is not None  # power is the board's
            and page.get("memory_total_bytes", uuid=first[2]) is not None
        )
    )
    assert [page.series("up", uuid=uuid)[0][0] for uuid in first] == [
        {"gpu": "1", "uuid": uuid, "mig": profile}
        for uuid, profile in zip(first, ("1g.10gb", "1g.10gb", "3g.40gb"), strict=True)
    ]
    assert page.get("memory_total_bytes", uuid=first[2]) == 40 * GIBIBYTE
    assert page.get("power_watts", uuid=first[0]) is None, (
        "a value of the whole GPU is never reported for a MIG instance"
    )
    machine.until(lambda page: page.get("busy_seconds_total", uuid=first[0]) is not None)

    gpu.cut(("7g.80gb", 80 * GIBIBYTE))
    machine.node.raise_mig_change(1)
    second = parts(machine, 1)
    page = machine.until(
        lambda page: (
            states(page, second + first) == ["up", *["mig_reconfigured"] * 3]
            and page.get(SOURCE_UP, source="nvidia") == 1
        )
    )
    assert page.families(first[0]) == {"info", "up", "lost_info", "last_reading_timestamp_seconds"}

    gpu.uncut()
    machine.node.raise_mig_change(1)
    page = machine.until_healthy(
        lambda page: (
            states(page, first + second) == ["mig_reconfigured"] * 4
            and page.get("busy_seconds_total", uuid=whole) is not None
            and all(page.families(uuid) >= before.families(uuid) for uuid in others)
        )
    )
    for uuid in others:
        assert page.read_at(uuid) > before.read_at(uuid)
