"""Bursts of stack samples: when they start, the lines they find, and input that must not confuse them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, ClassVar

import pytest

import stallscope
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.report import CodeLine
from stallscope.training.protocol.stacks import HotLine, SampledPhase, sampled_phases
from stallscope.training.protocol.vocabulary import MAX_CODE_LINES, MAX_LABEL_LENGTH
from stallscope.training.shim import bursts as bursts_module
from stallscope.training.shim import code_location, rebooking, worker_samples
from stallscope.training.shim.bursts import Burst, Line
from stallscope.training.shim.hot_lines import AGAIN, FIRST_WINDOW, PAUSE, WINDOW, HotLines
from stallscope.training.shim.timeline import Timeline
from tests.shim.conftest import Desk


class FakeBurst:
    """A burst whose result a test sets."""

    started: ClassVar[list[FakeBurst]]
    result: ClassVar[dict[str, list[Line]]]

    def __init__(self, timeline: Timeline) -> None:
        self.booked = {name: phase.seconds for name, phase in timeline.phases.items()}
        self.is_over = False
        self.cost = 0.25
        self.samples_all = False
        self.seconds = {"data_wait": 2.0}

    def start(self) -> None:
        FakeBurst.started.append(self)

    def stop(self) -> None:
        self.is_over = True

    def lines(self) -> dict[str, list[Line]]:
        return FakeBurst.result


@pytest.fixture
def bursts(monkeypatch: pytest.MonkeyPatch) -> list[FakeBurst]:
    monkeypatch.setattr(bursts_module, "Burst", FakeBurst)
    monkeypatch.setattr(FakeBurst, "started", [], raising=False)
    monkeypatch.setattr(FakeBurst, "result", {}, raising=False)
    return FakeBurst.started


class Training:
    """A loop on a scripted clock, one step a second, with a report each second."""

    def __init__(self, clock: ScriptedClock, *, uses_gpu: bool = False) -> None:
        self.clock = clock
        self.timeline = Timeline(clock.monotonic, lambda _: None, inf)
        self.hot = HotLines(self.timeline, lambda: uses_gpu)

    def train(self, seconds: float, shares: Mapping[str, float], gpu: Mapping[str, float] | None = None) -> None:
        """Train for some seconds, of which phases take these shares, by the clocks of the host and of the GPU."""
        for _ in range(round(seconds)):
            for name, share in {"forward": 0.05, **shares}.items():
                phase = self.timeline.phase(name)
                with phase:
                    self.clock.advance(share)
                if gpu and name in gpu:
                    phase.gpu_seconds = (phase.gpu_seconds or 0.0) + gpu[name]
            self.timeline.step()
            self.refresh()

    def refresh(self, *, last: bool = False) -> None:
        self.timeline.book(now := self.timeline.now())
        self.hot.refresh(now, last=last)


@pytest.fixture
def training(clock: ScriptedClock) -> Training:
    return Training(clock)


def test_waiting_at_the_beginning_of_the_loop_starts_one_burst(training: Training, bursts: list[FakeBurst]) -> None:
    training.train(FIRST_WINDOW - 1, {"data_wait": 0.5, "backward": 0.45})
    assert not bursts
    training.train(3, {"data_wait": 0.5, "backward": 0.45})
    assert len(bursts) == 1
    bursts[0].stop()
    training.train(PAUSE + WINDOW, {"data_wait": 0.5, "backward": 0.45})
    assert len(bursts) == 1, "the phase was sampled a moment ago"
    training.train(AGAIN, {"data_wait": 0.5, "backward": 0.45})
    assert len(bursts) == 2


def test_a_later_minute_of_waiting_starts_a_burst(training: Training, bursts: list[FakeBurst]) -> None:
    training.train(FIRST_WINDOW + 2, {"data_wait": 0.05, "backward": 0.9})
    training.train(WINDOW - 3, {"data_wait": 0.5, "backward": 0.45})
    assert not bursts
    training.train(3, {"data_wait": 0.5, "backward": 0.45})
    assert len(bursts) == 1


@pytest.mark.parametrize("phase", ["data_wait", "checkpoint", "evaluation", "logging", "my callback"])
def test_each_phase_of_the_host_is_sampled(training: Training, bursts: list[FakeBurst], phase: str) -> None:
    training.train(2 * WINDOW, {phase: 0.3, "backward": 0.6})
    if phase in ("checkpoint", "evaluation"):
        assert not bursts, "a burst between two checkpoints would sample none"
        with training.timeline.phase(phase):
            training.refresh()
    assert bursts


def test_other_time_of_steps_is_sampled(clock: ScriptedClock, training: Training, bursts: list[FakeBurst]) -> None:
    for _ in range(70):
        with training.timeline.phase("forward"):
            clock.advance(0.5)
        clock.advance(0.5)
        training.timeline.step()
        training.refresh()
    assert bursts


def test_little_is_no_reason(training: Training, bursts: list[FakeBurst]) -> None:
    training.train(5 * WINDOW, {"data_wait": 0.05, "backward": 0.9})
    assert not bursts


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "communication", "host_copy"])
def test_computing_is_never_sampled(training: Training, bursts: list[FakeBurst], phase: str) -> None:
    training.train(5 * WINDOW, {phase: 0.9})
    assert not bursts


def test_a_run_that_its_gpu_limits_is_never_sampled(training: Training, bursts: list[FakeBurst]) -> None:
    """The host waits for its data and in its logging, and meanwhile the GPU works through its queue."""
    training.train(
        5 * WINDOW, {"data_wait": 0.3, "logging": 0.3, "backward": 0.35}, {"data_wait": 0.0, "backward": 0.9}
    )
    assert not bursts


def test_a_wait_that_the_queue_of_the_gpu_hides_is_no_reason(training: Training, bursts: list[FakeBurst]) -> None:
    training.train(5 * WINDOW, {"data_wait": 0.6, "backward": 0.35}, {"data_wait": 0.0, "backward": 0.5})
    assert not bursts
    training.train(2 * WINDOW, {"data_wait": 0.6, "backward": 0.35}, {"data_wait": 0.3, "backward": 0.5})
    assert bursts


@pytest.mark.parametrize(("uses_gpu", "forward"), [(True, True), (False, False)])
def test_the_rest_of_steps_may_contain_the_computing(
    clock: ScriptedClock, bursts: list[FakeBurst], uses_gpu: bool, forward: bool
) -> None:
    training = Training(clock, uses_gpu=uses_gpu)
    for _ in range(200):
        with training.timeline.phase("forward" if forward else "data_wait"):
            clock.advance(0.05)
        clock.advance(0.95)
        training.timeline.step()
        training.refresh()
    assert not bursts


def test_bursts_can_be_requested_and_switched_off(
    training: Training, bursts: list[FakeBurst], monkeypatch: pytest.MonkeyPatch
) -> None:
    training.train(2, {"backward": 0.9})
    training.hot.begin(training.timeline.now())
    training.hot.begin(training.timeline.now())
    assert len(bursts) == 1
    bursts[0].stop()
    training.train(2, {"backward": 0.9})
    monkeypatch.setenv("STALLSCOPE_STACKS", "0")
    training.hot.begin(training.timeline.now())
    assert len(bursts) == 1


def test_the_result_of_a_requested_burst_is_delivered_once_for_a_run_that_its_gpu_limits_too(
    training: Training, bursts: list[FakeBurst], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"backward": 0.9, "data_wait": 0.05}
    delivered: list[str] = []
    training.train(2, shares)
    training.hot.begin(training.timeline.now(), delivered.append)
    assert bursts[0].samples_all
    result = {"data_wait": [Line('a".py:1', "slow", 0.5, 2)], "backward": [Line("b.py:2", "step", 1.0, 0)]}
    monkeypatch.setattr(FakeBurst, "result", result)
    bursts[0].seconds = {"data_wait": 2.0, "backward": 8.0, "initialization": 0.1}
    bursts[0].stop()
    training.train(2, shares)
    [text] = delivered
    assert sampled_phases(json.loads(text)) == {
        "data_wait": SampledPhase(2.0, (HotLine('a".py:1', "slow", 0.5, 2),)),
        "backward": SampledPhase(8.0, (HotLine("b.py:2", "step", 1.0, 0),)),
        "initialization": SampledPhase(0.1, ()),
    }
    assert list(training.hot.lines) == ["data_wait"], "reports have lines of the host's phases only"


def test_a_request_joins_the_burst_that_is_under_way(training: Training, bursts: list[FakeBurst]) -> None:
    training.train(WINDOW + 2, {"data_wait": 0.5, "backward": 0.45})
    assert not bursts[0].samples_all
    delivered: list[str] = []
    training.hot.begin(training.timeline.now(), delivered.append)
    bursts[0].stop()
    training.train(2, {"data_wait": 0.5, "backward": 0.45})
    assert (len(bursts), len(delivered)) == (1, 1)


def test_before_the_loop_a_requested_burst_begins_and_ends(training: Training, bursts: list[FakeBurst]) -> None:
    delivered: list[str] = []
    training.hot.begin(training.timeline.now(), delivered.append)
    bursts[0].stop()
    training.refresh()
    assert len(delivered) == 1


def test_a_run_has_no_lines_where_stacks_are_switched_off(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_STACKS", "0")
    run = stallscope.Run("off", sender=desk)
    assert run.hot_lines is None
    assert not desk.newest.code


def test_the_time_of_a_phase_is_divided_as_the_newest_burst_has_found(
    training: Training, bursts: list[FakeBurst], monkeypatch: pytest.MonkeyPatch
) -> None:
    training.train(FIRST_WINDOW + 2, {"data_wait": 0.5, "backward": 0.45})
    monkeypatch.setattr(
        FakeBurst, "result", {"data_wait": [Line("a.py:1", "slow", 0.5, 2), Line("b.py:2", "", 0.25, 0)]}
    )
    bursts[0].stop()
    training.train(100, {"data_wait": 0.5, "backward": 0.45})
    seconds = training.timeline.phases["data_wait"].seconds - bursts[0].booked["data_wait"]
    assert seconds == pytest.approx(50, abs=1)
    written = training.hot.written()
    assert written.startswith('"code":{"data_wait":[{"location":"a.py:1","function":"slow","seconds":')
    assert f"{seconds / 2:.3f}" in written
    assert f"{seconds / 4:.3f}" in written

    monkeypatch.setattr(
        FakeBurst, "result", {"data_wait": [Line("a.py:1", "slow", 0.5, 2), Line("c.py:3", "", 0.5, 0)]}
    )
    training.hot.begin(training.timeline.now())
    bursts[1].stop()
    training.train(2, {"data_wait": 0.5, "backward": 0.45})
    written = training.hot.written()
    assert "b.py" not in written
    assert float(written.partition('"a.py:1","function":"slow","seconds":')[2].partition("}")[0]) > 25
    assert float(written.partition('"c.py:3","function":"","seconds":')[2].partition("}")[0]) < 2
    assert training.hot.cost == 0.5


def test_the_last_report_has_the_lines_of_a_burst_that_is_not_over(
    training: Training, bursts: list[FakeBurst], monkeypatch: pytest.MonkeyPatch
) -> None:
    training.train(WINDOW + 2, {"data_wait": 0.5, "backward": 0.45})
    monkeypatch.setattr(FakeBurst, "result", {"data_wait": [Line("a.py:1", "slow", 0.5, 2)]})
    training.refresh(last=True)
    assert bursts[0].is_over
    assert "a.py:1" in training.hot.written()


def test_the_lines_travel_in_the_report(desk: Desk) -> None:
    run = stallscope.Run("job", sender=desk)
    run.step()
    run.hot_lines = HotLines(run.timeline, lambda: False)
    run.hot_lines.lines["other"] = [Line('we"ird\\.py:1', "f > torch.stack", 0.5, 2)]
    run.hot_lines._seconds["other"] = {('we"ird\\.py:1', "f > torch.stack"): 2.5}
    run.hot_lines._booked["other"] = inf
    run.finish()
    assert desk.newest.code == {"other": (CodeLine('we"ird\\.py:1', "f > torch.stack", 2.5),)}


def test_a_mistake_ends_the_sampling_and_not_the_reports(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stallscope.Run("job", sender=desk)
    monkeypatch.setattr(HotLines, "_judge", lambda self, now: 1 / 0)
    run.step()
    assert run.hot_lines is None, "nothing is sampled before the loop"
    for _ in range(3):
        run.timeline.due = 0.0
        run.step()
    assert desk.newest.gauges["step"] == 4
    assert run.hot_lines is None
    run.finish()
    assert desk.newest.state == "finished"


# Lines


def here() -> FrameType:
    return sys._getframe(1)


def test_the_innermost_frame_of_the_program_is_found() -> None:
    def innermost() -> FrameType:
        return here()

    spot = code_location.spot_of(innermost())
    assert spot is not None
    assert code_location.location_of(spot).startswith("tests/shim/test_hot_lines.py:")
    assert code_location.function_of(spot[0]).endswith("innermost")


def stack_in(file: str, name: str = "user") -> FrameType:
    """Return a frame of code that was compiled with a file name of its own."""
    variables: dict[str, Any] = {"here": here, "__name__": name}
    exec(compile("\n\ndef slow():\n    return here()\nframe = slow()\n", file, "exec"), variables)
    frame: FrameType = variables["frame"]
    return frame


@pytest.mark.parametrize(
    "file",
    [
        "<string>",
        "<eval_with_key>.3",
        "<frozen importlib._bootstrap>",
        "/tmp/torchinductor_me/ab/cab.py",
        str(Path(os.__file__).with_name("queue.py")),
        str(Path(stallscope.__file__).parent / "training" / "shim" / "run.py"),
        "/env/lib/python3.11/site-packages/torch/utils/data/dataset.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
    ],
)
def test_generated_code_and_libraries_are_not_the_program(file: str) -> None:
    spot = code_location.spot_of(stack_in(file))
    assert spot is not None
    assert spot[0].co_filename == __file__, "the caller of that code is the program"


def test_the_line_names_the_library_that_it_calls() -> None:
    spot = code_location.spot_of(stack_in("/env/lib/python3.11/site-packages/PIL/Image.py"))
    assert spot is not None
    assert spot[2] is not None
    assert code_location.library_function_of(spot[2]) == "PIL.Image.<module>"


def test_the_line_names_the_function_inside_of_a_decorator() -> None:
    program = "def all_reduce():\n    return here()\ndef wrapper():\n    return all_reduce()\n"
    variables: dict[str, Any] = {"here": here}
    exec(compile(program, "/env/lib/python3.11/site-packages/torch/distributed/c10d.py", "exec"), variables)
    spot = code_location.spot_of(variables["wrapper"]())
    assert spot is not None
    assert spot[2] is not None
    assert code_location.library_function_of(spot[2]) == "torch.distributed.c10d.all_reduce"


def test_without_code_of_the_program_a_worker_reports_the_library() -> None:
    frame = stack_in("/env/lib/python3.11/site-packages/torchvision/transforms/functional.py", "torchvision.x")
    deepest = code_location.spot_of(frame, or_library=True)
    assert deepest is not None, "this test is the program"
    spot = (frame.f_code, frame.f_lineno, None)
    assert code_location.location_of(spot) == "torchvision/transforms/functional.py:4"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/somewhere/else/entirely/data/augment.py", "entirely/data/augment.py:4"),
        ("/somewhere/pa\nth/aug\x1bment\u2028.py", "somewhere/pa?th/aug?ment?.py:4"),
        ("train.py", "train.py:4"),
        ("<ipython-input-7-0a1b2c>", "cell 7:4"),
        ("<ipython-input-x>", "notebook cell:4"),
        ("/tmp/ipykernel_42/123.py", "notebook cell:4"),
        ("/" + 200 * "d" + "/" + 200 * "x" + ".py", "x" * (MAX_LABEL_LENGTH - 5) + ".py:4"),
        ("", ":4"),
    ],
)
def test_paths_are_shortened_to_printable_labels(file: str, expected: str) -> None:
    frame = stack_in(file)
    location = code_location.location_of((frame.f_code, frame.f_lineno, None))
    assert location == expected
    assert location.isprintable()


def test_paths_are_seen_from_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "app" / "train.py"), raising=False)
    assert code_location.shortened(str(tmp_path / "app" / "data" / "augment.py")) == "data/augment.py"
    monkeypatch.chdir(tmp_path)
    assert code_location.shortened(str(tmp_path / "lib" / "augment.py")) == "lib/augment.py"


def test_cells_of_a_notebook_have_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = pytest.importorskip("IPython")
    compiler = pytest.importorskip("ipykernel.compiler").XCachingCompiler()
    monkeypatch.setattr(ipython, "get_ipython", lambda: SimpleNamespace(compile=compiler))
    assert code_location.shortened(compiler.cache("slow()\n", 12)) == "cell 12"
    del compiler._filename_map
    assert code_location.shortened(compiler.get_code_name("slow()\n", "slow()\n", 12)) == "notebook cell"


def test_in_a_frozen_application_files_have_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    code_location.kind_of.cache_clear()
    try:
        kinds = [code_location.kind_of(file) for file in ("train.py", "my/augment.py", "torch/nn/x.py", "queue.py")]
    finally:
        code_location.kind_of.cache_clear()
    assert kinds == [*2 * [code_location.PROGRAM], code_location.LIBRARY, code_location.HIDDEN]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified name")
def test_a_comprehension_belongs_to_the_function_around_it() -> None:
    def inner() -> list[FrameType]:
        return [here() for _ in range(1)]

    assert code_location.function_of(inner()[0].f_code).endswith("function_around_it.inner")


# Samples of real threads


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_samples, "SECONDS", 30.0)
    monkeypatch.setattr(worker_samples, "INTERVAL", 0.005)


def sampled(
    timeline: Timeline, work: Callable[[], object], samples: int = 20, *, samples_all: bool = False
) -> dict[str, list[Line]]:
    """Repeat some work in this thread until a burst has so many samples."""
    burst = Burst(timeline, least_seconds=0.0)
    burst.samples_all = samples_all
    burst.start()
    try:
        end = time.monotonic() + 30.0
        while len(burst._samples) < samples and time.monotonic() < end:
            work()
    finally:
        burst.stop()
    return burst.lines()


@pytest.fixture
def looping() -> Timeline:
    timeline = Timeline(time.monotonic, lambda _: None, inf)
    timeline.step()
    return timeline


def slow_transform() -> None:
    time.sleep(0.01)  # planted


def line_of(function: Callable[..., object]) -> str:
    """Return the location of the line after the definition of a function."""
    return f"tests/shim/test_hot_lines.py:{function.__code__.co_firstlineno + 1}"


@pytest.mark.usefixtures("short")
def test_samples_belong_to_the_open_phase(looping: Timeline) -> None:
    def work() -> None:
        with looping.phase("data_wait"):
            slow_transform()
        with looping.phase("forward"):
            time.sleep(0.01)

    lines = sampled(looping, work)
    assert set(lines) <= {"data_wait", "other"}
    every = sampled(looping, work, samples_all=True)
    assert {"data_wait", "forward"} <= set(every)
    assert lines["data_wait"][0].location == line_of(slow_transform)
    assert lines["data_wait"][0].function == "slow_transform"
    assert lines["data_wait"][0].share > 0.5


@pytest.mark.usefixtures("short")
def test_a_function_that_draws_batches_is_the_wait_for_data(looping: Timeline) -> None:
    looping.input_functions = {slow_transform.__code__}
    lines = sampled(looping, slow_transform)
    assert lines["data_wait"][0].location == line_of(slow_transform)


@pytest.mark.usefixtures("short")
def test_the_thread_that_the_loop_waits_for_is_found(looping: Timeline) -> None:
    import queue

    batches: queue.Queue[int] = queue.Queue(1)
    stopped = threading.Event()

    def prefetch() -> None:
        while not stopped.is_set():
            slow_transform()
            batches.put(1)

    thread = threading.Thread(target=prefetch, daemon=True)
    thread.start()

    def work() -> None:
        with looping.phase("data_wait"):
            batches.get()

    lines = sampled(looping, work)
    stopped.set()
    # The thread ends after the batch it is at, which it can only put where the last one was taken.
    while thread.is_alive():
        with contextlib.suppress(queue.Empty):
            batches.get(timeout=0.01)
    assert lines["data_wait"][0].location == line_of(slow_transform)


@pytest.mark.usefixtures("short")
def test_many_threads_that_come_and_go(looping: Timeline) -> None:
    release = threading.Event()
    # More than a burst samples. All at once, they would compete for the interpreter until the next tests end.
    threads = [threading.Thread(target=release.wait, daemon=True) for _ in range(100)]
    for thread in threads:
        thread.start()

    def work() -> None:
        brief = threading.Thread(target=slow_transform)
        brief.start()
        with looping.phase("data_wait"):
            slow_transform()
        brief.join()

    lines = sampled(looping, work)
    release.set()
    for thread in threads:
        thread.join()
    assert lines["data_wait"][0].location == line_of(slow_transform)
    assert all(len(found) <= MAX_CODE_LINES for found in lines.values())


@pytest.mark.usefixtures("short")
def test_a_loop_whose_thread_ends_in_mid_burst(looping: Timeline) -> None:
    made: list[Burst] = []

    def loop() -> None:
        made.append(Burst(looping, least_seconds=0.0))
        made[0].start()

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    while not made[0].is_over:
        time.sleep(0.001)
    made[0].stop()
    assert made[0].lines() in ({}, made[0].lines())


@pytest.mark.usefixtures("short")
def test_a_burst_leaves_the_switch_interval_as_it_was(looping: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, during = sys.getswitchinterval(), []
    monkeypatch.setattr(worker_samples, "SECONDS", 0.05)
    burst = Burst(looping, least_seconds=0.0)
    burst.start()
    while not burst.is_over:
        during.append(sys.getswitchinterval())
        time.sleep(0.001)
    assert min(during) < usual
    assert sys.getswitchinterval() == usual


def test_a_child_that_is_forked_in_mid_burst_has_the_usual_switch_interval() -> None:
    usual = sys.getswitchinterval()
    worker_samples.prepare()
    worker_samples._switch_fast()
    try:
        if (pid := os.fork()) == 0:
            os._exit(0 if sys.getswitchinterval() == usual else 1)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        worker_samples._switch_as_usual()
    assert sys.getswitchinterval() == usual


def test_an_interval_that_the_program_sets_in_mid_burst_stays() -> None:
    usual = sys.getswitchinterval()
    worker_samples._switch_fast()
    sys.setswitchinterval(0.003)
    worker_samples._switch_as_usual()
    assert sys.getswitchinterval() == pytest.approx(0.003)
    sys.setswitchinterval(usual)


def test_samples_move_with_the_time_of_an_interval(clock: ScriptedClock) -> None:
    timeline = Timeline(clock.monotonic, lambda _: None, inf)
    timeline.step()
    burst = Burst(timeline, least_seconds=0.0)
    timeline.rebooked = burst._rebook
    clock.advance(5)
    before = rebooking.snapshot(timeline)
    with timeline.phase("data_wait"):
        clock.advance(1)
    for moment, phase in ((4.0, "data_wait"), (5.5, "data_wait"), (5.6, "checkpoint")):
        burst._samples.append(bursts_module._Sample(clock.monotonic() - 6 + moment, 0.5, phase, None, False, []))
    rebooking.rebook(timeline, before, timeline.phase("evaluation"), ("data_wait", "other"))
    assert [sample.phase for sample in burst._samples] == ["data_wait", "evaluation", "checkpoint"]


def test_waits_are_divided_among_workers_and_threads(clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(clock.monotonic, lambda _: None, inf)

    class Workers:
        def counts(self) -> worker_samples.Counts:
            return {
                ("data/augment.py:41", "elastic", "scipy.ndimage.map"): (6.0, 4),
                ("data/augment.py:41", "elastic", ""): (2.0, 3),
                ("data/read.py:7", "read", ""): (2.0, 1),
            }

    monkeypatch.setattr(worker_samples, "channel", Workers)
    burst = Burst(timeline, least_seconds=0.0)
    frame = here()
    own = (frame.f_code, 12, None)
    for waits, spot in ((True, None), (True, None), (True, None), (False, own)):
        burst._samples.append(bursts_module._Sample(0.0, 1.0, "data_wait", spot, waits, []))
    lines = burst.lines()["data_wait"]
    assert [(line.location, line.function, line.workers) for line in lines] == [
        ("data/augment.py:41", "elastic > scipy.ndimage.map", 4),
        (code_location.location_of(own), code_location.function_of(frame.f_code), 0),
        ("data/read.py:7", "read", 1),
    ]
    assert [line.share for line in lines] == pytest.approx([0.6, 0.25, 0.15])


def test_no_more_lines_than_a_report_may_have(clock: ScriptedClock) -> None:
    burst = Burst(Timeline(clock.monotonic, lambda _: None, inf))
    code = here().f_code
    for line in range(1, 20):
        burst._samples.append(bursts_module._Sample(0.0, float(line), "data_wait", (code, line, None), False, []))
    lines = burst.lines()["data_wait"]
    assert len(lines) == MAX_CODE_LINES
    assert lines[0].location.endswith(":19")


def test_little_of_a_phase_proves_nothing(clock: ScriptedClock) -> None:
    burst = Burst(Timeline(clock.monotonic, lambda _: None, inf))
    burst._samples.append(bursts_module._Sample(0.0, 0.1, "data_wait", (here().f_code, 1, None), False, []))
    assert burst.lines() == {}


# Workers


@pytest.fixture
def memory() -> Iterator[worker_samples.Channel]:
    if not hasattr(os, "memfd_create"):
        pytest.skip("memfd_create: Linux only")
    made = worker_samples.Channel()
    yield made
    os.close(made._file)


def test_counts_of_workers_are_added(memory: worker_samples.Channel) -> None:
    follower = worker_samples.Follower(memory.path)
    memory.begin()
    assert follower.number != follower.newest
    spot = (here().f_code, 3, None)
    follower.append({spot: 1.5})
    follower.append({spot: 0.5})
    assert memory.counts() == {
        (code_location.location_of(spot), "test_counts_of_workers_are_added", ""): (2.0, 1),
    }
    memory.begin()
    assert memory.counts() == {}
    memory.end()
    assert follower.number == 0


@pytest.mark.parametrize(
    "content",
    [
        b"[1,",
        b"null\n",
        b"[1, [[1]]]\n",
        b'{"a": 1}\n',
        b'[1, [["a", "b", "", NaN]]]\n',
        b'[1, [["", "b", "", 1]]]\n',
        b"\xff\xfe\n",
        b"[" * 9999,
    ],
)
def test_broken_counts_are_left_out(memory: worker_samples.Channel, content: bytes) -> None:
    memory.begin()
    os.pwrite(memory._file, content, worker_samples._PAGE)
    assert memory.counts() == {}


def test_a_descriptor_that_the_program_uses_again_is_left_alone(tmp_path: Path) -> None:
    if not hasattr(os, "memfd_create"):
        pytest.skip("memfd_create: Linux only")
    memory = worker_samples.Channel()
    follower = worker_samples.Follower(memory.path)
    file = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    os.dup2(file, memory._file)
    os.write(file, b"mine")
    memory.begin()
    memory.end()
    assert memory.counts() == {}
    with pytest.raises(OSError, match="/fd/"):
        follower.append({(here().f_code, 3, None): 1.5})
    assert (tmp_path / "own").read_bytes() == b"mine"
    os.close(file)
    os.close(memory._file)
