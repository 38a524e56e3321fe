from __future__ import annotations

import json
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.shim.tracing import recording
from stallscope.training.shim.tracing.trace_file import folder_of
from tests.shim.conftest import Desk


@pytest.fixture
def run(clock: ScriptedClock, desk: Desk) -> stallscope.Run:
    return SimulatedRun("job", clock=clock, sender=desk, rank=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "traces"


def train(run: stallscope.Run, clock: ScriptedClock, steps: int) -> None:
    """Steps of 30 ms: wait 5, forward 10 of which 4 communicate, 3 of nothing, backward 12."""
    for _ in range(steps):
        with run.phase("data_wait"):
            clock.advance(0.005)
        with run.phase("forward"):
            clock.advance(0.003)
            with run.phase("communication"):
                clock.advance(0.004)
            clock.advance(0.003)
        clock.advance(0.003)
        with run.phase("backward"):
            clock.advance(0.012)
        run.step()


def read(folder: Path, step: int, run: str = "job", rank: int = 3) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / run / f"rank{rank}-step{step}.trace.json").read_text())
    return document


def traced(folder: Path) -> list[int]:
    """Numbers of the steps that were traced."""
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    return sorted(int(name.removeprefix("rank3-step").removesuffix(".trace.json")) for name in names)


def complete(document: dict[str, Any], category: str) -> list[tuple[str, float, float]]:
    """Name, begin in the step and length of each complete event, in milliseconds."""
    start = document["otherData"]["start"] * 1e6
    return [
        (event["name"], round((event["ts"] - start) / 1000, 2), round(event["dur"] / 1000, 2))
        for event in document["traceEvents"]
        if event["ph"] == "X" and event["cat"] == category
    ]


def test_a_trace_shows_the_phases_of_its_step(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[2], directory=str(folder))
    train(run, clock, 5)
    document = read(folder, 2)
    assert complete(document, "step") == [("step 2", 0, 30)]
    assert complete(document, "phase") == [
        ("data_wait", 0, 5),
        ("forward", 5, 10),
        ("communication", 8, 4),
        ("backward", 18, 12),
    ]
    assert document["displayTimeUnit"] == "ms"
    reported = document["otherData"]
    assert (reported["run"], reported["rank"], reported["step"], reported["complete"]) == ("job", 3, 2, True)
    assert reported["step_seconds"] == pytest.approx(0.03)
    # Without what lies inside, as metrics have it: these and the rest sum to the step.
    assert reported["phase_seconds"] == pytest.approx(
        {"data_wait": 0.005, "forward": 0.006, "communication": 0.004, "backward": 0.012}
    )


def test_times_are_unix_time_so_that_ranks_line_up(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[1], directory=str(folder))
    before = clock.time()
    train(run, clock, 2)
    assert read(folder, 1)["otherData"]["start"] == pytest.approx(before + 0.03, abs=1e-5)


def test_process_and_threads_have_names(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 2)
    names = {event["name"]: event["args"] for event in read(folder, 1)["traceEvents"] if event["ph"] == "M"}
    assert names["process_name"] == {"name": "job rank 3"}
    assert names["thread_name"] == {"name": threading.current_thread().name}


