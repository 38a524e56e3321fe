"""A replay returns the answers that a recording captured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stallscope.node.drivers.nvidia.capture import Capture, Handle, parse, text
from stallscope.node.drivers.nvidia.library import Handle as RealHandle
from stallscope.node.drivers.nvidia.library import MissingFunction, NvmlFailure
from stallscope.node.drivers.nvidia.record import RecordingLibrary
from stallscope.node.drivers.nvidia.replay import ReplayLibrary
from tests.drivers.nvidia.test_capture import HEADER

GPU_LOST = 15


class ScriptedLibrary:
    """Answers what each function's script says, one after the other; an error is raised."""

    def __init__(self, **script: list[Any]) -> None:
        self.script = script
        self.loaded = False

    def load(self) -> None:
        self.loaded = True

    def call(self, name: str, *arguments: Any) -> Any:
        answer = self.script[name].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except NvmlFailure as failure:
        return failure.code, str(failure)
    except MissingFunction as missing:
        return str(missing)


def replay_of(recording: RecordingLibrary) -> ReplayLibrary:
    """As it comes from the file."""
    return ReplayLibrary(parse(text(Capture(HEADER, (), tuple(recording.calls))).splitlines()))


def test_answers_pass_through_and_come_again_in_order() -> None:
    answers = [1, 2.5, b"text", None, [(0, 7), (3, None)], SimpleNamespace(total=5)]
    recording = RecordingLibrary(ScriptedLibrary(f=list(answers)))
    assert [recording.call("f", 3) for _ in answers] == answers
    replay = replay_of(recording)
    assert [replay.call("f", 3) for _ in answers] == answers
    assert not replay.unanswered


def test_the_last_answer_is_repeated() -> None:
    recording = RecordingLibrary(ScriptedLibrary(f=[1, 2]))
    recording.call("f"), recording.call("f")
    replay = replay_of(recording)
    assert [replay.call("f") for _ in range(4)] == [1, 2, 2, 2]


def test_loading_reaches_the_library() -> None:
    library = ScriptedLibrary()
    RecordingLibrary(library).load()
    assert library.loaded


def test_failures_are_raised_and_come_again() -> None:
    failing: list[Any] = [70_000, NvmlFailure(GPU_LOST, "GPU is lost"), MissingFunction("no such thing"), 80_000]
    recording = RecordingLibrary(ScriptedLibrary(f=list(failing)))
    seen = [outcome(lambda: recording.call("f")) for _ in failing]
    replay = replay_of(recording)
    assert [outcome(lambda: replay.call("f")) for _ in failing] == seen
    assert seen == [70_000, (GPU_LOST, "GPU is lost"), "no such thing", 80_000]


def test_each_set_of_arguments_has_its_own_answers() -> None:
    recording = RecordingLibrary(ScriptedLibrary(f=["a", "b", "c"]))
    for argument in (1, 2, 1):
        recording.call("f", argument)
    replay = replay_of(recording)
    assert [replay.call("f", argument) for argument in (2, 1, 1)] == ["b", "a", "c"]


def test_a_call_that_was_not_recorded_fails_as_missing_and_is_noted() -> None:
    replay = replay_of(RecordingLibrary(ScriptedLibrary()))
    with pytest.raises(MissingFunction, match=r"nvmlNew.*not recorded"):
        replay.call("nvmlNew", Handle("device 0"))
    assert len(replay.unanswered) == 1


def test_handles_become_names_that_the_replay_takes() -> None:
    library = ScriptedLibrary(
        nvmlDeviceGetHandleByIndex=[RealHandle(0x1000), RealHandle(0x2000)],
        nvmlDeviceGetMigDeviceHandleByIndex=[RealHandle(0x3000)],
        nvmlGpmSampleAlloc=[RealHandle(0x4000), RealHandle(0x5000)],
        nvmlEventSetWait=[(RealHandle(0x2000), 8, 79)],
        nvmlOther=[RealHandle(0x6000)],
    )
    recording = RecordingLibrary(library)
    recording.call("nvmlDeviceGetHandleByIndex", 0)
    second = recording.call("nvmlDeviceGetHandleByIndex", 1)
    recording.call("nvmlDeviceGetMigDeviceHandleByIndex", second, 4)
    recording.call("nvmlGpmSampleAlloc"), recording.call("nvmlGpmSampleAlloc")
    recording.call("nvmlEventSetWait", RealHandle(0x7000), 100)
    recording.call("nvmlOther")
    answers = [call.answer for call in recording.calls]
    assert answers[:5] == [Handle(each) for each in ("device 0", "device 1", "instance 1/4", "sample 0", "sample 1")]
    assert answers[5] == (Handle("device 1"), 8, 79)
    replay = replay_of(recording)
    assert replay.call("nvmlDeviceGetMigDeviceHandleByIndex", replay.call("nvmlDeviceGetHandleByIndex", 1), 4)
    assert not replay.unanswered


def test_a_freed_handle_gives_its_address_to_another() -> None:
    recording = RecordingLibrary(ScriptedLibrary(nvmlGpmSampleAlloc=[RealHandle(1), RealHandle(1)]))
    recording.call("nvmlGpmSampleAlloc"), recording.call("nvmlGpmSampleAlloc")
    assert [call.answer.token for call in recording.calls] == ["sample 0", "sample 1"]


def test_a_reader_with_another_start_time_gets_the_next_samples() -> None:
    device = Handle("device 0")
    recording = RecordingLibrary(ScriptedLibrary(nvmlDeviceGetSamples=[[(5, 1)], [(7, 2)], [(9, 3)]]))
    for newest in (0, 5, 7):
        recording.call("nvmlDeviceGetSamples", device, 1, newest)
    replay = replay_of(recording)
    assert replay.call("nvmlDeviceGetSamples", device, 1, 0) == [(5, 1)]
    assert replay.call("nvmlDeviceGetSamples", device, 1, 6) == [(7, 2)]
    assert replay.call("nvmlDeviceGetSamples", device, 1, 7) == [(9, 3)]
    assert not replay.unanswered


def test_seconds_are_noted_by_the_clock_that_is_given() -> None:
    now = iter([100.0, 101.0, 101.25])
    recording = RecordingLibrary(ScriptedLibrary(f=[1]), lambda: next(now))
    recording.call("f")
    (call,) = recording.calls
    assert (call.at, call.seconds) == (1.0, 0.25)


def test_a_call_that_does_not_come_back_shows_as_pending() -> None:
    class Hanging:
        def __init__(self) -> None:
            self.entered, self.go_on = threading.Event(), threading.Event()

        def load(self) -> None:
            pass

        def call(self, name: str, *arguments: Any) -> Any:
            self.entered.set()
            self.go_on.wait()

    library = Hanging()
    recording = RecordingLibrary(library)
    thread = threading.Thread(target=recording.call, args=("nvmlDeviceGetPowerUsage", 5))
    thread.start()
    library.entered.wait()
    assert [(each.name, each.arguments) for each in recording.pending] == [("nvmlDeviceGetPowerUsage", (5,))]
    assert not recording.calls
    library.go_on.set()
    thread.join()
    assert not recording.pending
    assert len(recording.calls) == 1
