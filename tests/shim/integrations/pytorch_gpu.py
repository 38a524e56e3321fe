"""PyTorch's integration where CUDA is in use, with a stand-in for `torch.cuda`: no GPU was measured here.

The stand-in has the shape of PyTorch 2.13's: events on one stream, which the device passes when the test advances it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.integrations import pytorch, pytorch_device
from stallscope.training.integrations.pytorch_device import DeviceClock
from stallscope.training.integrations.pytorch_patches import goes_to_gpu
from tests.shim.conftest import Desk

pytestmark = pytest.mark.usefixtures("strict")


class Device:
    """A device with one stream: marks get their time when the device has worked its way to them."""

    def __init__(self) -> None:
        self.busy_until = 0.0
        self.passed = 0.0
        self.capturing = False
        self.events = 0
        self.broken = False

    def work(self, seconds: float) -> None:
        self.busy_until += seconds

    def catch_up(self) -> None:
        self.passed = self.busy_until

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of `torch.cuda`'s functions."""
        device = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                device.events += 1
                self.at: float | None = None

            def record(self) -> None:
                assert not device.capturing
                if device.broken:
                    raise RuntimeError("CUDA error: the GPU has fallen off the bus")
                self.at = device.busy_until

            def query(self) -> bool:
                assert not device.capturing
                assert self.at is not None
                return self.at <= device.passed

            def elapsed_time(self, other: Event) -> float:
                assert self.query()
                assert other.query(), "this would wait for the GPU"
                assert self.at is not None
                assert other.at is not None
                return (other.at - self.at) * 1e3

            def synchronize(self) -> None:
                raise AssertionError("the loop is made to wait for the GPU")

        def refuse(*_: Any) -> None:
            raise AssertionError("the loop is made to wait for the GPU")

        statistics = {
            "reserved_bytes": {"all": {"current": 3000, "peak": 3500}},
            "allocated_bytes": {"all": {"current": 1000, "peak": 2000}},
            "num_alloc_retries": 2,
            "num_ooms": 1,
        }
        for name, value in {
            "Event": Event,
            "is_initialized": lambda: True,
            "is_current_stream_capturing": lambda: self.capturing,
            "current_stream": lambda: "the stream",
            "default_stream": lambda: "the stream",
            "memory_stats_as_nested_dict": lambda: statistics,
            "synchronize": refuse,
            "current_device": lambda: 0,
            "get_device_properties": lambda _: type("Properties", (), {"uuid": "GPU-1234"}),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    found.attach(monkeypatch)
    return found


@pytest.fixture
def run(device: Device, desk: Desk, clock: ScriptedClock) -> stallscope.Run:
    return SimulatedRun("job", clock=clock, sender=desk)


class Queueing(torch.autograd.Function):
    """Queues work on the device, forward and backward."""

    @staticmethod
    def forward(context: Any, tensor: Any, device: Device) -> Any:
        context.device = device
        device.work(0.5)
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        context.device.work(1.0)
        return gradients[0], None


class Model(torch.nn.Module):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.device = device

    def forward(self, batch: Any) -> Any:
        return Queueing.apply(self.layer(batch), self.device)


class Optimizer(torch.optim.SGD):
    def __init__(self, model: Model) -> None:
        super().__init__(model.parameters(), lr=0.01)
        self.device = model.device

    def step(self, closure: Any = None) -> Any:
        self.device.work(0.25)
        return super().step(closure)


@pytest.fixture
def model(device: Device) -> Model:
    return Model(device)


def train(model: Model, clock: ScriptedClock, steps: int = 4, each: float = 1.0) -> None:
    optimizer = Optimizer(model)
    for batch in DataLoader(torch.ones(steps, 4), batch_size=1):
        model(batch).sum().backward()
        optimizer.step()
        clock.advance(each)


def gpu_seconds(desk: Desk) -> dict[str, float | None]:
    return {name: phase.gpu_seconds for name, phase in desk.newest.phases.items() if phase.gpu_seconds is not None}


def test_phases_are_timed_by_the_gpus_clock(
    run: stallscope.Run, desk: Desk, device: Device, model: Model, clock: ScriptedClock
) -> None:
    pytorch.watch(model, run=run)
    train(model, clock)
    device.catch_up()
    run.finish()
    assert gpu_seconds(desk) == {
        "forward": pytest.approx(4 * 0.5),
        "backward": pytest.approx(4 * 1.0),
        "optimizer": pytest.approx(4 * 0.25),
    }
    assert desk.newest.phases["forward"].seconds == 0  # the host only queued


def test_gpu_time_that_is_not_complete_is_reported_later(
    run: stallscope.Run, desk: Desk, device: Device, model: Model, clock: ScriptedClock
) -> None:
    pytorch.watch(model, run=run)
    train(model, clock)
    assert gpu_seconds(desk) == {}
    device.catch_up()
    train(model, clock, steps=1)
    run.finish()
    assert gpu_seconds(desk)["forward"] == pytest.approx(4 * 0.5)


def test_a_gpu_that_lags_far_behind_costs_no_more_events(
    run: stallscope.Run, desk: Desk, device: Device, model: Model, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytorch_device, "_MOST_EVENTS", 20)
    pytorch.watch(model, run=run)
    train(model, clock, steps=50)
    assert device.events == 20
    device.catch_up()
    train(model, clock, steps=50)
    assert device.events == 20
    run.finish()


def test_events_are_used_again(
    run: stallscope.Run, desk: Desk, device: Device, model: Model, clock: ScriptedClock
) -> None:
    pytorch.watch(model, run=run)
    for _ in range(200):
        train(model, clock, steps=2)
        device.catch_up()
    assert device.events <= 24


def test_a_stream_that_is_captured_is_left_alone(
    run: stallscope.Run, desk: Desk, device: Device, model: Model, clock: ScriptedClock
) -> None:
    pytorch.watch(model, run=run)
    device.capturing = True
    train(model, clock)
    run.finish()
    assert device.events == 0
    assert desk.newest.phases["forward"].occurrences == 4


def test_a_gpu_that_fails_ends_the_timing_and_not_the_training(
    run: stallscope.Run,
    desk: Desk,
    device: Device,
    model: Model,
    clock: ScriptedClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("STALLSCOPE_STRICT")
    pytorch.watch(model, run=run)
    device.broken = True
    train(model, clock)
    run.finish()
    assert "fallen off the bus" in caplog.text
    assert len([each for each in caplog.records if each.name == "stallscope"]) == 1
    assert desk.newest.gauges["step"] == 4


def test_an_evaluation_is_not_the_trainings_gpu_time(
    run: stallscope.Run, desk: Desk, device: Device, model: Model, clock: ScriptedClock
) -> None:
    pytorch.watch(model, run=run)
    train(model, clock)
    with torch.no_grad():
        for batch in DataLoader(torch.ones(4, 4)):
            model(batch)
    device.catch_up()
    run.finish()
    assert gpu_seconds(desk)["forward"] == pytest.approx(4 * 0.5)


def test_time_inside_another_phase_is_its_own(run: stallscope.Run, desk: Desk, device: Device) -> None:
    timing = DeviceClock(torch.cuda, run)
    outer = timing.begin("forward")
    device.work(1)
    inner = timing.begin("host_copy")
    device.work(2)
    timing.end(inner)
    device.work(4)
    timing.end(outer)
    device.catch_up()
    timing.read()
    run.finish()
    assert gpu_seconds(desk) == {"forward": pytest.approx(5), "host_copy": pytest.approx(2)}


def test_what_the_reducer_waited_for_is_taken_out_of_the_backward_pass(
    run: stallscope.Run, desk: Desk, device: Device
) -> None:
    timing = DeviceClock(torch.cuda, run)
    timing.move("backward", "communication", 3)
    for _ in range(2):
        span = timing.begin("backward")
        device.work(2)
        timing.end(span)
    device.catch_up()
    timing.read()
    run.finish()
    assert gpu_seconds(desk) == {"backward": pytest.approx(1), "communication": pytest.approx(3)}


def test_the_allocator_is_reported(
    run: stallscope.Run, desk: Desk, device: Device, model: Model, clock: ScriptedClock
) -> None:
    pytorch.watch(model, run=run)
    train(model, clock)
    run.finish()
    reported = desk.newest
    assert [reported.gauges[f"allocator_{name}_bytes"] for name in ("reserved", "used", "peak")] == [3000, 1000, 2000]
    assert (reported.counters["allocator_retries"], reported.counters["out_of_memory"]) == (2, 1)


def test_copies_to_the_gpu_are_reported_and_others_are_not(
    run: stallscope.Run, desk: Desk, device: Device, model: Model, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(tensor: Any, *_: Any, **__: Any) -> Any:
        clock.advance(0.125)
        device.work(0.5)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(torch.Tensor, "cuda", copy)
    pytorch.watch(model, run=run)
    train(model, clock, steps=1)
    tensor = torch.ones(1)
    tensor.to("cuda:0", non_blocking=True)
    tensor.to(torch.device("cuda", 0))
    tensor.to(device="cuda")
    tensor.to(0)
    tensor.cuda()
    tensor.to("cpu")
    tensor.to(torch.float64)
    tensor.to(dtype=torch.float16)
    tensor.to(tensor)
    device.catch_up()
    run.finish()
    reported = desk.newest.phases["host_copy"]
    assert reported.occurrences == 5
    assert reported.seconds == pytest.approx(5 * 0.125)
    assert reported.gpu_seconds == pytest.approx(5 * 0.5)


def test_moving_the_model_before_the_loop_is_initialization(
    run: stallscope.Run, desk: Desk, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
    pytorch.watch(run=run)
    torch.ones(1).to("cuda")
    run.finish()
    assert "host_copy" not in desk.newest.phases


def test_an_error_of_a_copy_is_the_programs(
    run: stallscope.Run, desk: Desk, model: Model, clock: ScriptedClock
) -> None:
    pytorch.watch(model, run=run)
    train(model, clock, steps=1)
    with pytest.raises((AssertionError, RuntimeError)):  # there is no CUDA here
        torch.ones(1).to("cuda")
    clock.advance(1)
    run.finish()
    assert desk.newest.phases["host_copy"].seconds == 0


def test_arguments_that_move_nothing_are_recognised() -> None:
    assert goes_to_gpu(("cuda",), {})
    assert goes_to_gpu((), {"device": 1})
    for arguments, options in (
        ((), {}),
        ((torch.float32,), {}),
        ((), {"dtype": torch.float32}),
        ((torch.device("cpu"),), {}),
        ((torch.ones(1),), {}),
    ):
        assert not goes_to_gpu(arguments, options)
