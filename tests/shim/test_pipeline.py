"""The pipeline stage of a rank, from the libraries that the program has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.shim import pipeline
from stallscope.training.shim.run import Run
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
    assert pipeline.stage() == ""


def test_the_stage_of_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        get_pipeline_model_parallel_rank=returning(3),
        get_pipeline_model_parallel_world_size=returning(4),
    )
    assert pipeline.stage() == "3"


def test_one_stage_is_no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        get_pipeline_model_parallel_rank=returning(0),
        get_pipeline_model_parallel_world_size=returning(1),
    )
    assert pipeline.stage() == ""


def test_megatron_without_its_groups_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        get_pipeline_model_parallel_rank=fails,
        get_pipeline_model_parallel_world_size=fails,
    )
    assert pipeline.stage() == ""


def test_the_stage_of_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = SimpleNamespace(get_pipe_parallel_rank=returning(1), get_pipe_parallel_world_size=returning(2))
    module(monkeypatch, "deepspeed.utils.groups", mpu=grid)
    assert pipeline.stage() == "1"


def test_deepspeed_without_a_pipeline_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "deepspeed.utils.groups", mpu=None)
    assert pipeline.stage() == ""


def test_a_stage_of_torch_that_spans_the_default_group() -> None:
    pipeline.note(SimpleNamespace(stage_index=5, group_rank=1, group_size=4))  # interleaved: stages 1 and 5
    assert pipeline.stage() == "1"


@pytest.mark.parametrize(("variable", "expected"), [("", "2"), ("7", "7")])
def test_a_report_has_the_stage_unless_the_user_sets_another(
    variable: str, expected: str, monkeypatch: pytest.MonkeyPatch, clock: ScriptedClock, desk: Desk
) -> None:
    monkeypatch.setenv("STALLSCOPE_PIPELINE_STAGE", variable)
    run = Run("job", clock=clock, sender=desk)
    pipeline.note(SimpleNamespace(group_rank=2, group_size=4))
    run.finish()
    assert desk.newest.info.get("pipeline_stage") == expected


def test_a_run_whose_steps_are_counted_has_the_stage_that_it_had(clock: ScriptedClock, desk: Desk) -> None:
    run = Run("job", clock=clock, sender=desk)
    for _ in range(2):
        clock.advance(20.0)
        run.step()
    pipeline.note(SimpleNamespace(group_rank=2, group_size=4))
    run.finish()
    assert not desk.newest.info.get("pipeline_stage")
