from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.vocabulary import MAX_VALUES
from tests.shim.conftest import Desk


def new(clock: ScriptedClock, desk: Desk, **settings: object) -> stallscope.Run:
    return SimulatedRun("job", clock=clock, sender=desk, **settings)  # type: ignore[arg-type]


class Tensor:
    """A fake GPU tensor; reading its value would wait for the GPU."""

    def __float__(self) -> float:
        raise AssertionError("a tensor was touched")

    __int__ = __index__ = __bool__ = __lt__ = __le__ = __float__


class Trap(float):
    def __float__(self) -> float:
        raise RuntimeError("evil")


def test_a_new_run_is_reported_at_once(clock: ScriptedClock, desk: Desk) -> None:
    new(clock, desk, rank=3, world_size=8, gpus=[{"gpu": "3", "uuid": "GPU-3"}], info={"hostname": "node-1"})
    report = desk.newest
    assert (report.run, report.rank, report.state, report.activity) == ("job", 3, "starting", "initialization")
    assert report.info["world_size"] == "8"
    assert report.info["hostname"] == "node-1"
    assert [tuple(gpu) for gpu in report.gpus] == [("3", "GPU-3")]
    assert report.first_step is None


def test_reports_hold_cumulative_state(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk, samples_per_step=32, tokens_per_step=100, flops_per_step=1e12, steps_planned=10)
    clock.advance(5)
    for _ in range(3):
        with run.phase("data_wait"):
            clock.advance(0.25)
        with run.phase("forward"):
            clock.advance(0.5)
        run.step()
    run.finish()
    report = desk.newest
    assert (report.state, report.activity) == ("finished", "training")
    assert report.step_seconds is not None
    assert (report.step_seconds.count, report.step_seconds.sum) == (3, 2.25)
    assert {name: phase.seconds for name, phase in report.phases.items()} == {
        "initialization": 5,
        "other": 0,
        "data_wait": 0.75,
        "forward": 1.5,
    }
    assert report.phases["data_wait"].occurrences == 3
    assert (report.counters["samples"], report.counters["tokens"], report.counters["flops"]) == (96, 300, 3e12)
    assert (report.gauges["step"], report.gauges["steps_planned"], report.gauges["batch_size"]) == (3, 10, 32)
    assert report.first_step == pytest.approx(report.start + 5.75)
    assert report.last_step == pytest.approx(report.start + 7.25)