def test_50_000_steps_traced_each_20_000_give_3_files(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(every_steps=20_000, directory=str(folder))
    for _ in range(50_000):
        with run.phase("forward"):
            clock.advance(0.01)
        run.step()
    assert traced(folder) == [0, 20_000, 40_000]


def test_the_first_step_shows_what_came_before_it(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    clock.advance(0.1)
    run.trace(steps=range(1), directory=str(folder))
    clock.advance(0.1)
    train(run, clock, 2)
    document = read(folder, 0)
    assert complete(document, "step") == [("step 0", 0, 30)]
    assert complete(document, "phase")[0] == ("initialization", -200, 200)


@pytest.mark.parametrize(
    ("selection", "steps"),
    [
        ({"every_steps": 4}, [0, 4, 8]),
        ({"every_steps": 4.0}, [0, 4, 8]),
        ({"every_seconds": 0.09}, [0, 3, 6, 9]),
        ({"steps": range(7, 9)}, [7, 8]),
        ({"steps": {1, 30}}, [1]),
        ({"when": lambda step: step in (2, 5)}, [2, 5]),
        ({"every_steps": 6, "steps": [1]}, [0, 1, 6]),
        ({}, []),
    ],
)
def test_steps_are_selected_by_any_condition(
    selection: dict[str, Any], steps: list[int], run: stallscope.Run, clock: ScriptedClock, folder: Path
) -> None:
    run.trace(directory=str(folder), **selection)
    train(run, clock, 10)
    run.step()
    assert traced(folder) == steps


def test_a_run_that_goes_on_from_a_checkpoint_numbers_steps_as_its_metrics_do(
    run: stallscope.Run, clock: ScriptedClock, folder: Path
) -> None:
    run.report(step=1000)
    run.trace(steps=[1000, 1002], directory=str(folder))
    train(run, clock, 4)
    assert traced(folder) == [1000, 1002]


def test_neighbouring_steps_are_each_whole(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=range(1, 4), directory=str(folder))
    train(run, clock, 5)
    for step in (1, 2, 3):
        assert complete(read(folder, step), "step") == [(f"step {step}", 0, 30)]
        assert len(complete(read(folder, step), "phase")) == 4


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    program=st.recursive(
        st.sampled_from([0.0, 1e-7, 0.00000123, 0.0004567, 0.3]),
        lambda inner: st.tuples(
            st.sampled_from(["forward", "backward", "mine", "evaluation", "checkpoint", "span"]),
            st.lists(inner, max_size=4),
        ),
        max_leaves=20,
    )
)
def test_events_of_a_thread_nest_and_sum_to_the_step(program: Any, tmp_path: Path, desk: Desk) -> None:
    clock = ScriptedClock(1_700_000_000.123456)

    def play(part: Any) -> None:
        if isinstance(part, float):
            clock.advance(part)
            return
        name, inner = part
        with stallscope.span("span") if name == "span" else job.phase(name):
            for each in inner:
                play(each)

    job = SimulatedRun("job", clock=clock, sender=desk, rank=3)
    job.step()
    job.trace(steps=[2], directory=str(tmp_path))
    job.step()
    play(program)
    job.step()
    job.finish()
    document = read(tmp_path, 2)
    around: list[float] = []
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            end = event["ts"] + event["dur"]
            assert event["dur"] >= 0
            while around and around[-1] <= event["ts"] and around[-1] < end:
                around.pop()
            # Perfetto drops what ends after the event around it.
            assert not around or end <= around[-1]
            around.append(end)
    reported = document["otherData"]
    assert sum(reported["phase_seconds"].values()) <= reported["step_seconds"] + 1e-5
    phases = desk.newest.phases
    for name, seconds in reported["phase_seconds"].items():
        assert seconds == pytest.approx(phases[name].seconds, abs=2e-6)


def test_a_tracked_loader_s_wait_is_in_the_trace(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[2], directory=str(folder))

    def loader() -> Any:
        for number in range(5):
            clock.advance(0.004)
            yield number

    for _ in stallscope.track(loader(), run):
        clock.advance(0.01)
    assert complete(read(folder, 2), "phase") == [("data_wait", 0, 4)]


def test_what_a_trace_costs_is_booked_to_its_own_phase(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.training.shim.tracing.trace.write", lambda *_: clock.advance(2.0))
    run.trace(steps=[20], directory=str(folder))
    train(run, clock, 100)
    run.finish()
    assert desk.newest.phases["tracing"].seconds == pytest.approx(2.0)
    assert desk.newest.counters["slow_steps"] == 0


def test_an_evaluation_is_in_the_trace_of_its_step(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 1)
    with run.phase("evaluation"), run.phase("data_wait"):
        clock.advance(0.5)
    train(run, clock, 1)
    assert complete(read(folder, 1), "phase")[0] == ("evaluation", 0, 500)


def test_no_step_is_traced_by_half(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    train(run, clock, 1)
    with run.phase("forward"):
        run.trace(every_steps=1, directory=str(folder))
    run.step()
    train(run, clock, 1)
    run.finish()
    assert traced(folder) == [2]


def test_a_second_call_takes_the_place_of_the_first(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[1, 5], directory=str(folder))
    train(run, clock, 3)
    run.trace(steps=[4], directory=str(folder))
    train(run, clock, 4)
    assert traced(folder) == [1, 4]


def test_spans_of_every_thread_are_in_the_trace(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 1)
    with stallscope.span("outer"):
        clock.advance(0.001)
        with stallscope.span("inner"):
            clock.advance(0.002)

    def work() -> None:
        with stallscope.span("elsewhere"):
            clock.advance(0.005)

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()
    run.step()
    document = read(folder, 1)
    assert complete(document, "span") == [("outer", 0, 3), ("inner", 1, 2), ("elsewhere", 3, 5)]
    by_name = {event["name"]: event["tid"] for event in document["traceEvents"] if event["ph"] == "X"}
    assert by_name["elsewhere"] != by_name["outer"] == by_name["step 1"]
    titles = {
        event["tid"]: event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"
    }
    assert titles[by_name["elsewhere"]] == "worker"


def test_a_span_that_outlasts_its_step_is_cut(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 1)
    span = stallscope.span("long")
    span.__enter__()
    clock.advance(0.007)
    run.step()
    clock.advance(1)
    span.__exit__(None, None, None)
    assert complete(read(folder, 1), "span") == [("long", 0, 7)]


def test_a_span_outside_of_traces_is_nothing_at_all(run: stallscope.Run) -> None:
    assert stallscope.span("one") is stallscope.span("two")
    with stallscope.span("one"):
        pass


@pytest.mark.parametrize("name", ["x" * 1_000_000, "\0\n", 7, None, b"\xff"])
def test_a_span_may_be_called_anything(name: Any, run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 1)
    with stallscope.span(name):
        pass
    run.step()
    assert len(complete(read(folder, 1), "span")[0][0]) <= 128


def test_a_span_lets_exceptions_pass(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 1)
    with pytest.raises(KeyError), stallscope.span("failing"):
        raise KeyError


def test_while_no_step_is_traced_the_timeline_is_untouched(
    run: stallscope.Run, clock: ScriptedClock, folder: Path
) -> None:
    own = run.timeline.now
    run.trace(steps=[1], directory=str(folder))
    assert run.timeline.now == own
    train(run, clock, 1)
    assert run.timeline.now != own
    train(run, clock, 1)
    assert run.timeline.now == own
    assert recording._recording is None


def test_metrics_are_the_same_with_and_without_traces(desk: Desk, folder: Path) -> None:
    reported = []
    for every_steps in (None, 3):
        clock = ScriptedClock()
        run = SimulatedRun("job", clock=clock, sender=desk)
        run.trace(every_steps=every_steps, directory=str(folder))
        train(run, clock, 50)
        run.finish()
        phases = dict(desk.newest.phases)
        phases.pop("tracing", None)
        reported.append((desk.newest.step_seconds, phases))
    assert reported[0] == reported[1]


def test_the_oldest_traces_stay_when_there_are_enough(
    run: stallscope.Run, clock: ScriptedClock, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run.trace(every_steps=1, directory=str(folder), files=3)
    train(run, clock, 10)
    assert traced(folder) == [0, 1, 2]
    assert caplog.text.count("the limit") == 1
    assert run.timeline.listener is None  # no further check at each step


def test_restarts_don_t_fill_the_disk(clock: ScriptedClock, desk: Desk, folder: Path) -> None:
    for life in range(4):
        run = SimulatedRun("job", clock=clock, sender=desk, rank=3)
        run.report(step=life * 100)
        run.trace(every_steps=1, directory=str(folder), files=3)
        train(run, clock, 5)
        run.finish()
    assert traced(folder) == [0, 1, 2]


def test_all_traces_of_a_rank_have_bounded_size(
    run: stallscope.Run, clock: ScriptedClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.training.shim.tracing.trace.MAX_BYTES", 3000)
    run.trace(every_steps=1, directory=str(folder))
    train(run, clock, 20)
    assert 1 <= len(traced(folder)) <= 3


def test_an_endless_step_is_recorded_to_a_limit(
    run: stallscope.Run, clock: ScriptedClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_MOMENTS", 100)
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 1)
    for _ in range(1000):
        with run.phase("forward"), stallscope.span("each"):
            clock.advance(0.001)
    run.step()
    document = read(folder, 1)
    assert len(document["traceEvents"]) <= 205
    assert document["otherData"]["complete"] is False
    assert document["otherData"]["step_seconds"] == pytest.approx(1.0)


def test_where_nothing_can_be_written_training_goes_on_with_one_warning(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("in the way")
    run.trace(every_steps=2, directory=str(folder))
    train(run, clock, 50)
    run.finish()
    assert desk.newest.step_seconds is not None
    assert desk.newest.step_seconds.count == 50
    assert caplog.text.count("traces can't be written") == 1


def test_a_link_in_place_of_a_trace_is_not_followed(run: stallscope.Run, clock: ScriptedClock, folder: Path) -> None:
    (folder / "job").mkdir(parents=True)
    victim = folder / "job" / "victim"
    victim.write_text("precious")
    trace = folder / "job" / "rank3-step1.trace.json"
    for link in (trace, trace.with_name(f"{trace.name}.{os.getpid()}.part")):
        link.symlink_to(victim)
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 3)
    assert victim.read_text() == "precious"
    assert read(folder, 1)["otherData"]["step"] == 1
    assert not trace.is_symlink()


@pytest.mark.parametrize("whose", ["of another user", "that everybody may write"])
def test_no_trace_is_written_into_a_folder_that_is_not_trusted(
    run: stallscope.Run, clock: ScriptedClock, folder: Path, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    (folder / "job").mkdir(parents=True)
    if whose == "of another user":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder / "job", 54321, -1)
    else:
        (folder / "job").chmod(0o777)
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 3)
    assert not list((folder / "job").iterdir())
    (line,) = caplog.messages
    assert ("it belongs to user 54321" in line) is (whose == "of another user")
    assert ("every user may replace files in it" in line) is (whose != "of another user")


def test_a_trace_that_can_t_be_written_whole_leaves_nothing(
    run: stallscope.Run, clock: ScriptedClock, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run.trace(every_steps=2, directory=str(folder))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # as a disk with room for a hundred bytes
    try:
        train(run, clock, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((folder / "job").iterdir()) == []
    assert caplog.text.count("traces can't be written") == 1
    train(run, clock, 1)
    assert traced(folder) == [20]  # there is room again


def test_a_condition_that_raises_is_not_called_again(
    run: stallscope.Run, clock: ScriptedClock, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    called_with = []

    def when(step: int) -> bool:
        called_with.append(step)
        raise RuntimeError("evil")

    run.trace(when=when, directory=str(folder))
    train(run, clock, 5)
    assert called_with == [0]
    assert "choosing steps to trace failed" in caplog.text


@pytest.mark.parametrize(
    "selection",
    [
        {"every_steps": "often"},
        {"every_steps": -1},
        {"every_seconds": float("nan")},
        {"steps": 5},
        {"when": 7},
        {"directory": "\0"},
        {"directory": 7},
        {"files": "many"},
        {"exporter": "gopher://x"},
        {"exporter": "http://127.0.0.1:no"},
    ],
)
def test_a_wrong_selection_harms_nothing(
    selection: dict[str, Any], run: stallscope.Run, clock: ScriptedClock, folder: Path, desk: Desk
) -> None:
    run.trace(**{"directory": str(folder), **selection})
    train(run, clock, 3)
    run.finish()
    assert desk.newest.step_seconds is not None


def test_strictly_a_wrong_selection_raises(run: stallscope.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_STRICT", "1")
    with pytest.raises(ValueError, match="every_steps"):
        run.trace(every_steps=-1)


def test_without_a_run_there_is_nothing_to_trace(caplog: pytest.LogCaptureFixture) -> None:
    stallscope.trace(every_steps=1)
    assert "no open run" in caplog.text


def test_the_open_run_is_traced_where_none_is_named(folder: Path) -> None:
    with stallscope.Run("job", rank=3) as run:
        stallscope.trace(steps=[1], directory=str(folder))
        run.step()
        run.step()
    assert traced(folder) == [1]


def test_a_run_that_ends_in_a_traced_step_leaves_spans_free(
    run: stallscope.Run, clock: ScriptedClock, folder: Path
) -> None:
    run.trace(steps=[1], directory=str(folder))
    train(run, clock, 1)
    run.finish()
    assert stallscope.span("one") is stallscope.span("two")
    assert traced(folder) == []


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".hidden", "..", "", "\0", "x" * 128, "日本", "resnet50"])
def test_the_folder_of_a_run_is_in_the_directory(name: str, tmp_path: Path) -> None:
    path = Path(folder_of(str(tmp_path), name))
    assert path.parent == tmp_path
    assert path.resolve().parent == tmp_path.resolve()
    path.mkdir()


def test_runs_whose_names_look_alike_have_folders_of_their_own(tmp_path: Path) -> None:
    assert len({folder_of(str(tmp_path), name) for name in ("a/b", "a_b", "a:b", "a b")}) == 4


def test_the_environment_may_name_the_directory(
    run: stallscope.Run, clock: ScriptedClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_TRACE_DIR", str(folder))
    run.trace(steps=[1])
    train(run, clock, 2)
    assert traced(folder) == [1]


def test_a_forked_child_traces_nothing(folder: Path) -> None:
    with stallscope.Run("job", rank=3) as run:
        run.trace(every_steps=1, directory=str(folder))
        run.step()
        child = os.fork()
        if child == 0:
            try:
                silent = stallscope.span("one") is stallscope.span("two")
                run.step()
                os._exit(0 if silent else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert traced(folder) == [0]


class FakeProfiler:
    """Stands for torch.profiler where torch is not installed."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def stop(self) -> None:
        self._calls.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}")


def test_the_profiler_runs_in_traced_steps_alone_and_writes_beside(
    run: stallscope.Run, clock: ScriptedClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def started() -> FakeProfiler:
        calls.append("start")
        return FakeProfiler(calls)

    monkeypatch.setattr("stallscope.training.shim.tracing.trace._started_profiler", started)
    run.trace(steps=[2], directory=str(folder), torch_profiler=True)
    train(run, clock, 2)
    assert calls == ["start"]
    train(run, clock, 3)
    assert calls == ["start", "stop"]
    assert {path.name for path in (folder / "job").iterdir()} == {"rank3-step2.trace.json", "rank3-step2.torch.json"}


@pytest.mark.parametrize("end", ["run", "disk"])
def test_a_profiler_never_goes_on_beyond_its_step(
    end: str, run: stallscope.Run, clock: ScriptedClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("stallscope.training.shim.tracing.trace._started_profiler", lambda: FakeProfiler(calls))
    if end == "disk":
        folder.write_text("in the way")
    run.trace(steps=[1], directory=str(folder), torch_profiler=True)
    train(run, clock, 1)
    if end == "disk":
        train(run, clock, 1)
    run.finish()
    assert calls == ["stop"]


def test_the_profiler_needs_torch(
    run: stallscope.Run,
    clock: ScriptedClock,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    run.trace(steps=[1], directory=str(folder), torch_profiler=True)
    train(run, clock, 2)
    assert traced(folder) == [1]
    assert "needs a program that has imported torch" in caplog.text
