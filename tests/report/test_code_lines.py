"""The line of code of a verdict in a report, on a real Prometheus."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator

import pytest

from stallscope.lab.replay.series import Series
from stallscope.model.analysis.runs import find_run
from stallscope.model.clients.prometheus import Prometheus
from stallscope.tools.report.culprits import code_lines
from stallscope.tools.report.options import Options
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.subject import of_run
from tests.filled_prometheus import write
from tests.prometheus_server import prometheus

SCRAPES = 41
RANK = {"job": "stallscope", "instance": "node0:19400", "run": "starved", "rank": "0"}


def during(value: float, first: int, last: int) -> list[float | None]:
    return [value if first <= number < last else None for number in range(SCRAPES)]


def recorded() -> Iterator[Series]:
    """Yield the series of a run that waited for two workers, then got eight."""
    yield Series("stallscope_training_rank_info", {**RANK, "world_size": "1"}, during(1.0, 0, SCRAPES))
    yield Series("stallscope_training_state", {**RANK, "state": "running"}, during(1.0, 0, SCRAPES))
    workers: list[float | None] = [8.0 if number < 5 or number >= 30 else 2.0 for number in range(SCRAPES)]
    yield Series("stallscope_training_dataloader_workers", RANK, workers)
    line = {"phase": "data_wait", "location": "augment.py:41", "function": "elastic"}
    yield Series("run:code:ratio2m", {"run": "starved", "cause": "input_few_workers", **line}, during(0.62, 10, 25))


def test_a_line_has_the_number_of_workers_while_it_was_found() -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    with prometheus() as running:
        end = 60.0 * math.floor(time.time() / 60)
        write([running.port], list(recorded()), end - 30 * (SCRAPES - 1), SCRAPES)
        client = Prometheus(running.address)
        run = find_run(client, "starved", end - 3600, end)
        (line,) = code_lines(Queries(client, of_run(client, run), Options())).values()
        client.close()
    assert (line.location, line.workers) == ("augment.py:41", 2)
    assert line.share == pytest.approx(0.62)
