"""A masked capture does not identify its machine, and its references stay consistent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stallscope.node.drivers.nvidia.capture import Call, Capture, Failure, Handle, text
from stallscope.node.drivers.nvidia.identifiers import masked
from tests.drivers.nvidia.test_capture import HEADER

UUIDS = ("GPU-6f1c2a33-8a5e-4d0b-9b1e-0c4c1d2e3f40", "GPU-6f1c2a33-8a5e-4d0b-9b1e-0c4c1d2e3f41")
INSTANCE = "MIG-aaaabbbb-cccc-dddd-eeee-ffff00001111"


def call(name: str, answer: Any, *arguments: Any) -> Call:
    return Call(0.0, 0.0, name, arguments, answer)


def answers(*calls: Call) -> list[Any]:
    return [each.answer for each in masked(Capture(HEADER, (), calls)).calls]


def test_uuids_are_numbered_and_stay_the_same_wherever_they_stand() -> None:
    first, second, again, instance = answers(
        call("nvmlDeviceGetUUID", UUIDS[0].encode()),
        call("nvmlDeviceGetUUID", UUIDS[1].encode()),
        call("other", f"about {UUIDS[0]}: MIG-{UUIDS[1]}/7/0"),
        call("nvmlDeviceGetUUID", INSTANCE.encode()),
    )
    assert first == b"GPU-00000000-0000-0000-0000-000000000000"
    assert second == b"GPU-00000000-0000-0000-0000-000000000001"
    assert again == f"about {first.decode()}: MIG-{second.decode()}/7/0"
    assert instance == b"MIG-00000000-0000-0000-0000-000000000000"


def test_bus_ids_are_numbered_in_both_of_their_forms() -> None:
    long, short, other = answers(
        call("nvmlDeviceGetPciInfo", SimpleNamespace(busId=b"00000000:1B:00.0")),
        call("x", "0000:1b:00.0"),
        call("x", "0000:5c:00.0"),
    )
    assert long.busId == b"00000000:01:00.0"
    assert short == "0000:01:00.0"
    assert other == "0000:02:00.0"


def test_serials_are_numbered() -> None:
    assert answers(call("nvmlDeviceGetSerial", b"1652823012345"), call("nvmlDeviceGetSerial", b"1652823099999")) == [
        b"0000000000000",
        b"0000000000001",
    ]


def test_processes_are_numbered_alike_in_all_lists() -> None:
    found = answers(
        call("nvmlDeviceGetComputeRunningProcesses", [(81234, 5 << 30), (81235, 6 << 30)]),
        call("nvmlDeviceGetProcessUtilization", [(81235, 1_700_000_000_000_000, 90, 20, 0, 0)]),
        call("nvmlDeviceGetGraphicsRunningProcesses", []),
    )
    assert found == [[(1, 5 << 30), (2, 6 << 30)], [(2, 1_700_000_000_000_000, 90, 20, 0, 0)], []]


def test_process_names_are_replaced_together_with_the_question() -> None:
    (found,) = masked(
        Capture(HEADER, (), (call("nvmlSystemGetProcessName", "/home/ada/secret/train.py", 81234),))
    ).calls
    assert found.answer == "process-0"
    assert found.arguments == (1,)


def test_identifiers_in_arguments_and_failures_are_masked_too() -> None:
    lost = Call(0.0, 0.0, "nvmlDeviceGetHandleByUUID", (UUIDS[0],), None, Failure(15, f"{UUIDS[0]} is lost"))
    whole = text(masked(Capture(HEADER, (), (lost,))))
    assert UUIDS[0] not in whole
    assert "is lost" in whole


def test_calls_without_identifiers_stay_unchanged() -> None:
    plain = [
        call("nvmlDeviceGetName", b"NVIDIA H100 80GB HBM3"),
        call("nvmlDeviceGetVbiosVersion", b"96.00.89.00.01"),
        call("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=85520809984)),
        call("nvmlDeviceGetHandleByIndex", Handle("device 0"), 0),
        call("nvmlDeviceGetSamples", [(1_700_000_000_000_000, 17)], Handle("device 0"), 1, 0),
    ]
    found = masked(Capture(HEADER, (), tuple(plain)))
    assert list(found.calls) == plain
    assert found.header.masked
