"""The gate to the real pynvml: plain data comes out, in one driver call each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.node.drivers.nvidia.library import _Buffers
from tests.drivers.nvidia.driver_process import DriverProcess
from tests.nvml_library.stand_in import GpuState, Nonsense, NvmlStandIn

SCRIPT = """
from stallscope.node.drivers.nvidia.library import Handle, MissingFunction, NvmlFailure, PynvmlLibrary
library = PynvmlLibrary()
library.load()

def call(*arguments):
    try:
        return library.call(*arguments)
    except NvmlFailure as failure:
        return failure.code
    except MissingFunction:
        return "missing"

call("nvmlInit")
device = call("nvmlDeviceGetHandleByIndex", 0)
"""


@pytest.fixture
def library(nvml_stand_in: NvmlStandIn) -> Iterator[DriverProcess]:
    with DriverProcess(nvml_stand_in) as child:
        assert child.execute(SCRIPT) is None
        nvml_stand_in.reset_counts()
        yield child


def test_a_library_that_was_not_loaded_says_so(nvml_stand_in: NvmlStandIn) -> None:
    with DriverProcess(nvml_stand_in) as child:
        child.execute(SCRIPT.replace("library.load()", "").replace("device = ", ""))
        assert child.evaluate('call("nvmlInit")') == 1
        assert child.evaluate('call("nvmlDeviceGetSamples", Handle(), 1, 0)') == 1


def test_handles_are_equal_where_the_device_is(library: DriverProcess) -> None:
    assert library.evaluate('device == call("nvmlDeviceGetHandleByIndex", 0)') is True
    assert library.evaluate('len({device, *(call("nvmlDeviceGetHandleByIndex", each) for each in (0, 1))})') == 2


def test_what_the_driver_refuses_comes_with_its_code(library: DriverProcess) -> None:
    assert library.evaluate('call("nvmlDeviceGetHandleByIndex", 99)') == 2
    assert library.evaluate('call("nvmlDeviceGetMigDeviceHandleByIndex", device, 0)') == 6


def test_an_unknown_function_is_missing(library: DriverProcess) -> None:
    assert library.evaluate('call("nvmlDeviceGetFortune", device)') == "missing"


def test_functions_that_an_older_driver_lacks_are_missing(tmp_path: Path) -> None:
    with DriverProcess(NvmlStandIn(tmp_path, old_driver=True)) as child:
        child.execute(SCRIPT)
        assert child.evaluate('call("nvmlDeviceGetFieldValues", device, ((83, 0),))') == "missing"
        assert child.evaluate('call("nvmlDeviceGetMPSComputeRunningProcesses", device)') == "missing"
        assert child.evaluate('call("nvmlDeviceGetArchitecture", device)') == "missing"
        assert child.evaluate('call("nvmlDeviceGetMemoryInfo", device).reserved') is None


@pytest.mark.parametrize(
    ("nonsense", "value"), [(None, 33), (Nonsense.NOT_A_NUMBER, "nan"), (Nonsense.ALL_BITS_SET, 0xFFFF_FFFF)]
)
def test_samples_are_read_as_their_type_says(
    library: DriverProcess, nvml_stand_in: NvmlStandIn, nonsense: Nonsense | None, value: object
) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.utilization = 33
    if nonsense is not None:
        gpu.state, gpu.nonsense = GpuState.NONSENSE, nonsense
    library.execute('value = call("nvmlDeviceGetSamples", device, 1, 0)[-1][1]')
    assert library.evaluate('"nan" if value != value else value') == value


def test_every_field_has_its_own_code(library: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    answers = library.evaluate('call("nvmlDeviceGetFieldValues", device, ((82, 0), (9999, 0), (165, 3), (165, 99)))')
    assert answers == [[0, 48], [3, None], [0, 1], [2, None]]
    assert nvml_stand_in.counts() == {"nvmlDeviceGetFieldValues": 1}


def test_an_answer_is_never_that_of_the_time_before(library: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    assert library.evaluate('call("nvmlDeviceGetFieldValues", device, ((82, 0),))') == [[0, 48]]
    nvml_stand_in.gpu[0].memory_temperature = 50
    assert library.evaluate('call("nvmlDeviceGetFieldValues", device, ((82, 0),))') == [[0, 50]]


def test_lists_take_one_call_and_grow_when_they_must(library: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    gpu = nvml_stand_in.gpu[0]
    gpu.run(*((pid, pid << 20, False) for pid in range(1, 15)))
    assert len(library.evaluate('call("nvmlDeviceGetComputeRunningProcesses", device)')) == 14
    assert nvml_stand_in.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 1
    library.execute(
        "from stallscope.node.drivers.nvidia import library as module;"
        "module._PROCESSES_AT_MOST = 2; module._SAMPLES_AT_MOST = 2"
    )
    library.execute(SCRIPT)
    nvml_stand_in.reset_counts()
    for _ in range(2):
        found = library.evaluate('call("nvmlDeviceGetComputeRunningProcesses", device)')
        assert [pid for pid, _ in found] == list(range(1, 15))
    # Room that was needed once is kept.
    assert nvml_stand_in.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 3


def test_texts_come_as_the_driver_wrote_them(library: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.gpu[0].name = b"H\xff200"
    assert library.evaluate('call("nvmlDeviceGetName", device).decode(errors="replace")') == "H\ufffd200"


def test_structures_are_plain(library: DriverProcess) -> None:
    assert library.evaluate('vars(call("nvmlDeviceGetUtilizationRates", device))') == {"gpu": 0, "memory": 0}
    assert library.evaluate('vars(call("nvmlDeviceGetPciInfo", device)) == {"busId": b"00000000:10:00.0"}') is True
    assert library.evaluate('call("nvmlDeviceGetCudaComputeCapability", device)') == [9, 0]


def test_metrics_between_two_samples_come_with_a_code_each(library: DriverProcess) -> None:
    library.execute(
        """
import time
first, second = call("nvmlGpmSampleAlloc"), call("nvmlGpmSampleAlloc")
call("nvmlGpmSampleGet", device, first)
time.sleep(0.01)
call("nvmlGpmSampleGet", device, second)
"""
    )
    assert library.evaluate('call("nvmlGpmMetricsGet", first, second, (2, 9999, 10))') == [[0, 0.0], [3, 0.0], [0, 0.0]]


def test_a_wait_without_events_times_out(library: DriverProcess) -> None:
    library.execute('events = call("nvmlEventSetCreate"); call("nvmlDeviceRegisterEvents", device, 8, events)')
    assert library.evaluate('call("nvmlEventSetWait", events, 1)') == 10


def test_an_event_names_its_device(library: DriverProcess, nvml_stand_in: NvmlStandIn) -> None:
    library.execute('events = call("nvmlEventSetCreate"); call("nvmlDeviceRegisterEvents", device, 8, events)')
    nvml_stand_in.raise_xid(0, 48)
    library.execute('where, event_type, data = call("nvmlEventSetWait", events, 1000)')
    assert library.evaluate("[where == device, event_type, data]") == [True, 8, 48]


def test_ever_other_batches_take_no_memory_without_end() -> None:
    buffers = _Buffers()
    for number in range(1000):
        assert bytes(buffers.template("fields", (number,), lambda: b"blank").bytes) == b"blank"
    assert len(buffers._known) <= 64
