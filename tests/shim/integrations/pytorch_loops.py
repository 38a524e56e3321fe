"""Real PyTorch loops, watched: run in a process of their own by `test_pytorch.py`, since PyTorch changes its process.

What computes moves a scripted clock, so that every phase's time is known to the last digit.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import gc
import io
import json
import operator
import os
import pickle
import pickletools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
import torch.optim.optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.integrations import pytorch, pytorch_input
from stallscope.training.integrations.pytorch_device import ReducerClock
from stallscope.training.protocol.report import Phase
from stallscope.training.shim import identity, lifetime
from tests.shim.conftest import Desk

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning"),  # of Python 3.13.0 itself
]
FETCH, FORWARD, BACKWARD, OPTIMIZER = 0.25, 0.5, 1.0, 0.125
STEP = 2 * FETCH + FORWARD + BACKWARD + OPTIMIZER
"""Seconds of the scripted clock: each sample, and each step with its batch of two."""


@pytest.fixture
def run(desk: Desk, clock: ScriptedClock) -> stallscope.Run:
    return SimulatedRun("job", clock=clock, sender=desk)


class Samples(Dataset[Any]):
    """A data set of which each sample takes a quarter of a second."""

    def __init__(self, clock: ScriptedClock, length: int = 8) -> None:
        self.clock = clock
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.clock.advance(FETCH)
        return torch.full((4,), float(index)), torch.zeros(2)


class Stream(IterableDataset[Any]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[index] for index in range(len(self.samples)))


class Takes(torch.autograd.Function):
    """The identity, of which the gradient takes a second."""

    @staticmethod
    def forward(context: Any, tensor: Any, clock: ScriptedClock) -> Any:
        context.clock = clock
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        context.clock.advance(BACKWARD)
        return gradients[0], None


class Model(torch.nn.Module):
    def __init__(self, clock: ScriptedClock) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.clock = clock

    def forward(self, batch: Any) -> Any:
        self.clock.advance(FORWARD)
        return Takes.apply(self.layer(batch), self.clock)


class Optimizer(torch.optim.SGD):
    def __init__(self, model: torch.nn.Module, clock: ScriptedClock) -> None:
        super().__init__(model.parameters(), lr=0.01)
        self.clock = clock

    def step(self, closure: Any = None) -> Any:
        self.clock.advance(OPTIMIZER)
        return super().step(closure)


class Parts:
    """A model, its optimizer and a loader of four batches."""

    def __init__(self, clock: ScriptedClock) -> None:
        self.clock = clock
        self.model = Model(clock)
        self.optimizer = Optimizer(self.model, clock)
        self.loader = DataLoader(Samples(clock), batch_size=2)

    def train(self, batch: Any, step: bool = True) -> Any:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        if step:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss

    def evaluate(self, batches: int = 1000) -> None:
        for number, (inputs, _) in enumerate(DataLoader(Samples(self.clock), batch_size=2), start=1):
            self.model(inputs)
            if number == batches:
                break


@pytest.fixture
def parts(clock: ScriptedClock) -> Parts:
    return Parts(clock)


class LastReport:
    """Everything that a run has reported by its end."""

    def __init__(self, run: stallscope.Run, desk: Desk) -> None:
        run.finish()
        self.report = desk.newest
        self.values = self.report.values
        self.counters = self.report.counters
        self.gauges = self.report.gauges

    def __getitem__(self, phase: str) -> Any:
        return self.phase(phase).seconds

    def phase(self, name: str) -> Phase:
        return self.report.phases.get(name, Phase(0.0, 0, 0.0, None))

    @property
    def steps(self) -> int:
        return 0 if self.report.step_seconds is None else self.report.step_seconds.count

    @property
    def step_seconds(self) -> Any:
        assert self.report.step_seconds is not None
        return self.report.step_seconds.sum


class Watched(Parts):
    """A model that is watched, and its run."""

    def __init__(self, run: stallscope.Run, desk: Desk, clock: ScriptedClock) -> None:
        super().__init__(clock)
        self.run, self._desk = run, desk
        pytorch.watch(self.model, run=run)

    def train_epoch(self) -> None:
        for batch in self.loader:
            self.train(batch)

    def last_report(self) -> LastReport:
        return LastReport(self.run, self._desk)


@pytest.fixture
def watched(run: stallscope.Run, desk: Desk, clock: ScriptedClock) -> Watched:
    return Watched(run, desk, clock)


def test_each_phase_has_its_time(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    pytorch.watch(parts.model, parts.optimizer, parts.loader, run=run)
    for batch in parts.loader:
        parts.train(batch)
    last = LastReport(run, desk)
    assert last.steps == 4
    assert last["data_wait"] == pytest.approx(8 * FETCH)
    assert last["forward"] == pytest.approx(4 * FORWARD)
    assert last["backward"] == pytest.approx(4 * BACKWARD)
    assert last["optimizer"] == pytest.approx(4 * OPTIMIZER)
    assert last.step_seconds == pytest.approx(4 * STEP)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_loader_is_described_whether_it_is_named_or_found(
    is_named: bool, run: stallscope.Run, desk: Desk, parts: Parts
) -> None:
    pytorch.watch(parts.model, parts.optimizer, parts.loader if is_named else None, run=run)
    for _ in range(2):
        for batch in parts.loader:
            parts.train(batch)
    last = LastReport(run, desk)
    assert (last.gauges["dataloader_workers"], last.gauges["batch_size"], last.gauges["epoch"]) == (0, 2, 1)
    assert last.counters["samples"] == 16


def test_a_loader_of_a_class_with_its_own_iterator_is_described(
    run: stallscope.Run, desk: Desk, parts: Parts, clock: ScriptedClock
) -> None:
    class Stateful(DataLoader[Any]):
        def __iter__(self) -> Any:
            return _SingleProcessDataLoaderIter(self)

    loader = Stateful(Samples(clock), batch_size=2)
    pytorch.watch(run=run)
    for _ in range(2):
        for batch in loader:
            parts.train(batch)
    last = LastReport(run, desk)
    assert (last.gauges["dataloader_workers"], last.gauges["batch_size"], last.gauges["epoch"]) == (0, 2, 1)
    assert last.counters["samples"] == 16


def test_phases_sum_to_the_time_of_the_run(run: stallscope.Run, desk: Desk, parts: Parts, clock: ScriptedClock) -> None:
    clock.advance(30)
    pytorch.watch(run=run)
    for batch in parts.loader:
        parts.train(batch)
        clock.advance(0.0625)
    parts.model.eval()
    parts.evaluate()
    last = LastReport(run, desk)
    assert sum(phase.seconds for phase in last.report.phases.values()) == pytest.approx(clock.monotonic())
    assert last["initialization"] == pytest.approx(30)


def test_every_module_with_parameters_that_a_step_calls_is_forward(
    run: stallscope.Run, desk: Desk, clock: ScriptedClock
) -> None:
    pytorch.watch(run=run)
    parts = Parts(clock)
    teacher = Model(clock)
    loss = torch.nn.MSELoss()
    for inputs, _ in parts.loader:
        with torch.no_grad():
            targets = teacher(inputs)
        loss(parts.model(inputs), targets).backward()
        parts.optimizer.step()
    last = LastReport(run, desk)
    assert last.phase("forward").occurrences == 8  # from the first step on
    assert (last["forward"], last["evaluation"]) == (pytest.approx(8 * FORWARD), 0)


def test_only_the_outermost_model_is_timed(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    whole = torch.nn.Sequential(parts.model, torch.nn.Tanh())
    pytorch.watch([whole, parts.model], run=run)
    for inputs, _ in parts.loader:
        whole(inputs).sum().backward()
        parts.optimizer.step()
    assert LastReport(run, desk)["forward"] == pytest.approx(4 * FORWARD)


def test_the_wait_for_real_workers_is_reported(run: stallscope.Run, desk: Desk) -> None:
    pytorch.unwatch()
    run = stallscope.Run("real", sender=desk)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    pytorch.watch(model, optimizer, run=run)
    waited = 0.0
    for _ in range(2):
        requested = None
        for inputs in loader:
            waited += time.monotonic() - requested if requested else 0.0
            model(inputs).sum().backward()
            optimizer.step()
            requested = time.monotonic()
    last = LastReport(run, desk)
    assert last.steps == 8
    assert last["data_wait"] > 0.5 * waited
    assert (last.gauges["dataloader_workers"], last.gauges["epoch"]) == (1, 1)


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return torch.ones(4)


def test_a_stream_is_waited_for_as_well(watched: Watched, clock: ScriptedClock) -> None:
    for batch in DataLoader(Stream(Samples(clock)), batch_size=2):
        watched.train(batch)
    last = watched.last_report()
    assert (last.steps, last["data_wait"]) == (4, pytest.approx(8 * FETCH))


def test_the_wait_for_a_batch_fetched_by_hand_is_counted(watched: Watched) -> None:
    batches = iter(watched.loader)
    for _ in range(3):
        watched.train(next(batches))
    last = watched.last_report()
    assert (last.steps, last["data_wait"]) == (3, pytest.approx(6 * FETCH))


@pytest.mark.parametrize("way", ["no gradients", "inference", "evaluation mode"])
def test_a_pass_for_evaluation_is_in_no_step(way: str, watched: Watched) -> None:
    for number, batch in enumerate(watched.loader):
        watched.train(batch)
        if number == 1:
            if way == "evaluation mode":
                watched.model.eval()
                watched.evaluate()
                watched.model.train()
            else:
                with torch.no_grad() if way == "no gradients" else torch.inference_mode():
                    watched.evaluate()
    last = watched.last_report()
    assert last.steps == 4
    assert last["evaluation"] == pytest.approx(8 * FETCH + 4 * FORWARD)
    assert last["data_wait"] == pytest.approx(8 * FETCH)
    assert last["forward"] == pytest.approx(4 * FORWARD)
    assert last.step_seconds == pytest.approx(4 * STEP)
    assert last.gauges["epoch"] == 0


def test_a_step_is_over_when_an_evaluation_begins(watched: Watched) -> None:
    for number, batch in enumerate(watched.loader):
        watched.train(batch)
        if number == 2:
            break
    with torch.no_grad():
        watched.evaluate()
    last = watched.last_report()
    assert (last.steps, last.step_seconds) == (3, pytest.approx(3 * STEP))


def test_an_evaluation_left_early_is_over(watched: Watched, clock: ScriptedClock) -> None:
    watched.train_epoch()
    with torch.no_grad():
        watched.evaluate(batches=2)
    clock.advance(5)
    last = watched.last_report()
    assert last["evaluation"] == pytest.approx(4 * FETCH + 2 * FORWARD)
    assert last["other"] == pytest.approx(5)


def test_an_evaluation_whose_iterator_lives_on_ends_with_training(watched: Watched) -> None:
    with torch.no_grad():
        kept = iter(watched.loader)
        next(kept)
    watched.train_epoch()
    last = watched.last_report()
    assert (last["evaluation"], last.steps) == (pytest.approx(2 * FETCH), 4)


def test_other_loaders_evaluate_where_the_training_loader_is_given(
    run: stallscope.Run, desk: Desk, parts: Parts, clock: ScriptedClock
) -> None:
    pytorch.watch(parts.model, parts.optimizer, parts.loader, run=run)
    for batch in parts.loader:
        parts.train(batch)
    parts.evaluate()  # with gradients and in training mode, as careless programs do it
    assert LastReport(run, desk)["evaluation"] == pytest.approx(8 * FETCH + 4 * FORWARD)


def test_loaders_trained_from_in_turns_make_one_step(watched: Watched, clock: ScriptedClock) -> None:
    for batch, _ in zip(watched.loader, DataLoader(Samples(clock), batch_size=2), strict=True):
        watched.train(batch)
    last = watched.last_report()
    assert (last.steps, last["data_wait"]) == (4, pytest.approx(16 * FETCH))


def test_accumulated_batches_make_one_step(watched: Watched) -> None:
    for number, batch in enumerate(watched.loader, start=1):
        watched.train(batch, step=number % 2 == 0)
    last = watched.last_report()
    assert (last.steps, last["backward"]) == (2, pytest.approx(4 * BACKWARD))
    assert last.step_seconds == pytest.approx(4 * (STEP - OPTIMIZER) + 2 * OPTIMIZER)
    assert last.counters["samples"] == 8


@pytest.mark.parametrize("optimizers_stepping", [1, 2])
def test_a_loader_that_fetches_ahead_loses_no_step(
    optimizers_stepping: int, watched: Watched, clock: ScriptedClock
) -> None:
    second = Optimizer(Model(clock), clock)
    for _ in range(2):
        ahead = iter(watched.loader)
        batches = [next(ahead)]
        while batches:
            batches += [batch] if (batch := next(ahead, None)) is not None else []
            watched.train(batches.pop(0))
            if optimizers_stepping == 2:
                second.step()
    assert watched.last_report().steps == 8


def test_a_loop_that_is_left_early_loses_no_step(
    run: stallscope.Run, desk: Desk, watched: Watched, clock: ScriptedClock
) -> None:
    batches = iter(watched.loader)
    for _ in range(3):
        watched.train(next(batches))
    clock.advance(60)  # a last checkpoint, which is in no step
    run.finish()
    report = desk.newest
    assert report.step_seconds is not None
    assert (report.step_seconds.count, report.step_seconds.sum) == (3, 3 * STEP)
    assert (report.gauges["step"], report.counters["samples"]) == (3, 6)


def test_a_batch_that_was_not_trained_on_is_no_step_when_the_run_ends(
    run: stallscope.Run, desk: Desk, watched: Watched
) -> None:
    batches = iter(watched.loader)
    watched.train(next(batches))
    next(batches)
    run.fail(RuntimeError())
    assert desk.newest.gauges["step"] == 1


def test_several_optimizers_make_one_step(run: stallscope.Run, desk: Desk, parts: Parts, clock: ScriptedClock) -> None:
    other = Model(clock)
    second = Optimizer(other, clock)
    pytorch.watch([parts.model, other], run=run)
    for batch in parts.loader:
        parts.train(batch)
        other(batch[0]).sum().backward()
        second.step()
    last = LastReport(run, desk)
    assert (last.steps, last.phase("optimizer").occurrences) == (4, 8)


def test_several_steps_with_one_batch_all_count(watched: Watched) -> None:
    for batch in watched.loader:
        for _ in range(3):
            watched.train(batch)
    assert watched.last_report().steps == 12


def test_an_optimizer_that_steps_in_parts_makes_one_step(watched: Watched) -> None:
    for batch in watched.loader:
        watched.train(batch)
        watched.optimizer.step()  # with no gradients computed in between
    assert watched.last_report().steps == 4


def test_without_a_loader_the_optimizer_ends_a_step(watched: Watched, clock: ScriptedClock) -> None:
    for _ in range(3):
        clock.advance(2)
        watched.train((torch.ones(2, 4), torch.zeros(2, 2)))
    last = watched.last_report()
    assert last.steps == 3
    assert last["data_wait"] == 0


def test_a_closure_is_part_of_the_optimizer_except_for_its_passes(
    run: stallscope.Run, desk: Desk, parts: Parts
) -> None:
    optimizer = torch.optim.LBFGS(parts.model.parameters(), max_iter=2, tolerance_grad=0, tolerance_change=0)
    pytorch.watch(parts.model, run=run)
    for inputs, targets in parts.loader:

        def closure(inputs: Any = inputs, targets: Any = targets) -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(parts.model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    last = LastReport(run, desk)
    assert (last.steps, last["optimizer"]) == (4, 0)
    assert last["backward"] == last.phase("backward").occurrences * BACKWARD
    assert last.phase("backward").occurrences >= 8


def test_only_the_given_optimizer_counts(run: stallscope.Run, desk: Desk, parts: Parts, clock: ScriptedClock) -> None:
    other = Optimizer(Model(clock), clock)
    pytorch.watch(parts.model, parts.optimizer, run=run)
    for _ in range(3):
        parts.train((torch.ones(2, 4), torch.zeros(2, 2)))
        other.step()
    last = LastReport(run, desk)
    assert (last.steps, last.phase("optimizer").occurrences) == (3, 3)


def test_a_loop_that_marks_its_steps_itself_is_believed(run: stallscope.Run, watched: Watched) -> None:
    for batch in watched.loader:
        watched.train(batch)
        run.step()
    assert watched.last_report().steps == 4


def test_a_tracked_loader_is_counted_once(run: stallscope.Run, watched: Watched) -> None:
    for batch in stallscope.track(watched.loader, run=run):
        watched.train(batch)
    last = watched.last_report()
    assert (last.steps, last["data_wait"]) == (4, pytest.approx(8 * FETCH))
    assert last.phase("data_wait").occurrences == 5
    assert last["forward"] == pytest.approx(4 * FORWARD)


def test_a_trainer_that_claimed_the_run_marks_its_steps(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    run.claimed_by = "trainer"
    pytorch.watch(parts.model, run=run)
    for batch in parts.loader:
        parts.train(batch)
    last = LastReport(run, desk)
    assert (last.steps, last["data_wait"]) == (0, 0)
    assert last["backward"] == pytest.approx(4 * BACKWARD)
    assert "samples" not in last.counters


def test_samples_given_by_the_user_are_not_counted_twice(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    pytorch.watch(parts.model, run=run, samples_per_step=5, tokens_per_step=7)
    for batch in parts.loader:
        parts.train(batch)
    last = LastReport(run, desk)
    assert (last.counters["samples"], last.counters["tokens"]) == (20, 28)


def test_samples_given_to_the_run_are_not_counted_twice(desk: Desk, clock: ScriptedClock) -> None:
    watched = Watched(SimulatedRun("job", samples_per_step=5, clock=clock, sender=desk), desk, clock)
    watched.train_epoch()
    last = watched.last_report()
    assert (last.counters["samples"], last.gauges["batch_size"]) == (20, 5)


def test_watching_again_counts_nothing_twice(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    torch._dynamo.reset()
    pytorch.watch(run=run)
    pytorch.watch(parts.model, run=run)
    torch.compile(torch.sin, backend="eager")(torch.ones(1))
    for batch in parts.loader:
        parts.train(batch)
    last = LastReport(run, desk)
    assert (last.steps, last.counters["samples"], last.counters["recompilations"]) == (4, 8, 1)
    assert last["forward"] == pytest.approx(4 * FORWARD)


def test_operations_follow_from_parameters_and_tokens(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    pytorch.watch(parts.model, run=run, tokens_per_step=100, flops_per_step="parameters")
    for batch in parts.loader:
        parts.train(batch)
    assert LastReport(run, desk).counters["flops"] == 4 * 6 * 10 * 100


def test_operations_are_counted_on_one_step_on_request(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    pytorch.watch(parts.model, run=run, flops_per_step="counted")
    for _ in range(2):
        for batch in parts.loader:
            parts.train(batch)
    last = LastReport(run, desk)
    # Forward and the weights' gradient are 2 x 2 x 4 x 2 each; three steps are left once the fifth has been counted.
    assert last.counters["flops"] == 3 * 2 * 32
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_a_step_that_the_scaler_skips_counts_as_skipped_only(watched: Watched) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number, (inputs, targets) in enumerate(watched.loader):
        loss = torch.nn.functional.mse_loss(watched.model(inputs), targets)
        scaler.scale(loss * (float("inf") if number == 1 else 1.0)).backward()
        scaler.step(watched.optimizer)
        scaler.update()
        watched.optimizer.zero_grad()
    last = watched.last_report()
    assert (last.steps, last.values["amp_skipped_steps"]) == (3, 1)


def test_a_disabled_scaler_reports_nothing(watched: Watched) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for inputs, targets in watched.loader:
        scaler.scale(torch.nn.functional.mse_loss(watched.model(inputs), targets)).backward()
        scaler.step(watched.optimizer)
    last = watched.last_report()
    assert (last.steps, "amp_skipped_steps" in last.values) == (4, False)


@pytest.mark.parametrize(("dtype", "automatic", "last"), [("float32", "", "fp32"), ("float32", "bfloat16", "bf16")])
def test_the_precision_is_seen(
    dtype: str, automatic: str, last: str, run: stallscope.Run, desk: Desk, parts: Parts
) -> None:
    parts.model.to(getattr(torch, dtype))
    pytorch.watch(parts.model, run=run)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(automatic)):
        parts.model(torch.ones(2, 4))
    assert LastReport(run, desk).report.precision == (last,)


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

    def forward(self, inputs: Any) -> Any:
        return self.layers(inputs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("order", ["watched, then compiled", "compiled, then watched", "compiled in place", "found"])
def test_a_compiled_model_is_timed_and_its_graph_whole(
    order: str, backend: str, run: stallscope.Run, desk: Desk, clock: ScriptedClock
) -> None:
    torch._dynamo.reset()
    model: Any = TwoLayers()
    if order == "found":
        pytorch.watch(run=run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if order.startswith("watched"):
        pytorch.watch(model, run=run)
    if order == "compiled in place":
        pytorch.watch(model, run=run)
        model.compile(backend=backend, fullgraph=True)
    else:
        model = torch.compile(model, backend=backend, fullgraph=True)
    if order.startswith("compiled, "):
        pytorch.watch(model, run=run)
    for inputs, _ in DataLoader(Samples(clock), batch_size=2):
        model(inputs).sum().backward()
        optimizer.step()
    last = LastReport(run, desk)
    assert last.phase("forward").occurrences == 4
    assert last.counters["recompilations"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_compiled_function_may_move_tensors_and_compute_with_hooks_on(run: stallscope.Run) -> None:
    torch._dynamo.reset()
    pytorch.watch(run=run)
    assert pytorch._patches is not None
    pytorch._patches.on_gpu()

    def double(tensor: Any) -> Any:
        return tensor.to("cpu").to(torch.float64) * 2

    found = torch.compile(double, backend="eager", fullgraph=True)(torch.ones(2))
    assert found.tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's of itself
def test_a_compiled_optimizer_leaves_each_batch_a_step(run: stallscope.Run, desk: Desk, clock: ScriptedClock) -> None:
    torch._dynamo.reset()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    pytorch.watch(model, run=run)
    for inputs, _ in DataLoader(Samples(clock, length=80), batch_size=1):
        model(inputs).sum().backward()
        step()
    assert 16 <= LastReport(run, desk).steps <= 80


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of scripting itself
def test_a_watched_model_can_be_scripted_traced_and_exported(run: stallscope.Run, desk: Desk) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    pytorch.watch(model, run=run)
    batch = torch.ones(1, 4)
    scripted = torch.jit.script(model)
    forms = [scripted, torch.jit.trace(model, batch), torch.export.export(model, (batch,)).module()]
    forms.append(torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True))
    assert all(torch.equal(form(batch), model(batch)) for form in forms)
    assert "Hook" not in str(scripted.graph)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_function_finds_its_names(run: stallscope.Run) -> None:
    pytorch.watch(run=run)
    assert torch.jit.script(scripted_function)(torch.ones(2)).tolist() == [1.25, 1.25]


@pytest.mark.parametrize(
    "function",
    [
        *("autograd.backward", "autograd.grad", "compile", "distributed.all_reduce", "distributed.barrier"),
        *("distributed.checkpoint.load", "distributed.checkpoint.save", "jit.script", "load", "nn.Module.train"),
        *("optim.Optimizer.add_param_group", "save", "utils.data.DataLoader.__iter__", "utils.swap_tensors"),
    ],
)
def test_functions_of_pytorch_can_be_pickled(function: str, run: stallscope.Run) -> None:
    import torch.distributed.checkpoint

    pytorch.watch(run=run)
    found = operator.attrgetter(function)(torch)
    assert hasattr(found, "__wrapped__"), "it is replaced"
    assert pickle.loads(pickle.dumps(found)) is found
    pytorch.unwatch()
    assert operator.attrgetter(function)(torch) is found.__wrapped__
    assert pickle.loads(pickle.dumps(found.__wrapped__)) is found.__wrapped__


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_scripted_may_be_named(run: stallscope.Run) -> None:
    pytorch.watch(run=run)
    assert torch.jit.script(obj=scripted_function)(torch.ones(1)).tolist() == scripted_function(torch.ones(1)).tolist()


def test_a_module_may_have_an_argument_of_any_name(watched: Watched) -> None:
    class Named(torch.nn.Module):
        def forward(self, module: Any, loader: Any, arguments: Any) -> Any:
            return module + loader + arguments

    assert Named()(module=1, loader=2, arguments=3) == 6


def test_pytorchs_profiler_may_record_stacks_of_watched_modules(watched: Watched) -> None:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        with_stack=True,
        with_modules=True,
        experimental_config=torch._C._profiler._ExperimentalConfig(verbose=True),
    ) as profiler:
        watched.train_epoch()
    assert {"nn.Module: Model_0", "nn.Module: Linear_0"} <= {event.name for event in profiler.events()}
    assert watched.last_report().steps == 4


def scripted_function(tensor: torch.Tensor) -> torch.Tensor:
    return added(tensor)


def added(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 0.25


def train_from_seed(watched: Callable[[Any], object]) -> list[Any]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    watched(model)
    loader = DataLoader(torch.arange(64.0).reshape(16, 4), batch_size=4, shuffle=True)
    kept = []
    for _ in range(2):
        for batch in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept += [loss.detach().clone(), *[each.grad.clone() for each in model.parameters()]]
    return [*kept, *model.state_dict().values(), torch.get_rng_state()]


def test_results_gradients_and_random_numbers_are_the_same_to_the_bit(run: stallscope.Run) -> None:
    bare = train_from_seed(lambda _: None)
    watched = train_from_seed(lambda model: pytorch.watch(model, run=run))
    assert len(bare) == len(watched) > 40
    assert all(torch.equal(one, other) for one, other in zip(bare, watched, strict=True))


def test_nothing_waits_for_the_gpu_or_reads_a_tensor(
    run: stallscope.Run, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def refused(*arguments: Any, **options: Any) -> Any:
            # PyTorch's own loader and optimizer may.
            assert "stallscope/training" not in sys._getframe(1).f_code.co_filename, name
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, refused)

    for name in ("synchronize", "init", "_lazy_init"):
        refuse(torch.cuda, name)
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__repr__", "__eq__", "__hash__"):
        refuse(torch.Tensor, name)
    pytorch.watch(parts.model, run=run)
    for batch in parts.loader:
        parts.train(batch)
    run.finish()


def test_types_and_signatures_stay(run: stallscope.Run, parts: Parts) -> None:
    pytorch.watch(parts.model, parts.optimizer, parts.loader, run=run)
    assert type(parts.loader) is DataLoader
    assert len(parts.loader) == 4
    batches = iter(parts.loader)
    assert isinstance(batches, _BaseDataLoaderIter)
    assert type(batches).__name__ == "_SingleProcessDataLoaderIter"
    assert (DataLoader.__iter__.__name__, torch.compile.__name__) == ("__iter__", "compile")


def without_addresses(pickled: bytes) -> list[tuple[str, object]]:
    """A pickle's operations, without the tensors' bytes: their keys are addresses in memory."""
    return [(code.name, value) for code, value, _ in pickletools.genops(pickled) if code.name != "BINBYTES"]


def model_and_traces(watched: Callable[[Any], object]) -> tuple[list[Any], list[bytes]]:
    """A trained model's attributes, and what it is when copied, pickled and saved in several ways."""
    torch.manual_seed(3)
    model = TwoLayers()
    watched(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(torch.arange(32.0).reshape(8, 4), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
    whole, state = io.BytesIO(), io.BytesIO()
    torch.save(model, whole)
    torch.save(model.state_dict(), state)
    attributes: list[Any] = [
        sorted((name, type(module).__name__, *vars(module)) for name, module in each.named_modules())
        for each in (model, copy.deepcopy(model), copy.copy(model))
    ]
    attributes += [list(vars(type(model))), [list(vars(module)["_forward_hooks"]) for module in model.modules()]]
    traced = str(torch.fx.symbolic_trace(model).graph)
    exported = str(torch.export.export(model, (torch.ones(1, 4),)).graph)
    attributes += [traced, exported, [list(vars(each)) for each in (optimizer, torch.fx.symbolic_trace(model))]]
    attributes += [without_addresses(pickle.dumps(each)) for each in (model, optimizer)]
    return attributes, [whole.getvalue(), state.getvalue()]


def test_models_and_optimizers_are_to_the_byte_what_they_are_without(run: stallscope.Run) -> None:
    pytorch.unwatch()
    attributes, files = model_and_traces(lambda _: None)
    watched_attributes, watched_files = model_and_traces(lambda model: pytorch.watch(model, run=run))
    assert watched_attributes == attributes
    assert watched_files == files


def test_a_whole_model_is_loaded_with_weights_only(run: stallscope.Run, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    pytorch.watch(model, run=run)
    torch.save(model, tmp_path / "model.pt")
    with torch.serialization.safe_globals([torch.nn.Linear]):
        torch.load(tmp_path / "model.pt", weights_only=True)


def test_a_copied_model_is_another(watched: Watched) -> None:
    average = copy.deepcopy(watched.model)
    average(torch.ones(1, 4))
    assert "forward" not in watched.last_report().report.phases
    assert watched.model.state_dict().keys() == average.state_dict().keys() == {"layer.weight", "layer.bias"}


def test_nothing_is_kept_alive(run: stallscope.Run, clock: ScriptedClock) -> None:
    parts = Parts(clock)
    references = [weakref.ref(each) for each in (parts.model, parts.optimizer, parts.loader)]
    pytorch.watch(parts.model, parts.optimizer, parts.loader, run=run)
    for batch in parts.loader:
        parts.train(batch)
    del parts, batch
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_unwatched_pytorch_is_as_it_was(run: stallscope.Run, parts: Parts) -> None:
    def state() -> list[Any]:
        return [
            *(vars(DataLoader)["__iter__"], vars(_BaseDataLoaderIter)["__next__"], torch.autograd.backward),
            *(torch.compile, torch.nn.Module.compile, torch.nn.Module.train, torch.amp.GradScaler.step),
            *(torch.nn.Module.__call__, torch.no_grad.__exit__, torch.inference_mode.__enter__, torch.save, torch.load),
            *(torch.distributed.all_reduce, vars(torch.Tensor).get("to"), torch.distributed.Work.wait),
            dict(optimizers._global_optimizer_pre_hooks),
            sys.getprofile(),
        ]

    before = state()
    pytorch.watch(parts.model, run=run)
    assert pytorch._patches is not None
    pytorch._patches.on_gpu()
    assert state() != before
    pytorch.unwatch()
    assert state() == before


def test_a_run_that_ended_leaves_the_loop_alone(run: stallscope.Run, desk: Desk, watched: Watched) -> None:
    run.finish()
    last = len(desk.reports)
    watched.train_epoch()
    assert len(desk.reports) == last


def test_a_model_of_the_wrong_kind_is_refused_in_words(run: stallscope.Run) -> None:
    with pytest.raises(TypeError, match=r"was given a int where it expected a Module"):
        pytorch.watch([1], run=run)


def test_a_pytorch_that_is_too_old_is_left_alone(
    run: stallscope.Run, parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("STALLSCOPE_STRICT")
    monkeypatch.delattr(torch.compiler, "is_compiling")
    pytorch.watch(parts.model, run=run)
    assert "use 2.3 or newer" in caplog.text
    assert vars(DataLoader)["__iter__"].__module__ == "torch.utils.data.dataloader"
    assert not parts.model._forward_hooks


def test_a_mistake_leaves_the_training_alone(
    run: stallscope.Run, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STALLSCOPE_STRICT")
    assert pytorch.watch("model", run=run) is run
    for batch in parts.loader:
        parts.train(batch)


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_other_threads_are_not_the_loop(watched: Watched) -> None:
    watched.train_epoch()

    def compute() -> None:
        for inputs, _ in watched.loader:
            watched.model(inputs).sum().backward()

    in_a_thread(compute)
    last = watched.last_report()
    assert (last.steps, last.phase("forward").occurrences, last.phase("backward").occurrences) == (4, 4, 4)
    assert last.values["prefetch_seconds"] == pytest.approx(2 * FETCH), "before it computed gradients"


def test_the_batches_of_another_training_are_not_counted(watched: Watched, clock: ScriptedClock) -> None:
    other = Parts(clock)
    watched.train_epoch()
    in_a_thread(lambda: [other.train(batch) for _ in range(3) for batch in other.loader])
    watched.train_epoch()
    last = watched.last_report()
    assert last.steps == 8
    assert last.counters["samples"] == 2 * 8 + 2, "the first batch may be one that the thread fetches for the loop"


def test_the_loop_belongs_to_the_thread_that_computes_gradients(watched: Watched) -> None:
    batches = iter(watched.loader)
    first = next(batches)

    def train() -> None:
        watched.train(first)
        for batch in batches:
            watched.train(batch)

    in_a_thread(train)
    assert watched.last_report().steps == 4


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        raise KeyError("no such sample")


def test_a_loaders_error_is_the_programs(watched: Watched) -> None:
    with pytest.raises(KeyError, match="no such sample"):
        list(DataLoader(Broken()))
    watched.train_epoch()
    assert watched.last_report()["data_wait"] == pytest.approx(8 * FETCH)


def test_a_forward_pass_that_raises_is_over(watched: Watched, clock: ScriptedClock) -> None:
    for batch in watched.loader:
        with pytest.raises(RuntimeError, match="shapes"):
            watched.model(torch.ones(2, 3))
        watched.train(batch)
        clock.advance(1)
    last = watched.last_report()
    assert (last["forward"], last["other"]) == (pytest.approx(8 * FORWARD), pytest.approx(4))


def test_an_optimizer_that_raises_is_left_with_the_next_batch(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, batch in enumerate(watched.loader):
        if number == 1:
            watched.train(batch, step=False)
            watched.optimizer.param_groups[0]["lr"] = None
            with pytest.raises(TypeError):
                watched.optimizer.step()
            watched.optimizer.param_groups[0]["lr"] = 0.01
        else:
            watched.train(batch)
    last = watched.last_report()
    assert (last.steps, last["optimizer"]) == (3, pytest.approx(4 * OPTIMIZER))
    assert last["data_wait"] == pytest.approx(8 * FETCH)


def test_talking_to_other_ranks_is_communication(watched: Watched, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(watched.model)
        torch.distributed.barrier()  # before the loop: initialization
        for inputs, _ in watched.loader:
            model(inputs).sum().backward()
            watched.optimizer.step()
            torch.distributed.all_reduce(torch.ones(1))
            work = torch.distributed.all_reduce(torch.ones(1), async_op=True)
            work.wait()
        assert 0.0 < ReducerClock().read(model) < 60.0
    finally:
        torch.distributed.destroy_process_group()
    last = watched.last_report()
    assert last.phase("communication").occurrences == 4 * 3
    assert last.steps == 4


# Batches that no loader draws, on the real clock of the profiling hook's calls and the scripted clock of phases


def drawn(parts: Parts) -> Any:
    parts.clock.advance(2 * FETCH)
    return torch.ones(2, 4), torch.zeros(2, 2)


def test_a_batch_that_a_function_draws_is_waited_for(watched: Watched) -> None:
    for _ in range(4):
        watched.train(drawn(watched))
        watched.clock.advance(0.0625)  # the loop's own
    last = watched.last_report()
    assert last.steps == 4
    assert last["data_wait"] == pytest.approx(3 * 2 * FETCH)  # the first one is initialization
    assert last["other"] == pytest.approx(4 * 0.0625)


def test_a_batch_that_is_drawn_before_the_gradients_of_the_last_is_waited_for(watched: Watched) -> None:
    inputs, targets = drawn(watched)
    for _ in range(4):
        loss = torch.nn.functional.mse_loss(watched.model(inputs), targets)
        inputs, targets = drawn(watched)
        loss.backward()
        watched.optimizer.step()
    assert watched.last_report()["data_wait"] == pytest.approx(3 * 2 * FETCH)  # a report had contained the first


def test_a_callback_is_no_wait_for_data(watched: Watched) -> None:
    def callback() -> None:
        watched.clock.advance(4.0)

    for _ in range(4):
        watched.train(drawn(watched))
        callback()
    last = watched.last_report()
    assert (last["data_wait"], last["other"]) == (pytest.approx(3 * 2 * FETCH), pytest.approx(16.0))


def test_other_work_between_the_batch_and_its_use_is_no_wait_for_data(watched: Watched) -> None:
    def metric() -> Any:
        watched.clock.advance(4.0)
        return torch.zeros(3)

    for _ in range(4):
        inputs, targets = torch.rand(2, 4), torch.zeros(2, 2)
        metric()
        watched.train((inputs, targets))
    last = watched.last_report()
    assert last["data_wait"] == 0
    assert last["other"] == pytest.approx(3 * 4.0)  # the first one is initialization


def test_a_batch_that_was_copied_since_it_was_drawn_is_waited_for(watched: Watched) -> None:
    for _ in range(4):
        torch.rand(1)
        inputs = drawn(watched)[0] / 255
        watched.train((inputs, torch.zeros(2, 2)))
        inputs = torch.cat([drawn(watched)[0], inputs])
        watched.train((inputs, torch.zeros(4, 2)))
    last = watched.last_report()
    assert last["data_wait"] == pytest.approx(7 * 2 * FETCH)
    assert last["other"] == 0


def test_a_batch_that_another_function_copies_is_waited_for(watched: Watched) -> None:
    def on_device(batch: Any) -> Any:
        watched.clock.advance(0.5)
        return [tensor.clone() for tensor in batch]

    for _ in range(4):
        watched.train(on_device(drawn(watched)))
    last = watched.last_report()
    assert last["data_wait"] == pytest.approx(3 * (2 * FETCH + 0.5))
    assert last["other"] == 0


def test_a_batch_that_stays_the_same_is_not_waited_for(watched: Watched) -> None:
    batch = drawn(watched)
    for _ in range(4):
        watched.train(batch)
        watched.clock.advance(1.0)
    last = watched.last_report()
    assert (last["data_wait"], last["other"]) == (0, pytest.approx(4.0))


def test_a_profiler_of_the_program_stays_and_nothing_breaks(watched: Watched) -> None:
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        seen.append(event)

    sys.setprofile(profile)
    try:
        for _ in range(3):
            watched.train(drawn(watched))
            assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert seen
    assert watched.last_report().steps == 3


def test_a_process_that_is_forked_between_two_steps_has_no_profiling_hook(watched: Watched) -> None:
    watched.train(drawn(watched))
    assert sys.getprofile() is not None
    child = os.fork()
    if not child:
        os._exit(0 if sys.getprofile() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_profiling_hook_is_left_behind(run: stallscope.Run, watched: Watched) -> None:
    for _ in range(3):
        watched.train(drawn(watched))
    run.finish()
    assert sys.getprofile() is None


class Rows(tuple[Any, ...]):
    """A tuple that is not indexed by numbers, such as `importlib.metadata.EntryPoints`."""

    __slots__ = ()

    def __getitem__(self, name: Any) -> Any:
        raise KeyError(name)


class Store(Mapping[str, Any]):
    """A mapping that loads its values."""

    loaded = 0

    def __getitem__(self, name: str) -> Any:
        Store.loaded += 1
        return torch.ones(2)

    def __iter__(self) -> Iterator[str]:
        Store.loaded += 1
        return iter("abc")

    def __len__(self) -> int:
        return 3


class Proxy:
    """An object that creates another one when its class is requested."""

    @property  # type: ignore[misc]  # as such objects do
    def __class__(self) -> Any:
        raise LookupError("not connected")


class Logged(torch.Tensor):
    """A tensor that records what is done to it."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("make", [lambda: Rows((1, 2)), Store, lambda: [Store()], Proxy])
def test_no_code_of_the_objects_that_functions_of_the_program_return_is_called(
    make: Callable[[], Any], watched: Watched
) -> None:
    def returned() -> Any:
        return make()

    Store.loaded = 0
    for _ in range(3):
        returned()
        watched.train(drawn(watched))
    assert Store.loaded == 0
    assert watched.last_report()["data_wait"] == pytest.approx(2 * 2 * FETCH)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.UserDict])
def test_a_batch_in_a_dictionary_is_waited_for(kind: Callable[[Any], Any], watched: Watched) -> None:
    def draw() -> Any:
        inputs, targets = drawn(watched)
        return kind({"inputs": inputs, "targets": targets})

    for _ in range(4):
        watched.train(tuple(draw().values()))
    assert watched.last_report()["data_wait"] == pytest.approx(3 * 2 * FETCH)


class LogsAll(TorchFunctionMode):
    """Records every operation, as `Logged` does for one tensor."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logged.calls.append(function.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Logged, torch.Tensor])
def test_classes_and_modes_of_the_program_get_only_the_calls_of_the_program(
    kind: Any, run: stallscope.Run, parts: Parts
) -> None:
    inputs = torch.ones(2, 4).as_subclass(kind)

    def draw() -> tuple[Any, Any]:
        return inputs, torch.zeros(2, 2)

    def calls_of_three_steps() -> list[str]:
        Logged.calls.clear()
        with contextlib.nullcontext() if kind is Logged else LogsAll():
            for _ in range(3):
                parts.train(draw())
        return Logged.calls.copy()

    alone = calls_of_three_steps()
    pytorch.watch(parts.model, run=run)
    assert calls_of_three_steps() == alone


# Evaluation and training, as gradients show them


def test_a_pass_that_was_predicted_to_evaluate_trains_where_gradients_are_computed(
    run: stallscope.Run, desk: Desk, parts: Parts
) -> None:
    pytorch.watch(run=run)
    for _ in range(2):
        for number, (inputs, targets) in enumerate(DataLoader(Samples(parts.clock), batch_size=2)):
            if number == 0:
                parts.model.train()  # after the first batch was fetched, as trainers do it
            parts.train((inputs, targets))
        parts.model.eval()
    last = LastReport(run, desk)
    assert (last.steps, last["evaluation"]) == (8, 0)
    assert (last["data_wait"], last.gauges["epoch"]) == (pytest.approx(16 * FETCH), 1)


def test_an_evaluation_without_a_loader_is_in_no_step(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    def estimate() -> None:
        parts.model.eval()
        with torch.no_grad():
            for _ in range(2):
                parts.model(drawn(parts)[0])
        parts.model.train()

    pytorch.watch(parts.model, run=run)
    for number in range(4):
        if number == 2:
            estimate()
        parts.train(drawn(parts))
    last = LastReport(run, desk)
    assert last["evaluation"] == pytest.approx(2 * (2 * FETCH + FORWARD))
    assert last["forward"] == pytest.approx(4 * FORWARD)
    assert last.steps == 4


def test_a_long_evaluation_sends_the_reports_that_are_due(run: stallscope.Run, desk: Desk, parts: Parts) -> None:
    pytorch.watch(parts.model, run=run)
    for _ in range(4):
        parts.train(drawn(parts))
    parts.model.eval()
    with torch.no_grad():
        for _ in range(6):
            run.timeline.due = 0.0
            parts.model(drawn(parts)[0])
    evaluating = [report.phases["evaluation"].seconds for report in desk.reports if report.activity == "evaluation"]
    assert len(set(evaluating)) >= 5


def test_a_model_trained_in_evaluation_mode_trains(watched: Watched) -> None:
    watched.model.eval()
    for _ in range(2):
        watched.train_epoch()
    last = watched.last_report()
    assert (last.steps, last["evaluation"], last["forward"]) == (8, 0, pytest.approx(8 * FORWARD))


# Steps without an optimizer


@pytest.mark.parametrize("way", ["none", "zeros", "through data"])
def test_a_program_that_updates_its_parameters_itself_makes_steps(
    way: str, desk: Desk, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytorch.watch_any(0.0)
    run = SimulatedRun("job", clock=clock, sender=desk)
    monkeypatch.setattr("stallscope.training.integrations.pytorch.Run", lambda **_: run)
    model = Model(clock)
    for inputs, _ in DataLoader(Samples(clock), batch_size=2):
        model(inputs).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            if way == "through data":
                parameter.data.sub_(0.01 * parameter.grad.data)
                parameter.grad.data.zero_()
            else:
                with torch.no_grad():
                    parameter -= 0.01 * parameter.grad
                if way == "zeros":
                    parameter.grad.zero_()
                else:
                    parameter.grad = None
    assert pytorch._loop is not None
    assert LastReport(pytorch._loop.run, desk).steps == 4


@pytest.mark.parametrize("named", [False, True])
def test_gradients_for_an_iterator_of_parameters_are_computed(
    named: bool, desk: Desk, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytorch.watch_any(0.0)
    run = SimulatedRun("job", clock=clock, sender=desk)
    monkeypatch.setattr("stallscope.training.integrations.pytorch.Run", lambda **_: run)
    model = Model(clock)
    for _ in range(4):
        loss = model(torch.ones(2, 4)).sum()
        parameters = model.parameters()
        found = torch.autograd.grad(loss, inputs=parameters) if named else torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter -= 0.01 * gradient
    assert LastReport(run, desk).steps == 4


def test_a_worker_that_imports_the_program_begins_no_loop(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "importing_for_parent", lambda: True)
    pytorch.watch_any()
    for batch in parts.loader:
        parts.train(batch)
    assert pytorch._loop is None


def test_the_time_in_which_a_run_begins_is_a_part_of_the_backward_pass_that_it_begins_in(
    desk: Desk, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def information(*arguments: Any) -> dict[str, str]:
        clock.advance(8.0)
        return known(*arguments)

    known = identity.information
    monkeypatch.setattr(identity, "information", information)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(
        "stallscope.training.integrations.pytorch.Run",
        functools.partial(SimulatedRun, "job", clock=clock, sender=desk),
    )
    pytorch.watch_any()
    clock.advance(4.0)
    Model(clock)(torch.ones(2, 4)).sum().backward()
    assert pytorch._loop is not None
    last = LastReport(pytorch._loop.run, desk)
    assert last["initialization"] == pytest.approx(4.0)
    assert last["forward"] == pytest.approx(FORWARD)
    assert last["backward"] == pytest.approx(8.0 + BACKWARD)
    assert last["other"] == pytest.approx(0.0)


def test_threads_that_begin_to_train_at_the_same_time_begin_one_run(
    desk: Desk, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[stallscope.Run] = []

    def begin(**_: Any) -> stallscope.Run:
        runs.append(run := SimulatedRun("job", clock=clock, sender=desk))
        if len(runs) == 1:
            in_a_thread(lambda: Parts(clock).train((torch.ones(2, 4), torch.zeros(2, 2))))
        return run

    monkeypatch.setattr("stallscope.training.integrations.pytorch.Run", begin)
    pytorch.watch_any()
    Parts(clock).train((torch.ones(2, 4), torch.zeros(2, 2)))
    assert len(runs) == 1


def test_batches_that_a_thread_fetches_while_the_run_is_made_count(
    parts: Parts, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = iter(parts.loader)
    fetched: list[Any] = []

    def made(**options: Any) -> stallscope.Run:
        run = stallscope.Run("job", sender=desk, **options)
        in_a_thread(lambda: fetched.append(next(batches)))
        return run

    monkeypatch.setattr("stallscope.training.integrations.pytorch.Run", made)
    pytorch.watch_any()
    in_a_thread(lambda: fetched.append(next(batches)))
    parts.train(fetched[0])
    in_a_thread(lambda: fetched.extend(batches))
    for batch in fetched[1:]:
        parts.train(batch)
    assert pytorch._loop is not None
    last = LastReport(pytorch._loop.run, desk)
    assert last.counters["samples"] == 2 * 4


def test_a_program_that_never_trains_is_profiled_for_a_while_only(
    clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytorch_input, "_BEFORE_LOOP", 1e-3)
    monkeypatch.setattr(pytorch_input, "_SHARE", 0.0)
    pytorch.watch_any()
    model, profiled = Model(clock), []
    for _ in range(1000):
        model(torch.ones(2, 4))
        profiled.append(sys.getprofile() is not None)
    assert profiled[0]
    assert not profiled[-1]


# Checkpoints


def test_checkpoints_and_restores_are_seen(watched: Watched, clock: ScriptedClock, tmp_path: Path) -> None:
    class Slow(torch.nn.Module):
        def __getstate__(self) -> Any:
            clock.advance(3.0)
            return super().__getstate__()

        def __setstate__(self, state: dict[str, Any]) -> None:
            clock.advance(5.0)
            super().__setstate__(state)

    globals()["Slow_"] = Slow
    Slow.__qualname__ = "Slow_"
    for batch in watched.loader:
        watched.train(batch)
        torch.save(Slow(), tmp_path / "model.pt")
    torch.load(tmp_path / "model.pt", weights_only=False)
    last = watched.last_report()
    assert (last["checkpoint"], last["restore"]) == (pytest.approx(12.0), pytest.approx(5.0))
    assert last.phase("checkpoint").occurrences == 4
    assert last.steps == 4


class WrittenLater:
    """An object that is not written before the loop has gone on."""

    def __init__(self, begun: threading.Event, gone_on: threading.Event) -> None:
        self._begun, self._gone_on = begun, gone_on

    def __reduce__(self) -> tuple[type, tuple[()]]:
        self._begun.set()
        assert self._gone_on.wait(60)
        return dict, ()


def test_steps_are_counted_while_a_thread_writes_a_checkpoint(watched: Watched, tmp_path: Path) -> None:
    begun, gone_on = threading.Event(), threading.Event()
    written = WrittenLater(begun, gone_on)
    watched.train_epoch()
    thread = threading.Thread(target=torch.save, args=(written, tmp_path / "model.pt"))
    thread.start()
    assert begun.wait(60)
    watched.train_epoch()
    gone_on.set()
    thread.join()
    last = watched.last_report()
    assert (last.steps, last.phase("optimizer").occurrences) == (8, 8)


def test_a_function_may_return_a_view_of_what_it_changed(watched: Watched) -> None:
    watched.train_epoch()
    calls = pytorch_input.FirstInput()
    embedding = torch.nn.Embedding(4, 2)
    calls.begin()
    try:
        with torch.no_grad():
            torch.nn.init.normal_(embedding.weight)
            row = torch.nn.init.zeros_(embedding.weight[0])  # of which PyTorch does not say how it was computed
            calls.end_with_call((row,), {})
    finally:
        calls.end()
    assert sys.getprofile() is None
    assert embedding.weight[0].tolist() == [0.0, 0.0]


class GRPOTrainer:
    """Named and divided as TRL's: the model generates, then completions are scored."""

    def __init__(self, watched: Watched, clock: ScriptedClock) -> None:
        self._watched, self._clock = watched, clock

    def _generate_and_score_completions(self, batch: Any) -> Any:
        self._move_model_to_vllm()
        with torch.no_grad():
            for _ in range(3):
                self._watched.model(batch[0])
        return self._calculate_rewards(batch)

    def _move_model_to_vllm(self) -> None:
        self._clock.advance(2)

    def _calculate_rewards(self, batch: Any) -> Any:
        self._clock.advance(7)
        return batch


@pytest.mark.parametrize("is_named", [False, True], ids=["by TRL's methods", "by the program"])
def test_generating_with_the_model_is_no_evaluation_and_no_forward_pass(
    is_named: bool, watched: Watched, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = GRPOTrainer(watched, clock)
    if not is_named:
        module = ModuleType("trl.trainer.grpo_trainer")
        vars(module)["GRPOTrainer"] = type("GRPOTrainer", (GRPOTrainer,), dict(vars(GRPOTrainer)))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        pytorch.observe_checkpoints(0.0)
        trainer = module.GRPOTrainer(watched, clock)
    run = watched.run
    for batch in watched.loader:
        with run.phase("rollout") if is_named else contextlib.nullcontext():
            batch = trainer._generate_and_score_completions(batch)
        watched.train(batch)
    last = watched.last_report()
    named = 4 * (3 * FORWARD + 9)
    assert last["rollout"] == pytest.approx(named if is_named else 4 * 3 * FORWARD)
    if not is_named:
        assert (last["reward"], last["weight_sync"]) == (pytest.approx(28), pytest.approx(8))
    assert last["forward"] == pytest.approx(4 * FORWARD)
    assert last["data_wait"] == pytest.approx(8 * FETCH)
    assert "evaluation" not in last.report.phases
    assert (last.steps, last.step_seconds) == (4, pytest.approx(4 * STEP + named))


def test_a_file_that_a_data_set_reads_is_a_wait_for_data(watched: Watched, tmp_path: Path) -> None:
    torch.save(torch.ones(4), tmp_path / "sample.pt")

    class Files(Samples):
        def __getitem__(self, index: int) -> Any:
            super().__getitem__(index)
            return torch.load(tmp_path / "sample.pt"), torch.zeros(2)

    for batch in DataLoader(Files(watched.clock), batch_size=2):
        watched.train(batch)
    last = watched.last_report()
    assert (last["data_wait"], last["restore"]) == (pytest.approx(8 * FETCH), 0)


# Samples


def test_samples_of_a_partial_batch_are_counted_as_they_are(watched: Watched) -> None:
    for batch in DataLoader(Samples(watched.clock, length=5), batch_size=2):
        watched.train(batch)
    assert watched.last_report().counters["samples"] == 5


def test_samples_of_a_batch_that_a_loop_is_left_with_are_not_counted(watched: Watched) -> None:
    for _ in range(3):
        for number, batch in enumerate(watched.loader):
            if number == 2:
                break
            watched.train(batch)
    assert watched.last_report().counters["samples"] == 3 * 4


def test_a_graph_that_is_replayed_makes_the_steps_that_were_captured(watched: Watched) -> None:
    class Graph:
        """Stands for a CUDA graph."""

    loop, graph = pytorch._loop, Graph()
    assert loop is not None
    batch = (torch.ones(2, 4), torch.zeros(2, 2))
    watched.train(batch)
    loop.begin_capture(graph)
    watched.train(batch)
    loop.end_capture()
    for _ in range(3):
        loop.replayed(graph, lambda graph: watched.clock.advance(2.0), (), {})
    last = watched.last_report()
    assert (last.steps, last["backward"]) == (4, pytest.approx(BACKWARD + 3 * 2.0))


# Traces


def test_a_traced_step_has_the_kernels_of_pytorchs_profiler(
    run: stallscope.Run, watched: Watched, tmp_path: Path
) -> None:
    run.trace(steps=[1], directory=str(tmp_path), torch_profiler=True)
    watched.train_epoch()
    run.finish()
    kernels = json.loads((tmp_path / "job" / "rank0-step1.torch.json").read_text())
    assert any("mm" in event.get("name", "") for event in kernels["traceEvents"])
