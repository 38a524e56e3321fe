"""The pipeline stage, tensor and data parallel rank, from the libraries that the program has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.shim import pipeline
from tests.shim.conftest import Desk


@pytest.fixture(autouse=True)
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what other tests have imported."""
    for name in ("megatron.core.parallel_state", "deepspeed.utils.groups", "torch.distributed.distributed_c10d"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(pipeline, "position", None)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> None:
    made = ModuleType(name)
    vars(made).update(attributes)
    monkeypatch.setitem(sys.modules, name, made)


def returning(number: int) -> Callable[[], int]:
    return lambda: number


def fails() -> int:
    raise AssertionError("pipeline_model parallel group is not initialized")


def test_without_a_library_the_stage_is_unknown() -> None:
    assert pipeline.positions() == {}


def test_the_stage_of_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        get_pipeline_model_parallel_rank=returning(3),
        get_pipeline_model_parallel_world_size=returning(4),
    )
    assert pipeline.positions() == {"pipeline_stage": "3"}


def test_one_stage_is_no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        get_pipeline_model_parallel_rank=returning(0),
        get_pipeline_model_parallel_world_size=returning(1),
    )
    assert pipeline.positions() == {}


def test_megatron_without_its_groups_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        get_pipeline_model_parallel_rank=fails,
        get_pipeline_model_parallel_world_size=fails,
    )
    assert pipeline.positions() == {}


def test_the_stage_of_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = SimpleNamespace(get_pipe_parallel_rank=returning(1), get_pipe_parallel_world_size=returning(2))
    module(monkeypatch, "deepspeed.utils.groups", mpu=grid)
    assert pipeline.positions() == {"pipeline_stage": "1"}


def test_the_tensor_and_data_ranks_of_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        get_tensor_model_parallel_rank=returning(6),
        get_tensor_model_parallel_world_size=returning(8),
        get_data_parallel_rank=returning(1),
        get_data_parallel_world_size=returning(2),
        get_pipeline_model_parallel_rank=returning(0),
        get_pipeline_model_parallel_world_size=returning(1),
    )
    assert pipeline.positions() == {"tensor_rank": "6", "data_rank": "1"}


def test_the_tensor_and_data_ranks_of_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = SimpleNamespace(
        get_pipe_parallel_rank=returning(1),
        get_pipe_parallel_world_size=returning(2),
        get_slice_parallel_rank=returning(3),
        get_slice_parallel_world_size=returning(4),
        get_data_parallel_rank=fails,
        get_data_parallel_world_size=fails,
        get_model_parallel_rank=returning(7),  # the stage and the tensor rank together
        get_model_parallel_world_size=returning(8),
    )
    module(monkeypatch, "deepspeed.utils.groups", mpu=grid)
    assert pipeline.positions() == {"pipeline_stage": "1", "tensor_rank": "3"}


def test_deepspeed_without_a_pipeline_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "deepspeed.utils.groups", mpu=None)
    assert pipeline.positions() == {}


def test_a_stage_of_torch_that_spans_the_default_group() -> None:
    pipeline.note(SimpleNamespace(stage_index=5, group_rank=1, group_size=4))  # interleaved: stages 1 and 5
    assert pipeline.positions() == {"pipeline_stage": "1"}


@pytest.mark.parametrize(("variable", "expected"), [("", "2"), ("7", "7")])
def test_a_report_has_the_stage_unless_the_user_sets_another(
    variable: str, expected: str, monkeypatch: pytest.MonkeyPatch, clock: ScriptedClock, desk: Desk
) -> None:
    monkeypatch.setenv("STALLSCOPE_PIPELINE_STAGE", variable)
    module(monkeypatch, "torch.distributed.distributed_c10d")  # the stage is one of its groups
    run = SimulatedRun("job", clock=clock, sender=desk)
    pipeline.note(SimpleNamespace(group_rank=2, group_size=4))
    run.finish()
    assert desk.newest.info.get("pipeline_stage") == expected


def test_a_report_has_the_ranks_that_become_known_before_the_first_steps(
    monkeypatch: pytest.MonkeyPatch, clock: ScriptedClock, desk: Desk
) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk, info={"data_rank": "5"})
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        get_tensor_model_parallel_rank=returning(6),
        get_tensor_model_parallel_world_size=returning(8),
        get_data_parallel_rank=returning(1),
        get_data_parallel_world_size=returning(2),
    )
    run.finish()
    found = {key: desk.newest.info.get(key) for key in pipeline.KEYS if desk.newest.info.get(key)}
    assert found == {"tensor_rank": "6", "data_rank": "5"}


def test_a_run_whose_steps_are_counted_has_the_stage_that_it_had(clock: ScriptedClock, desk: Desk) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk)
    for _ in range(2):
        clock.advance(20.0)
        run.step()
    pipeline.note(SimpleNamespace(group_rank=2, group_size=4))
    run.finish()
    assert not desk.newest.info.get("pipeline_stage")
