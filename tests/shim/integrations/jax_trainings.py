"""Trainings with JAX."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import stallscope
from stallscope.training.integrations.jax import track_step
from tests.shim.integrations.trainings import Desk, framework, main
from tests.shim.integrations.truth import Truth

jax: Any = framework("jax")

FETCH = 0.01
COMPILING = 0.1


@jax.jit
def train(weight: Any, batch: Any) -> Any:
    time.sleep(COMPILING)  # while it is traced, and never when it runs
    return weight - 0.1 * jax.grad(lambda each: ((each * batch - 1.0) ** 2).mean())(weight)


def batches(count: int, size: int = 8) -> Iterator[Any]:
    for _ in range(count):
        time.sleep(FETCH)
        yield jax.numpy.ones(size)


def tracked(desk: Desk) -> None:
    """Ten calls; the device's time is taken on each third."""
    step = track_step(
        train, "tracked", samples_per_step=8, steps_planned=10, device_time_every=3, sender=desk, interval=0.0
    )
    weight = jax.numpy.float32(0.0)
    for batch in step.batches(batches(10)):
        weight = step(weight, batch)
    with step.run.phase("evaluation"):
        step.run.report(loss=float((weight - 1.0) ** 2))
    step.run.finish()
    assert step.lower is not None, "what is wrapped shines through"


def recompiling(desk: Desk) -> None:
    """Three lengths of batches: one compilation at first, two that interrupt the training."""
    with stallscope.Run("recompiling", sender=desk, interval=0.0) as run:
        step = track_step(train, run, calls_per_step=2)
        weight = jax.numpy.float32(0.0)
        for size in (8, 8, 9, 9, 10, 10, 8, 9):
            weight = step(weight, jax.numpy.ones(size))


def waiting_for_nothing(desk: Desk) -> None:
    """A computation of a quarter of a second, for which only the loop waits; again, where the machine paused."""
    slow = jax.jit(lambda values: values @ values @ values @ values)
    values = jax.numpy.ones((1500, 1500))
    with stallscope.Run("waiting", sender=desk, interval=0.0) as run:
        step = track_step(slow, run)
        step(values).block_until_ready()
        for _ in range(20):
            result = step(values)
            is_ready = result.is_ready()
            result.block_until_ready()
            if not is_ready:
                break
        run.report(waited=float(is_ready))


def failing(desk: Desk) -> None:
    """The third call raises; the run is the user's to end."""
    try:
        with stallscope.Run("failing", sender=desk, interval=0.0) as run:
            step = track_step(train, run)
            for size in (8, 8, 0, 8):
                step(jax.numpy.float32(0.0), jax.numpy.ones(size) if size else None)
    except (TypeError, ValueError):
        return
    raise AssertionError("the error did not reach the program")


def measured(desk: Desk) -> None:
    """Three passes over five batches of four and one of two, evaluated and saved; two calls make a step."""
    truth = Truth()

    def slow_train(weight: Any, batch: Any) -> Any:
        time.sleep(FETCH)
        truth.samples += batch.shape[0]
        return train(weight, batch)

    def fetched() -> Iterator[Any]:
        for size in (4, 4, 4, 4, 4, 2):
            with truth("data_wait"):
                time.sleep(FETCH)
                batch = jax.numpy.ones(size)
            yield batch

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            return fetched()

    with stallscope.Run("measured", sender=desk, interval=0.0) as run:
        step = track_step(slow_train, run, calls_per_step=2)
        weight = jax.numpy.float32(0.0)
        for _ in range(3):
            for batch in step.batches(Loader()):
                weight = step(weight, batch)
            with truth("evaluation"), run.phase("evaluation"):
                time.sleep(0.1)
            with truth("checkpoint"), run.phase("checkpoint"):
                time.sleep(0.05)
    truth.steps = 9
    truth.write(desk.path.with_suffix(".truth"))


class Model:
    """Step functions that are defined in a class."""

    rate = 0.5

    @track_step
    @functools.partial(jax.jit, static_argnums=0)
    def step(self, weight: Any) -> Any:
        return weight * self.rate

    @staticmethod
    def doubled(weight: Any) -> Any:
        return weight * 2.0


def in_a_class(desk: Desk) -> None:
    """Two calls of a method, and two of a function that takes no object."""
    with stallscope.Run("in_a_class", sender=desk, interval=0.0) as run:
        Model.doubled = track_step(vars(Model)["doubled"], run)  # type: ignore[method-assign]
        model, weight = Model(), jax.numpy.float32(8.0)
        assert float(model.step(model.step(weight))) == 2.0
        assert float(model.doubled(model.doubled(weight))) == 32.0
        assert float(Model.doubled(weight)) == 16.0
        assert model.step.run is run, "what is wrapped shines through"


def traced(desk: Desk) -> None:
    """Three calls, after the step was traced for its shapes and its operations."""
    step = track_step(train, "traced", sender=desk, interval=0.0)
    weight, batch = jax.numpy.float32(0.0), jax.numpy.ones(8)
    assert jax.eval_shape(step, weight, batch).shape == ()
    assert jax.make_jaxpr(step)(weight, batch).eqns
    assert jax.jit(lambda *inputs: step(*inputs) + 1.0)(weight, batch).shape == ()
    for _ in range(3):
        weight = step(weight, batch)
    step.run.finish()


if __name__ == "__main__":
    main("jax", (tracked, recompiling, waiting_for_nothing, failing, measured, in_a_class, traced))
