"""GPUs that leave the machine and come to it. Each test has a machine of its own, since a GPU that left stays known."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.machine import Machine, Page
from tests.nvml_library.stand_in import GpuState

STAYS = {"info", "up", "lost_info", "last_reading_timestamp_seconds"}
NEW_WATTS = 69.85
"""Power draw of a GPU that is added to the node; `own_power` never sets this value."""


def own_power(machine: Machine) -> dict[str, float]:
    """Give each GPU a power draw of its own, to identify its values; return watts by UUID."""
    for index, gpu in enumerate(machine.node.gpu):
        gpu.power_milliwatts = 1000 * (100 + 7 * index + int(gpu.uuid[-2:], 16))
    return {gpu.uuid.decode(): gpu.power_milliwatts / 1000 for gpu in machine.node.gpu}


def until(machine: Machine, watts: dict[str, float], condition: Callable[[Page], object]) -> Page:
    """The first page that is as wanted; on none of those before may a GPU show another's figures."""

    def judged(page: Page) -> object:
        for uuid, own in watts.items():
            assert page.get("power_watts", uuid=uuid) in {own, None}, f"{uuid} shows figures of another GPU"
        return condition(page)

    return machine.until(judged)


def places(page: Page, machine: Machine) -> list[str]:
    """The index that the page gives each GPU that the driver shows."""
    return [labels["gpu"] for uuid in machine.uuids() for labels, _ in page.series("up", uuid=uuid)]


def test_a_gpu_that_is_taken_out_is_lost_and_those_after_it_move_down(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    watts = own_power(machine)
    machine.start()
    before = machine.until_healthy()
    assert places(before, machine) == ["0", "1", "2", "3"]
    gone = machine.uuid(1)
    machine.node.remove(1)
    machine.notice_hardware()
    page = until(machine, watts, lambda page: page.state(gone) == "gpu_lost")
    assert page.families(gone) == STAYS
    page = until(
        machine,
        watts,
        lambda page: (
            places(page, machine) == ["0", "1", "2"]
            and all("power_watts" in page.families(uuid) for uuid in machine.uuids())
        ),
    )
    assert page.state(gone) == "gpu_lost"
    assert page.read_at(gone) < min(page.read_at(uuid) for uuid in machine.uuids())


def test_a_gpu_that_is_put_in_is_seen_though_only_a_new_session_shows_it(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine(gpus=3)
    machine.node.control.plug_needs_init = 1
    own_power(machine)
    machine.start()
    before = machine.until_healthy()
    uuids = machine.uuids()
    machine.node.add()
    machine.notice_hardware()
    new = machine.uuid(3)
    assert before.state(new) is None
    page = machine.until_healthy(
        lambda page: all(page.get("busy_seconds_total", uuid=uuid) is not None for uuid in uuids)
    )
    assert page.get("power_watts", uuid=new) == NEW_WATTS
    for uuid in uuids:
        assert (page.get("busy_seconds_total", uuid=uuid) or 0.0) >= (
            before.get("busy_seconds_total", uuid=uuid) or 0.0
        )


def test_a_gpu_that_is_swapped_is_lost_and_the_new_one_stands_at_its_index(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    watts = own_power(machine)
    machine.start()
    machine.until_healthy()
    old = machine.uuid(2)
    machine.node.gpu[2].state = GpuState.LOST
    until(machine, watts, lambda page: page.state(old) == "gpu_lost")
    machine.node.swap(2)
    new = machine.uuid(2)
    watts[new] = NEW_WATTS
    page = until(machine, watts, lambda page: page.state(new) == "up" and "power_watts" in page.families(new))
    assert page.state(old) == "gpu_lost"
    assert page.families(old) == STAYS
    assert places(page, machine) == ["0", "1", "2", "3"]


def test_a_gpu_with_persistence_mode_off_is_named_in_the_log_once(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    machine.node.gpu[2].persistence = 0
    machine.start()
    page = machine.until_healthy()
    assert [page.get("persistence_mode", uuid=uuid) for uuid in machine.uuids()] == [1, 1, 0, 1]
    machine.logged(f"level=warning .*{machine.uuid(2)}.*persistence mode is off.*nvidia-smi -pm 1")
    for _ in range(2):
        calls = machine.node.calls("nvmlDeviceGetPersistenceMode")
        machine.node.reload_driver()
        machine.until(lambda _page, calls=calls: machine.node.calls("nvmlDeviceGetPersistenceMode") >= calls + 4)  # type: ignore[misc]
        page = machine.until_healthy()
    machine.until_newer(page)
    assert len([line for line in machine.lines if "persistence mode" in line]) == 1