def test_at_most_two_reports_a_second_leave_in_the_long_run(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for _ in range(1000):
        clock.advance(0.01)
        run.step()
        with run.phase("checkpoint"):
            clock.advance(0.01)
        with run.phase("evaluation"):
            clock.advance(0.01)
    assert 50 <= len(desk.reports) <= 30 * 2 + 2


def test_the_beginning_of_a_checkpoint_is_reported_at_once(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for _ in range(20):
        clock.advance(0.3)
        run.step()
    with run.phase("checkpoint"):
        assert desk.newest.activity == "checkpoint"
        clock.advance(40)
        with run.phase("logging"):
            pass  # any call sends what is due
        assert desk.newest.phases["checkpoint"].seconds == 40
        assert desk.newest.phases["checkpoint"].max == 40
    assert desk.newest.activity == "training"


def test_values_are_kept_until_reported_again(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.report(loss=2.0, learning_rate=1e-3, gradient_norm=1, epoch=4, accuracy=0.5)
    run.report(loss=1.0)
    run.finish()
    gauges = desk.newest.gauges
    assert (gauges["loss"], gauges["learning_rate"], gauges["gradient_norm"], gauges["epoch"]) == (1.0, 1e-3, 1, 4)
    assert desk.newest.values == {"accuracy": 0.5}


def test_a_loss_that_is_not_finite_is_counted_and_not_reported(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for loss in (1.5, float("nan"), float("inf"), 10**400):
        run.report(loss=loss)
    run.finish()
    assert desk.newest.counters["nonfinite_losses"] == 3
    assert desk.newest.gauges["loss"] == 1.5


def test_the_step_of_the_first_loss_that_is_not_finite_is_reported_until_a_finite_one(
    clock: ScriptedClock, desk: Desk
) -> None:
    run = new(clock, desk)
    for step, loss, since in ((7, 1.5, None), (8, float("nan"), 8), (9, float("inf"), 8), (10, 1.0, None)):
        run.report(step=step, loss=loss)
        clock.advance(60)
        with run.phase("logging"):
            pass  # any call sends what is due
        assert desk.newest.gauges.get("nonfinite_since_step") == since
    run.finish()


def test_numpy_s_numbers_are_taken(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.report(loss=np.float32(0.5), epoch=np.int64(2), accuracy=np.float64(0.25))
    run.finish()
    assert (desk.newest.gauges["loss"], desk.newest.gauges["epoch"]) == (0.5, 2)
    assert desk.newest.values == {"accuracy": 0.25}


@pytest.mark.parametrize(
    "evil", [Tensor(), Trap(1.0), "0.5", None, [1.0], 1j, object(), float("nan"), -float("inf"), np.zeros(1)]
)
def test_what_is_no_finite_number_is_dropped_alone(evil: object, clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.report(learning_rate=evil, samples=evil, steps_planned=evil, bad=evil, good=1.0)  # type: ignore[arg-type]
    run.finish()
    assert desk.newest.values == {"good": 1.0}
    assert "learning_rate" not in desk.newest.gauges
    assert "samples" not in desk.newest.counters


def test_a_dropped_value_is_warned_of_once(clock: ScriptedClock, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    run = new(clock, desk)
    with caplog.at_level(logging.WARNING, "stallscope"):
        for _ in range(3):
            run.report(loss=Tensor())  # type: ignore[arg-type]
    assert [record.name for record in caplog.records] == ["stallscope"]
    assert "loss is a Tensor" in caplog.text
    assert ".item()" in caplog.text


def test_values_beyond_the_limit_are_dropped_and_the_rest_kept(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for number in range(MAX_VALUES + 5):
        run.report(**{f"value {number}": number, "\n": 1, "x" * 200: 2})
    run.finish()
    assert len(desk.newest.values) == MAX_VALUES
    assert desk.newest.values["value 31"] == 31


def test_samples_reported_in_parts_add_up(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.report(samples=10, tokens=100)
    run.report(samples=5, flops=2.5, tokens=-1)
    run.finish()
    assert {key: desk.newest.counters[key] for key in ("samples", "tokens", "flops")} == {
        "samples": 15,
        "tokens": 100,
        "flops": 2.5,
    }


def test_a_new_batch_size_counts_from_the_next_step(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk, samples_per_step=10)
    run.step()
    run.report(batch_size=100)
    run.step()
    run.finish()
    assert desk.newest.counters["samples"] == 110
    assert desk.newest.gauges["batch_size"] == 100


def test_steps_go_on_from_a_restored_checkpoint(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.report(step=5000)
    run.step()
    run.finish()
    assert desk.newest.gauges["step"] == 5001


def test_slow_steps_count_unless_a_named_phase_explains_them(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for number in range(100):
        with run.phase("forward"):
            clock.advance(5.0 if number == 60 else 1.0)
        if number % 10 == 0:
            with run.phase("checkpoint"):
                clock.advance(20)
        run.step()
    run.finish()
    assert desk.newest.counters["slow_steps"] == 1
    assert desk.newest.counters["slow_step_excess_seconds"] == pytest.approx(4)


def test_dropped_reports_are_counted_by_cause_and_lose_nothing(clock: ScriptedClock, desk: Desk) -> None:
    desk.refusing = "queue_full"
    run = new(clock, desk)
    for _ in range(4):
        clock.advance(1)
        run.step()
    desk.refusing = None
    clock.advance(1)
    run.step()
    assert desk.newest.dropped == {"queue_full": 5}
    assert desk.newest.gauges["step"] == 5
    assert desk.newest.sequence == 6


def test_a_run_left_by_an_exception_has_failed(clock: ScriptedClock, desk: Desk) -> None:
    with pytest.raises(ZeroDivisionError), new(clock, desk):
        1 / 0  # noqa: B018
    assert desk.newest.state == "failed"


def test_a_run_left_as_usual_has_finished(clock: ScriptedClock, desk: Desk) -> None:
    with new(clock, desk):
        pass
    assert desk.newest.state == "finished"


def test_nothing_is_reported_after_the_end(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    held = run.phase("forward")
    run.finish()
    shown = len(desk.reports)
    clock.advance(10)
    run.step()
    run.report(loss=1.0)
    run.gauge("loss", 1.0)
    run.gpu_time("forward", 1.0)
    run.count("recompilations", 1)
    run.add("recompilations", 1)
    run.watch(lambda: shown.bit_length())
    run.on_step(print)
    run.describe(framework="jax")
    run.optimizer_step(run)
    run.fail(ValueError())
    run.finish("failed")
    with held, run.phase("forward"):
        clock.advance(10)
    assert len(desk.reports) == shown


def test_an_unknown_last_state_is_reported_as_failed(clock: ScriptedClock, desk: Desk) -> None:
    new(clock, desk).finish("done")
    assert desk.newest.state == "failed"


def test_gpu_time_is_reported_next_to_the_phase(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    with run.phase("forward"):
        clock.advance(1)
    run.gpu_time("forward", 3.0)
    run.gpu_time("forward", 0.5)
    run.finish()
    assert desk.newest.phases["forward"].gpu_seconds == 3.5
    assert desk.newest.phases["initialization"].gpu_seconds is None


def test_a_probe_of_its_own_speaks_for_the_process(clock: ScriptedClock, desk: Desk) -> None:
    class Probe:
        closed = False

        def read(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
            return {"process_cpu_seconds": 5.0}, {"process_memory_bytes": 7.0}

        def close(self) -> None:
            self.closed = True

    probe = Probe()
    run = new(clock, desk, process=probe, pid=70_003)
    run.finish()
    assert desk.newest.counters["process_cpu_seconds"] == 5
    assert desk.newest.gauges["process_memory_bytes"] == 7
    assert desk.newest.pid == 70_003
    assert probe.closed


def test_a_scripted_run_without_a_probe_has_no_process_values(clock: ScriptedClock, desk: Desk) -> None:
    new(clock, desk)
    assert "process_cpu_seconds" not in desk.newest.counters


def test_a_failing_probe_or_sender_does_not_reach_the_training(clock: ScriptedClock, desk: Desk) -> None:
    class Broken:
        def read(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
            raise OSError("no")

        def close(self) -> None:
            raise OSError("no")

    run = new(clock, desk, process=Broken())
    run.finish()
    assert desk.newest.state == "finished"

    def burning(payload: bytes) -> None:
        raise RuntimeError("on fire")

    SimulatedRun("job", clock=clock, sender=burning).finish()


def test_strict_raises_what_would_be_logged(clock: ScriptedClock, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new(clock, desk)
    monkeypatch.setenv("STALLSCOPE_STRICT", "1")
    with pytest.raises(ValueError, match="loss is a Tensor"):
        run.report(loss=Tensor())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a phase is named"):
        run.phase("")
    with pytest.raises(ValueError, match="precision"):
        new(clock, desk, precision="int3")


def test_disabled_a_run_does_and_sends_nothing(
    clock: ScriptedClock, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_DISABLE", "1")
    with new(clock, desk) as run:
        with run.phase("forward"):
            clock.advance(1)
        run.report(loss=1.0)
        run.step()
        assert list(stallscope.track([1, 2], run)) == [1, 2]
    assert desk.reports == []
    assert run.timeline.steps == 0


@pytest.mark.parametrize("name", [5, "", "\n", "x" * 500, "näme", b"bytes", object()])
def test_any_name_makes_an_acceptable_report(name: object, clock: ScriptedClock, desk: Desk) -> None:
    SimulatedRun(name, clock=clock, sender=desk)  # type: ignore[arg-type]
    assert desk.newest.run


@pytest.mark.parametrize("settings", [{"rank": "x"}, {"rank": -1}, {"gpus": 3}, {"info": 3}, {"clock": 3}])
def test_a_run_that_cannot_start_is_silent(settings: dict[str, object], clock: ScriptedClock, desk: Desk) -> None:
    run = SimulatedRun("job", **{"clock": clock, "sender": desk, **settings})  # type: ignore[arg-type]
    run.step()
    run.report(loss=1.0)
    with run.phase("forward"):
        pass
    run.finish()
    assert run.silent
    assert desk.reports == []


def test_a_copy_of_a_run_is_silent(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    shown = len(desk.reports)
    for other in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
        other.step()
        other.report(loss=1.0)
        other.finish()
        assert list(stallscope.track([1], other)) == [1]
    assert len(desk.reports) == shown
    assert not run.silent


def test_the_real_clock_and_process_make_an_acceptable_report(desk: Desk) -> None:
    with stallscope.Run(sender=desk) as run:
        run.step()
        run.step()
    report = desk.newest
    assert report.counters["process_cpu_seconds"] > 0
    assert report.gauges["process_memory_bytes"] > 1e6
    assert report.gauges["cpu_limit_cores"] > 0
    assert report.counters["shim_overhead_seconds"] > 0
    assert report.info["hostname"]


def test_importing_the_package_loads_nothing_heavy() -> None:
    script = "import json, sys, stallscope; stallscope.track; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(subprocess.check_output([sys.executable, "-c", script])))
    assert "stallscope.training.shim.run" in loaded
    heavy = {"asyncio", "http.client", "inspect", "logging", "multiprocessing", "pathlib", "ssl", "urllib.request"}
    assert not loaded & (heavy | {"prometheus_client", "numpy", "psutil", "stallscope.model.catalogue.metrics"})


ON_DEMAND = (
    "address async_batches bursts checked_numbers code_location described devices fitting gpu_counters hot_lines"
    " http_transport launch launched loop_plan other_launchers own_work pipeline pod rebooking reported_values"
    " repository requested_stacks run_names signing slow_steps step_requests stopping stored_reports storing tracing"
    " worker_samples"
)
"""Modules of the shim that a run imports when it has something for them to do."""
AFTER_THE_FIRST_STEP = "endings observer observers overhead process program_end"
"""Modules that a run imports after its first step; those of observers earlier if an exporter listens."""
MOST_IMPORTED_LINES = 2919
"""Lines of the package that a named run imports before its first step."""
MOST_WITH_EXPORTER = 4402
"""Such lines with an exporter, which also receives the stack of a hang, and the notice of a signal, before a step."""
_IMPORTS = """
import json, sys, stallscope
for number in stallscope.track([1, 2, 3], run="job"):
    if number != 2:
        found = [[name, module.__file__] for name, module in sys.modules.items() if name[:10] == "stallscope"]
        print(json.dumps(found))
"""


def imported_before_and_after_the_first_step(address: str, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the modules of the package, and their files, that a program has imported in its first and third step.

    No launcher has started the program, and its folder, which is the working folder, is in no repository.
    """
    environment = {"PATH": os.environ["PATH"], "STALLSCOPE_ADDRESS": address}
    command = [sys.executable, "-c", _IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder)
    before, after = (dict(json.loads(line)) for line in done.stdout.splitlines())
    return before, after


def lines_of(files: Mapping[str, str]) -> int:
    return sum(Path(file).read_text().count("\n") for file in files.values())


def test_a_run_imports_its_core_before_the_first_step(tmp_path: Path) -> None:
    before, after = imported_before_and_after_the_first_step("unix:///nowhere/report.sock", tmp_path)
    late = {f"stallscope.training.shim.{name}" for name in AFTER_THE_FIRST_STEP.split()}
    assert "stallscope.training.shim.session" in before
    assert not {f"stallscope.training.shim.{name}" for name in ON_DEMAND.split()} & set(before)
    assert not late & set(before)
    assert late <= set(after)
    assert lines_of(before) <= MOST_IMPORTED_LINES


def test_a_run_with_an_exporter_observes_stacks_and_signals_from_its_first_report(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as exporter:
        exporter.bind(str(tmp_path / "report.sock"))
        before, _ = imported_before_and_after_the_first_step(f"unix://{tmp_path}/report.sock", tmp_path)
    assert {f"stallscope.training.shim.{name}" for name in ("stacks", "termination", "observers")} <= set(before)
    assert not {f"stallscope.training.shim.{name}" for name in ON_DEMAND.split()} & set(before)
    assert lines_of(before) <= MOST_WITH_EXPORTER


@pytest.mark.parametrize("missing", [*AFTER_THE_FIRST_STEP.split(), "loop_plan", "reported_values", "slow_steps"])
def test_a_module_that_cannot_be_imported_later_does_not_reach_the_training(missing: str) -> None:
    script = f"""
import sys, stallscope
sys.modules["stallscope.training.shim.{missing}"] = None  # whose import fails
run = stallscope.Run("job", interval=0)
for number in stallscope.track(range(3), run, steps_planned=6):
    run.report(loss=number)
    print(number)
for number in stallscope.track(range(3), run):
    break
sys.exit(7)
"""
    environment = {**os.environ, "STALLSCOPE_ADDRESS": "unix:///nowhere/report.sock"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (7, "0\n1\n2\n")
    assert "Traceback" not in done.stderr


def test_the_shim_needs_nothing_but_the_standard_library() -> None:
    """As an interpreter without site-packages sees it."""
    folder = Path(stallscope.__file__).parents[1]
    script = f"""
import sys
sys.path.insert(0, {str(folder)!r})
import stallscope
for _ in stallscope.track(range(3), stallscope.Run("job")):
    pass
for module in sorted(sys.modules):
    print(module)
"""
    loaded = subprocess.check_output([sys.executable, "-S", "-E", "-c", script], text=True).split()
    assert "stallscope.training.shim.loader" in loaded
    roots = {module.partition(".")[0] for module in loaded} - {"stallscope", "__main__"}
    assert roots <= sys.stdlib_module_names
    assert not {"typing", "json", "re", "logging", "threading"} & set(loaded)  # each takes milliseconds


def test_counters_are_set_as_totals_or_by_increments(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.count("recompilations", 3)
    run.count("recompilations", 5)
    run.add("allocator_retries", 1)
    run.add("allocator_retries", 2)
    run.finish()
    assert desk.newest.counters["recompilations"] == 5
    assert desk.newest.counters["allocator_retries"] == 3


def test_a_counter_that_was_reset_elsewhere_goes_on_growing(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for total in (4, 1, 2):
        run.count("recompilations", total)
    run.finish()
    assert desk.newest.counters["recompilations"] == 6


@pytest.mark.parametrize(("key", "value"), [("slow_steps", 1), ("nonsense", 1), ("recompilations", -1), ([], 1)])
def test_what_cannot_be_counted_is_refused(key: str, value: float, clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.count(key, value)
    run.add(key, value)
    run.finish()
    assert desk.newest.counters.get("recompilations", 0) == 0
    assert desk.newest.counters["slow_steps"] == 0


def test_watchers_are_called_before_each_report_and_not_between(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    calls = 0

    def refresh() -> None:
        nonlocal calls
        calls += 1
        run.gauge("allocator_used_bytes", calls)

    run.watch(refresh)
    for _ in range(30):
        clock.advance(0.1)
        run.step()
    run.finish()
    assert 3 <= calls == len(desk.reports) - 1  # the first left with the run's start
    assert desk.newest.gauges["allocator_used_bytes"] == calls


def test_a_watcher_that_raises_is_warned_of_and_called_no_more(
    clock: ScriptedClock, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    run = new(clock, desk)
    calls = []

    def broken() -> None:
        calls.append(1)
        raise RuntimeError("no device")

    run.watch(broken)
    for _ in range(3):
        clock.advance(1)
        run.step()
    assert len(calls) == 1
    assert "no device" in caplog.text
    assert desk.newest.gauges["step"] == 3


def test_what_is_found_out_late_describes_the_rank(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk, precision="fp32")
    run.describe(framework="jax", precision=["bf16", "tf32"], gpus=[{"gpu": "", "uuid": "GPU-7"}])
    run.finish()
    assert desk.newest.info["framework"] == "jax"
    assert desk.newest.precision == ("bf16", "tf32")
    assert [gpu.uuid for gpu in desk.newest.gpus] == ["GPU-7"]


def test_describing_nothing_leaves_all_as_it_is(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk, precision="fp16", gpus=[{"gpu": "1", "uuid": ""}])
    run.describe()
    run.finish()
    assert desk.newest.precision == ("fp16",)
    assert [gpu.gpu for gpu in desk.newest.gpus] == ["1"]


class OutOfMemoryError(RuntimeError):
    """By its name PyTorch's."""


@pytest.mark.parametrize(
    ("error", "out_of_memory"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"), 1),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes"), 1),
        (RuntimeError("shape mismatch"), 0),
        (RuntimeError(), 0),
        (MemoryError(), 0),
        (None, 0),
    ],
)
def test_a_failure_reports_its_type_and_out_of_memory(
    error: BaseException | None, out_of_memory: int, clock: ScriptedClock, desk: Desk
) -> None:
    run = new(clock, desk)
    run.fail(error)
    assert desk.newest.state == "failed"
    assert desk.newest.failure == ("" if error is None else type(error).__name__)
    assert desk.newest.counters.get("out_of_memory", 0) == out_of_memory
    assert run.silent


def test_out_of_memory_that_the_framework_counts_is_not_counted_twice(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.watch(lambda: run.count("out_of_memory", 1))
    clock.advance(1)
    run.step()
    run.fail(OutOfMemoryError())
    assert desk.newest.counters["out_of_memory"] == 1


def test_listeners_receive_each_boundary_until_they_return_false(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    received: list[int] = []

    def listen(step: int) -> bool:
        received.append(step)
        return step < 1002

    run.report(step=1000)
    run.on_step(listen)
    for _ in range(5):
        run.step()
    assert received == [1001, 1002]
    assert run.timeline.listener is None


def test_a_listener_that_raises_is_removed(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    received: list[int] = []

    def broken(step: int) -> None:
        raise RuntimeError(step)

    run.on_step(broken)
    run.on_step(received.append)
    run.step()
    run.step()
    assert received == [1, 2]
    assert run.timeline.steps == 2


def test_time_that_a_listener_books_is_in_the_step_that_begins(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    run.step()

    def write(step: int) -> None:
        with run.phase("tracing"):
            clock.advance(3)

    run.on_step(write)
    clock.advance(1)
    run.step()
    clock.advance(1)
    run.finish()
    assert desk.newest.phases["tracing"].seconds == 3
    assert desk.newest.step_seconds is not None
    assert desk.newest.step_seconds.sum == 1
    assert sum(phase.seconds for phase in desk.newest.phases.values()) == 5


def test_several_optimizers_make_one_step(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    generator, discriminator = object(), object()
    for _ in range(3):
        run.optimizer_step(discriminator)
        run.optimizer_step(generator)
    assert run.timeline.steps == 3


def test_an_optimizer_that_is_gone_leaves_its_place_to_another(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    warming, lasting = object(), object()
    run.optimizer_step(warming)
    for _ in range(200):
        run.optimizer_step(lasting)
    assert 100 < run.timeline.steps < 200


def test_an_optimizer_that_replaces_the_only_one_loses_one_step(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for optimizer in (object(), object(), object()):
        for _ in range(20):
            run.optimizer_step(optimizer)
    assert run.timeline.steps == 58


def test_an_optimizer_that_steps_once_after_many_steps_of_another_replaces_nothing(
    clock: ScriptedClock, desk: Desk
) -> None:
    run = new(clock, desk)
    generator, critic = object(), object()
    for _ in range(3):
        for _ in range(100):
            run.optimizer_step(critic)
        run.optimizer_step(generator)
    assert run.timeline.steps == 300


def test_the_open_run_of_this_process_is_returned(desk: Desk) -> None:
    assert stallscope.current() is None
    with stallscope.Run("job", sender=desk) as run:
        assert stallscope.current() is run
    assert stallscope.current() is None


def test_a_run_describes_itself(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk, rank=3, gpus=[{"gpu": "3", "uuid": ""}])
    run.report(step=7)
    assert run.about()["rank"] == 3
    assert run.about()["session"] == desk.newest.session
    assert (run.steps_done, run.gpus, run.sender) == (7, [{"gpu": "3", "uuid": ""}], desk)
    assert run.wall_time() == clock.time()


def slow_steps_of(run: stallscope.Run, desk: Desk) -> tuple[float, float]:
    run.finish()
    return desk.newest.counters["slow_steps"], desk.newest.counters["slow_step_excess_seconds"]


def test_the_wait_for_an_epoch_s_first_batches_makes_no_slow_step(clock: ScriptedClock, desk: Desk) -> None:
    """The time that workers take to restart is reported as data_wait; the steps stay in the histogram."""
    run = new(clock, desk)
    for _ in range(4):
        for batch in stallscope.track(range(50), run):
            clock.advance(9 if batch < 2 else 1)
    assert slow_steps_of(run, desk) == (0, 0)
    assert desk.newest.step_seconds is not None
    assert (desk.newest.step_seconds.count, desk.newest.step_seconds.sum) == (200, 4 * (2 * 9 + 48))


def test_a_step_in_the_middle_of_an_epoch_is_slow_still(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for _ in range(4):
        for batch in stallscope.track(range(50), run):
            clock.advance(9 if batch == 25 else 1)
    assert slow_steps_of(run, desk) == (4, 32)


def test_the_first_step_after_an_evaluation_is_never_slow(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for number in range(200):
        if number % 50 == 49:
            with run.phase("evaluation"):
                clock.advance(100)
            clock.advance(4)
        clock.advance(1)
        run.step()
    assert slow_steps_of(run, desk) == (0, 0)


def reported_steps(run: stallscope.Run, clock: ScriptedClock, *tokens: float, rate: float = 0.001) -> None:
    """Make steps whose length follows their tokens, and report the tokens before each boundary."""
    for each in tokens:
        clock.advance(each * rate)
        run.report(tokens=each)
        run.step()


def test_long_sequences_make_no_slow_steps_where_tokens_are_reported(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    reported_steps(run, clock, *[512, 512, 512, 2048] * 15)
    assert slow_steps_of(run, desk) == (0, 0)


def test_a_step_that_is_slow_for_its_tokens_counts(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    reported_steps(run, clock, *[512, 512, 512, 2048] * 15)
    reported_steps(run, clock, 2048, rate=0.003)
    count, excess = slow_steps_of(run, desk)
    assert count == 1
    assert excess == pytest.approx(4.096)


def test_tokens_of_an_evaluation_belong_to_no_step(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    reported_steps(run, clock, *[512, 512, 512, 2048] * 15)
    with run.phase("evaluation"):
        run.report(tokens=1e6)
        clock.advance(30)
    reported_steps(run, clock, 512, 2048)
    assert slow_steps_of(run, desk) == (0, 0)


def test_a_batch_size_that_changes_makes_no_slow_steps(clock: ScriptedClock, desk: Desk) -> None:
    run = new(clock, desk)
    for number in range(60):
        size = 32 if number % 4 == 3 else 8
        run.report(batch_size=size)
        clock.advance(size / 8)
        run.step()
    assert slow_steps_of(run, desk) == (0, 0)
