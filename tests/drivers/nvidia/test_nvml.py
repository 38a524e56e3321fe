"""Sessions with the driver, over the real pynvml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.nvidia.driver_process import DriverProcess
from tests.nvml_library.stand_in import DriverState, NvmlStandIn


def test_a_machine_without_the_library_says_so() -> None:
    with DriverProcess() as child:
        assert child.execute("driver.open()") == ["DriverUnavailable", "library_not_found"]


def test_a_machine_without_the_binding_says_how_to_get_it() -> None:
    with DriverProcess() as child:
        child.execute('sys.modules["pynvml"] = None')
        assert child.execute("driver.open()") == ["DriverUnavailable", "binding_missing"]
        child.execute("try:\n    driver.open()\nexcept DriverError as problem:\n    message = str(problem)")
        assert "pip install" in child.evaluate("message")


def test_a_package_that_only_shares_the_bindings_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n")
    with DriverProcess(PYTHONPATH=str(tmp_path)) as child:
        assert child.execute("driver.open()") == ["DriverUnavailable", "binding_incompatible"]


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
    with DriverProcess(nvml_stand_in) as child:
        assert child.execute("driver.open()") == ["DriverUnavailable", reason]


def test_a_driver_that_refuses_under_way_is_unavailable(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    nvml_stand_in.set_driver(DriverState.FORBIDDEN)
    assert driver_process.evaluate("driver.devices()") == ["DriverUnavailable", "no_permission"]


def test_a_driver_that_is_not_open_is_not_called(nvml_stand_in: NvmlStandIn) -> None:
    with DriverProcess(nvml_stand_in) as child:
        assert child.evaluate("driver.devices()") == ["DriverUnavailable", "uninitialized"]
        assert child.evaluate("driver.listen([])") == ["DriverUnavailable", "uninitialized"]
    assert nvml_stand_in.calls() == 0


def test_devices_of_a_session_that_was_closed_answer_no_more(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    driver_process.execute("driver.close()")
    nvml_stand_in.reset_counts()
    assert driver_process.evaluate("gpu.read('power')") == ["DriverUnavailable", "uninitialized"]
    driver_process.execute("driver.open()")
    assert driver_process.evaluate("gpu.read('power')") == ["DriverUnavailable", "uninitialized"]
    assert nvml_stand_in.calls("nvmlDeviceGetPowerUsage") == 0


def test_a_reloaded_driver_works_again_after_open(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    assert driver_process.evaluate("gpu.read('power')")["power_watts"] == 69.85
    nvml_stand_in.reload_driver()
    assert driver_process.evaluate("gpu.read('power')") == ["DriverUnavailable", "uninitialized"]
    driver_process.open()
    assert driver_process.evaluate("gpu.read('power')")["power_watts"] == 69.85


def test_opening_an_open_driver_calls_nothing(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    driver_process.execute("driver.open()")
    assert nvml_stand_in.calls() == 0


def test_calls_that_concern_no_single_gpu_are_counted(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    before = driver_process.evaluate("driver.calls")
    driver_process.execute("driver.system(); driver.devices(); gpu.read('power')")
    assert driver_process.evaluate("driver.calls") - before == 3
    assert driver_process.evaluate("gpu.calls") == nvml_stand_in.calls() - 3


def test_the_versions_of_driver_and_cuda_are_read(driver_process: DriverProcess) -> None:
    assert driver_process.evaluate("[driver.system().driver_version, driver.system().cuda_version]") == [
        "590.48.01",
        "13.1",
    ]


def test_closing_gives_everything_back(driver_process: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    driver_process.execute("gpu.activity(); listener = driver.listen(driver.devices())")
    assert (nvml_stand_in.control.gpm_samples, nvml_stand_in.control.event_sets) == (2, 1)
    driver_process.execute("driver.close()")
    assert (nvml_stand_in.control.gpm_samples, nvml_stand_in.control.event_sets) == (0, 0)
    assert nvml_stand_in.calls("nvmlShutdown") == 1


def test_devices_that_others_stand_for_since_the_list_changed_hold_nothing(
    driver_process: DriverProcess, nvml_stand_in: NvmlStandIn
) -> None:
    driver_process.execute("gpu.activity()")
    assert nvml_stand_in.control.gpm_samples == 2
    nvml_stand_in.remove(3)
    driver_process.execute("driver.devices()")
    assert nvml_stand_in.control.gpm_samples == 0
    assert driver_process.evaluate("gpu.activity()") is None, "what reads the old device meanwhile takes nothing new"
    assert nvml_stand_in.control.gpm_samples == 0
