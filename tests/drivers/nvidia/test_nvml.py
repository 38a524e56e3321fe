"""Sessions with the driver, over the real pynvml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.nvidia.asking import Asking
from tests.nvml_library.stand_in import DriverState, NvmlStandIn


def test_a_machine_without_the_library_says_so() -> None:
    with Asking() as child:
        assert child.do("driver.open()") == ["DriverUnavailable", "library_not_found"]


def test_a_machine_without_the_binding_says_how_to_get_it() -> None:
    with Asking() as child:
        child.do('sys.modules["pynvml"] = None')
        assert child.do("driver.open()") == ["DriverUnavailable", "binding_missing"]
        child.do("try:\n    driver.open()\nexcept DriverError as problem:\n    message = str(problem)")
        assert "pip install" in child.ask("message")


def test_a_package_that_only_shares_the_bindings_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n")
    with Asking(PYTHONPATH=str(tmp_path)) as child:
        assert child.do("driver.open()") == ["DriverUnavailable", "binding_incompatible"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (DriverState.NOT_LOADED, "driver_not_loaded"),
        (DriverState.FORBIDDEN, "no_permission"),
        (DriverState.MISMATCHED, "version_mismatch"),
    ],
)
def test_a_driver_that_refuses_is_unavailable_for_its_own_reason(
    nvml_stand_in: NvmlStandIn, state: DriverState, reason: str
) -> None:
    nvml_stand_in.set_driver(state)
    with Asking(nvml_stand_in) as child:
        assert child.do("driver.open()") == ["DriverUnavailable", reason]


def test_a_driver_that_refuses_under_way_is_unavailable(asking: Asking, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.set_driver(DriverState.FORBIDDEN)
    assert asking.ask("driver.devices()") == ["DriverUnavailable", "no_permission"]


def test_nothing_is_asked_of_a_driver_that_is_not_open(nvml_stand_in: NvmlStandIn) -> None:
    with Asking(nvml_stand_in) as child:
        assert child.ask("driver.devices()") == ["DriverUnavailable", "uninitialized"]
        assert child.ask("driver.listen([])") == ["DriverUnavailable", "uninitialized"]
    assert nvml_stand_in.calls() == 0


def test_devices_of_a_session_that_was_closed_answer_no_more(asking: Asking, nvml_stand_in: NvmlStandIn) -> None:
    asking.do("driver.close()")
    nvml_stand_in.reset_counts()
    assert asking.ask("gpu.read('power')") == ["DriverUnavailable", "uninitialized"]
    asking.do("driver.open()")
    assert asking.ask("gpu.read('power')") == ["DriverUnavailable", "uninitialized"]
    assert nvml_stand_in.calls("nvmlDeviceGetPowerUsage") == 0


def test_a_reloaded_driver_works_again_after_open(asking: Asking, nvml_stand_in: NvmlStandIn) -> None:
    assert asking.ask("gpu.read('power')")["power_watts"] == 69.85
    nvml_stand_in.reload_driver()
    assert asking.ask("gpu.read('power')") == ["DriverUnavailable", "uninitialized"]
    asking.meet()
    assert asking.ask("gpu.read('power')")["power_watts"] == 69.85


def test_opening_an_open_driver_calls_nothing(asking: Asking, nvml_stand_in: NvmlStandIn) -> None:
    asking.do("driver.open()")
    assert nvml_stand_in.calls() == 0


def test_what_the_driver_is_asked_for_no_certain_gpu_is_counted(asking: Asking, nvml_stand_in: NvmlStandIn) -> None:
    before = asking.ask("driver.calls")
    asking.do("driver.system(); driver.devices(); gpu.read('power')")
    assert asking.ask("driver.calls") - before == 3
    assert asking.ask("gpu.calls") == nvml_stand_in.calls() - 3


def test_the_versions_of_driver_and_cuda_are_told(asking: Asking) -> None:
    assert asking.ask("[driver.system().driver_version, driver.system().cuda_version]") == ["590.48.01", "13.1"]


def test_closing_gives_everything_back(asking: Asking, nvml_stand_in: NvmlStandIn) -> None:
    asking.do("gpu.activity(); listener = driver.listen(driver.devices())")
    assert (nvml_stand_in.control.gpm_samples, nvml_stand_in.control.event_sets) == (2, 1)
    asking.do("driver.close()")
    assert (nvml_stand_in.control.gpm_samples, nvml_stand_in.control.event_sets) == (0, 0)
    assert nvml_stand_in.calls("nvmlShutdown") == 1


def test_devices_that_others_stand_for_since_the_list_changed_hold_nothing(
    asking: Asking, nvml_stand_in: NvmlStandIn
) -> None:
    asking.do("gpu.activity()")
    assert nvml_stand_in.control.gpm_samples == 2
    nvml_stand_in.remove(3)
    asking.do("driver.devices()")
    assert nvml_stand_in.control.gpm_samples == 0
    assert asking.ask("gpu.activity()") is None, "what reads the old device meanwhile takes nothing new"
    assert nvml_stand_in.control.gpm_samples == 0
