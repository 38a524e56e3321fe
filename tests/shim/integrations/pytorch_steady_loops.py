"""Loops whose events are noted and processed later: their reports must equal those of events processed at once.

Run in a process of their own by `test_pytorch.py`. A scripted clock moves while something computes, so that reports
are equal to the last digit.
"""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.integrations import pytorch
from stallscope.training.integrations.pytorch_steady import SteadyLoop
from tests.shim.conftest import Desk
from tests.shim.integrations.pytorch_gpu import Device
from tests.shim.integrations.pytorch_loops import STEP, Optimizer, Parts, Samples

pytestmark = pytest.mark.usefixtures("strict")

NEVER = 1e6
"""Seconds between reports."""


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of optimizer steps that were noted, one for each time that the noting ended."""
    found: list[int] = []
    original = SteadyLoop.end

    def end(steady: SteadyLoop) -> None:
        was_open, began = steady.is_open, steady._began
        original(steady)
        if was_open and not steady.is_open:
            found.append(steady.steps - began)

    monkeypatch.setattr(SteadyLoop, "end", end)
    return found


class Job(Parts):
    """A model, its optimizer and a loader of forty batches."""

    def __init__(self, run: stallscope.Run, clock: ScriptedClock) -> None:
        super().__init__(clock)
        self.run = run
        self.loader = DataLoader(Samples(clock, 80), batch_size=2)


def plain(job: Job) -> None:
    for batch in job.loader:
        job.train(batch)


def several_epochs(job: Job) -> None:
    for _ in range(3):
        for batch in job.loader:
            job.train(batch)
        job.model.eval()
        with torch.no_grad():
            job.evaluate()
        job.model.train()


def unknown_samples(job: Job) -> None:
    batches = [(torch.ones(3 + number % 2, 4), torch.zeros(3 + number % 2, 2)) for number in range(40)]
    for batch in DataLoader(batches, batch_size=None):
        job.clock.advance(0.25)
        job.train(batch)


def clipped_gradients(job: Job) -> None:
    for inputs, targets in job.loader:
        torch.nn.functional.mse_loss(job.model(inputs), targets).backward()
        job.clock.advance(0.125)
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)
        with torch.no_grad():
            job.clock.advance(0.5)
        job.optimizer.step()
        job.model.train()


def accumulated_gradients(job: Job) -> None:
    for number, batch in enumerate(job.loader):
        job.train(batch, step=number % 4 == 3)


def evaluation_amid(job: Job) -> None:
    for number, batch in enumerate(job.loader):
        job.train(batch)
        if number in (5, 20):
            job.model.eval()
            with torch.no_grad():
                job.evaluate(2)
            job.model.train()


def teacher_from_the_middle_on(job: Job) -> None:
    teacher = torch.nn.Linear(4, 2)
    for number, (inputs, targets) in enumerate(job.loader):
        if number > 20:
            with torch.no_grad():
                job.clock.advance(0.375)
                targets = teacher(inputs)
        job.train((inputs, targets))


def checkpoint_amid(job: Job) -> None:
    for number, batch in enumerate(job.loader):
        job.train(batch)
        if number == 20:
            with job.run.phase("checkpoint"):
                job.clock.advance(3.0)
            torch.save(job.model.state_dict(), io.BytesIO())


def own_phase_amid(job: Job) -> None:
    for number, batch in enumerate(job.loader):
        job.train(batch)
        if number % 10 == 9:
            with job.run.phase("logging"):
                job.clock.advance(0.5)
        job.run.report(loss=0.5, step=number)


def phase_around_the_loop(job: Job) -> None:
    with job.run.phase("tuning"):
        for batch in job.loader:
            job.train(batch)


def loss_is_read_in_a_listener(job: Job) -> None:
    seen: list[int] = []
    for number, batch in enumerate(job.loader):
        job.train(batch)
        if number == 20:
            job.run.on_step(seen.append)
    assert len(seen) in (19, 20)


def two_optimizers(job: Job) -> None:
    other = Optimizer(torch.nn.Linear(4, 2), job.clock)
    for batch in job.loader:
        job.train(batch, step=False)
        job.optimizer.step()
        other.step()


def closures(job: Job) -> None:
    optimizer = torch.optim.LBFGS(job.model.parameters(), max_iter=2)
    for inputs, targets in job.loader:

        def closure(inputs: Any = inputs, targets: Any = targets) -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(job.model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)


def loader_inside_a_loader(job: Job) -> None:
    inner = DataLoader(Samples(job.clock, 4), batch_size=4)

    class Outer(Samples):
        def __getitem__(self, index: int) -> Any:
            return next(iter(inner))[0][0], torch.zeros(2)

    for batch in DataLoader(Outer(job.clock, 80), batch_size=2):
        job.train(batch)


def new_model_amid(job: Job) -> None:
    for number, batch in enumerate(job.loader):
        if number == 20:
            fresh = Parts(job.clock)
            job.model, job.optimizer = fresh.model, fresh.optimizer
        job.train(batch)


def a_batch_that_fails(job: Job) -> None:
    for number, (inputs, targets) in enumerate(job.loader):
        with contextlib.suppress(RuntimeError):
            job.train((inputs if number != 20 else inputs[:, :3], targets))
        job.clock.advance(0.75)


def left_early_and_begun_again(job: Job) -> None:
    for _ in range(2):
        for number, batch in enumerate(job.loader):
            job.train(batch)
            if number == 20:
                break
        job.clock.advance(5.0)


def scaled_gradients(job: Job) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number, (inputs, targets) in enumerate(job.loader):
        loss = torch.nn.functional.mse_loss(job.model(inputs), targets)
        scaler.scale(loss * (float("inf") if number in (10, 25) else 1.0)).backward()
        scaler.step(job.optimizer)
        scaler.update()
        job.optimizer.zero_grad()


LOOPS: tuple[Callable[[Job], None], ...] = (
    plain,
    several_epochs,
    unknown_samples,
    clipped_gradients,
    accumulated_gradients,
    evaluation_amid,
    teacher_from_the_middle_on,
    checkpoint_amid,
    own_phase_amid,
    phase_around_the_loop,
    loss_is_read_in_a_listener,
    two_optimizers,
    closures,
    loader_inside_a_loader,
    new_model_amid,
    a_batch_that_fails,
    left_early_and_begun_again,
    scaled_gradients,
)
NEVER_STEADY = (phase_around_the_loop, loader_inside_a_loader)


def reported(loop: Callable[[Job], None], interval: float) -> dict[str, Any]:
    """Run a loop; return what the last report says of it."""
    clock, desk = ScriptedClock(), Desk()
    torch.manual_seed(0)
    run = SimulatedRun("job", clock=clock, sender=desk, interval=interval)
    pytorch.watch(run=run)
    loop(Job(run, clock))
    run.finish()
    pytorch.unwatch()
    report = desk.newest
    return {
        "phases": {name: phase for name, phase in report.phases.items() if phase.occurrences},
        "steps": report.step_seconds,
        "first": report.first_step,
        "last": report.last_step,
        "counters": report.counters,
        "gauges": report.gauges,
        "values": report.values,
        "activity": report.activity,
    }


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("interval", [17.0, 40.0, NEVER])
def test_reports_are_as_if_each_event_had_been_processed_at_once(
    loop: Callable[[Job], None], interval: float, noted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = reported(loop, interval)
    assert sum(noted) >= 5 or loop in NEVER_STEADY
    noted.clear()
    with monkeypatch.context() as patch:
        patch.setattr(SteadyLoop, "begin", lambda *_, **__: None)
        expected = reported(loop, interval)
    assert not noted
    assert expected["steps"].count > 0
    assert result == expected


def test_a_report_that_is_due_contains_the_steps_until_then(noted: list[int]) -> None:
    clock, desk = ScriptedClock(), Desk()
    run = SimulatedRun("job", clock=clock, sender=desk, interval=10.0)
    pytorch.watch(run=run)
    job = Job(run, clock)
    for batch in job.loader:
        job.train(batch)
    assert len(noted) == 1, "the noting went on all the time"
    reports = [report for report in desk.reports if report.step_seconds is not None]
    assert len(reports) >= 6
    for earlier, later in itertools.pairwise(reports):
        assert 10.0 <= later.sent - earlier.sent <= 10.0 + STEP
    for report in reports:
        assert report.last_step is not None
        assert report.sent - report.last_step <= STEP


def test_what_the_loop_has_left_is_not_kept_alive(desk: Desk, clock: ScriptedClock) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk, interval=NEVER)
    pytorch.watch(run=run)
    job = Job(run, clock)
    for number, batch in enumerate(job.loader):
        job.train(batch)
        if number == 20:
            break
    gone = [weakref.ref(each) for each in (job.model, job.optimizer, batch[0])]
    del job, batch
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
    run.finish()
    assert desk.newest.step_seconds is not None
    assert desk.newest.step_seconds.count == 21


def test_another_thread_changes_nothing(desk: Desk, clock: ScriptedClock) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk, interval=NEVER)
    pytorch.watch(run=run)
    job = Job(run, clock)
    other = torch.nn.Linear(4, 2)

    def meanwhile() -> None:
        for inputs, _ in DataLoader([(torch.ones(4), 0.0)], batch_size=1):
            with torch.no_grad():
                other(inputs)
        other(torch.ones(1, 4)).sum().backward()
        other.eval()
        torch.save(other.state_dict(), io.BytesIO())

    for number, batch in enumerate(job.loader):
        job.train(batch)
        if number in (20, 30):
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join()
    run.finish()
    report = desk.newest
    assert report.step_seconds is not None
    assert report.step_seconds.count == 40
    assert report.phases["forward"].occurrences == 40
    assert not {"evaluation", "checkpoint"} & {name for name, phase in report.phases.items() if phase.occurrences}


@pytest.mark.parametrize("notes", [True, False])
def test_the_gpus_clock_times_the_same_phases(notes: bool, noted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    device.attach(monkeypatch)
    if not notes:
        monkeypatch.setattr(SteadyLoop, "begin", lambda *_, **__: None)
    clock, desk = ScriptedClock(), Desk()
    run = SimulatedRun("job", clock=clock, sender=desk, interval=10.0)
    pytorch.watch(run=run)
    job = Job(run, clock)
    for inputs, targets in job.loader:
        device.work(0.5)
        loss = torch.nn.functional.mse_loss(job.model(inputs), targets)
        device.work(0.25)
        loss.backward()
        job.optimizer.step()
        device.catch_up()
    run.finish()
    assert bool(sum(noted)) == notes
    phases = desk.newest.phases
    assert {name: phases[name].occurrences for name in ("forward", "backward", "optimizer")} == {
        "forward": 40,
        "backward": 40,
        "optimizer": 40,
    }
    assert all(phases[name].gpu_seconds is not None for name in ("forward", "backward", "optimizer"))


class LateBatches:
    """Samples of which each eighth pair comes late."""

    def __init__(self, clock: ScriptedClock) -> None:
        self._clock = clock

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index % 16 == 0:
            self._clock.advance(4.0)
        return torch.ones(4), torch.zeros(2)


@pytest.mark.parametrize("notes", [True, False])
def test_a_late_batch_belongs_to_its_step_on_the_gpu(
    notes: bool, noted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    device.attach(monkeypatch)
    if not notes:
        monkeypatch.setattr(SteadyLoop, "begin", lambda *_, **__: None)
    clock, desk = ScriptedClock(), Desk()
    run = SimulatedRun("job", clock=clock, sender=desk, interval=10.0)
    pytorch.watch(run=run)
    job = Job(run, clock)
    job.model.register_forward_pre_hook(lambda *_: device.work(0.5))
    for number, (inputs, targets) in enumerate(DataLoader(LateBatches(clock), batch_size=2)):
        loss = torch.nn.functional.mse_loss(job.model(inputs), targets)
        backward = 1.125 if number % 8 == 0 else 5.125  # in the other steps it waits for another rank
        loss.register_hook(lambda _, seconds=backward: device.work(seconds))
        loss.backward()
        job.optimizer.step()
        device.catch_up()
    run.finish()
    assert bool(sum(noted)) == notes
    counters = desk.newest.counters
    assert counters["late_batch_rest_seconds"] / counters["late_batch_steps"] == pytest.approx(0.125, rel=0.1)


def test_long_steps_are_processed_at_once_so_that_reports_leave_between_their_phases(noted: list[int]) -> None:
    clock, desk = ScriptedClock(), Desk()
    run = SimulatedRun("job", clock=clock, sender=desk, interval=0.5)
    pytorch.watch(run=run)
    plain(Job(run, clock))
    run.finish()
    assert sum(noted) == 0
    assert len(desk.reports) > 2 * 40


def test_a_step_that_becomes_long_ends_the_noting(noted: list[int]) -> None:
    clock, desk = ScriptedClock(), Desk()
    run = SimulatedRun("job", clock=clock, sender=desk, interval=10.0)
    pytorch.watch(run=run)
    job = Job(run, clock)
    for number, batch in enumerate(job.loader):
        clock.advance(30.0 if number >= 20 else 0.0)
        job.train(batch)
    run.finish()
    assert len(noted) == 1
    assert noted[0] < 20
