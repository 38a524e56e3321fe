"""Pipeline stages of PyTorch's own objects, in a process group that exchanges nothing: run by `test_pytorch.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from stallscope.training.integrations import pytorch
from stallscope.training.shim import pipeline


@pytest.fixture(autouse=True)
def fifth_of_eight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(pipeline, "position", None)
    distributed.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield
    distributed.destroy_process_group()


def test_a_mesh_with_a_pipeline_dimension_has_stages() -> None:
    init_device_mesh("cpu", (4, 2), mesh_dim_names=("pp", "dp"))
    assert pipeline.positions() == {"pipeline_stage": "2", "data_rank": "1"}


def test_a_mesh_without_one_has_no_stages() -> None:
    init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    assert pipeline.positions() == {"data_rank": "2", "tensor_rank": "1"}


def test_a_stage_of_torch_pipelining_in_the_default_group(strict: None) -> None:
    from torch.distributed.pipelining import PipelineStage

    pytorch.watch_any()
    PipelineStage(torch.nn.Linear(2, 2), 5, 8, torch.device("cpu"))
    assert pipeline.positions() == {"pipeline_stage": "5"}
