"""`stallscope compare` on a real Prometheus that holds half an hour of the article's runs, as rules record them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stallscope.lab.replay.series import Series
from stallscope.model.analysis import comparison
from stallscope.model.analysis.run_figures import RunFigures
from stallscope.model.clients.prometheus import Prometheus
from stallscope.tools.cli import compare
from stallscope.tools.cli._comparison import text
from tests.filled_prometheus import write
from tests.prometheus_server import prometheus

SCRAPES = 61
"""One every half a minute."""
NO_STEPS = 8
"""Scrapes before the first step."""
RUNS: dict[str, dict[str, float]] = {
    "batch4": {"gpus": 1, "batch": 4, "samples": 250, "small_batch": 0.9},
    "batch512": {"gpus": 1, "batch": 512, "samples": 3500},
    "two-gpus": {"gpus": 2, "batch": 1024, "samples": 6100},
    "real-data": {"gpus": 2, "batch": 1024, "samples": 4300, "input_cpu_saturated": 0.295},
}


TWINS = ("research-east", "research-west")
"""Clusters that have a run of one name each."""


def reported(run: str, figures: dict[str, float], **place: str) -> Iterator[Series]:
    names = {"gpus": "run:gpus:count", "batch": "run:batch_size:sum", "samples": "run:samples:rate5m"}
    labels = {"namespace": "vision", "run": run, **place}
    cause = {name: share for name, share in figures.items() if name not in names}
    recorded = {
        **{series: figures[name] for name, series in names.items()},
        "run:step:seconds5m": figures["batch"] / figures["samples"],
        "run:ranks:count": figures["gpus"],
        "run:time_lost:ratio5m": sum(cause.values()),
    }
    rank = {**labels, "job": "stallscope", "instance": f"{run}:19400", "rank": "0"}
    yield Series("stallscope_training_rank_info", {**rank, "world_size": "1"}, [1.0] * SCRAPES)
    yield Series("stallscope_training_state", {**rank, "state": "finished"}, [1.0] * SCRAPES)
    for name, value in recorded.items():
        # While windows fill, everything is slower than it is.
        filling = [None] * NO_STEPS + [value / 2] * 10
        yield Series(name, labels, [*filling, *[value] * (SCRAPES - len(filling))])
    for name, share in cause.items():
        yield Series("run_cause:time_lost:ratio5m", {**labels, "cause": name}, [share] * SCRAPES)


def changed(run: str, change: Callable[[str, list[float | None]], list[float | None]]) -> list[Series]:
    """Return the series of `batch512` under another name, with other values."""
    return [
        Series(each.name, each.labels, change(each.name, list(each.values))) for each in reported(run, RUNS["batch512"])
    ]


@pytest.fixture(scope="module")
def filled_once() -> Iterator[tuple[str, float]]:
    """A server and the time after its last samples."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    with prometheus() as running:
        end = time.time()
        everything = [series for run, figures in RUNS.items() for series in reported(run, figures)]
        everything += changed("young", lambda _, values: [*[None] * (SCRAPES - 6), *values[-6:]])
        everything += changed(
            "scattered",
            lambda name, values: [
                value and value * (1 + 0.3 * (number % 2) * (name == "run:step:seconds5m"))
                for number, value in enumerate(values)
            ],
        )
        for cluster, run in zip(TWINS, ("two-gpus", "real-data"), strict=True):
            everything += reported("twins", RUNS[run], cluster=cluster)
        write([running.port], everything, end - 30 * SCRAPES, SCRAPES)
        yield running.address, end


@pytest.fixture
def server(filled_once: tuple[str, float], monkeypatch: pytest.MonkeyPatch) -> str:
    """A server whose time does not go on: it returns the last samples for five more minutes, and windows would grow."""
    address, end = filled_once
    monkeypatch.setattr(Prometheus, "now", lambda _: end)
    return address


def answer(capsys: pytest.CaptureFixture[str], server: str, *arguments: str) -> str:
    assert compare.main([*arguments, f"--prometheus.url={server}", "--since=2h"]) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], server: str, *arguments: str) -> str:
    assert compare.main([*arguments, f"--prometheus.url={server}", "--since=2h"]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    return said.err


def document(capsys: pytest.CaptureFixture[str], server: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(capsys, server, *arguments, "--json"))
    return found


def test_the_articles_batch_sizes_are_14_times_apart_with_a_limit_of_3900(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    found = document(capsys, server, "batch4", "batch512")
    assert found["against_base"][0]["scaling"]["speed_up"] == pytest.approx(14)
    assert found["batch_sizes"]["most_samples_per_second_per_gpu"] == pytest.approx(3900, rel=0.05)
    assert found["batch_sizes"]["fixed_seconds"] == pytest.approx(0.015, rel=0.01)


def test_the_time_in_which_windows_fill_does_not_count(capsys: pytest.CaptureFixture[str], server: str) -> None:
    (small, _) = document(capsys, server, "batch4", "batch512")["runs"]
    assert small["samples"] == pytest.approx(250)
    assert small["seconds"] == pytest.approx(30 * (SCRAPES - NO_STEPS) - 300, abs=90)


def test_a_base_that_is_named_is_compared_even_if_it_is_not_listed(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    found = document(capsys, server, "two-gpus", "--baseline=batch512")
    assert found["base"] == "batch512"
    assert found["against_base"][0]["scaling"]["efficiency"] == pytest.approx(0.871, abs=0.001)


def test_what_several_gpus_lose_by_being_several_is_said(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert "Scaling from 1 to 2 GPUs: 87 %" in answer(capsys, server, "batch512", "two-gpus")


def test_the_cause_that_makes_the_difference_is_named_with_what_to_change(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    said = answer(capsys, server, "two-gpus", "real-data")
    assert "real-data takes 41.9 % more GPU time for each sample" in said
    assert "+41.8 %  Waiting for data: CPUs saturated (0 % there, 30 % here)" in said
    assert "Decode and augment less per sample" in said
    assert "unexplained" not in said


def test_what_to_change_stands_with_its_cause_and_not_with_what_is_unexplained() -> None:
    fast = RunFigures("fast", 900, gpus=1, samples=100, time_lost=0.0)
    slow = RunFigures("slow", 900, gpus=1, samples=40, time_lost=0.4, lost={"input_cpu_saturated": 0.4})
    lines = text(comparison.compare([fast, slow])).splitlines()
    (cause,) = (number for number, line in enumerate(lines) if "CPUs saturated" in line)
    assert "Decode and augment less per sample" in lines[cause + 1]
    assert any("not explained" in line for line in lines[cause + 2 :])


def test_a_short_run_is_compared_by_its_own_counters(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert compare.main(["--prometheus.url", server, "batch512", "young"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"young: only \d min of training are averaged", said)
    row = next(line for line in said.splitlines() if line.startswith("young "))
    assert row.split()[-2] != "-"  # the step


def test_a_difference_within_the_scatter_of_the_steps_may_be_chance(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    found = document(capsys, server, "batch512", "scattered")
    (against,) = found["against_base"]
    assert 0.05 < against["uncertainty"] < 0.2
    assert "(± " in answer(capsys, server, "batch512", "scattered")
    assert "(± " not in answer(capsys, server, "batch512", "two-gpus")


def test_the_table_fits_80_columns_with_all_figures(capsys: pytest.CaptureFixture[str], server: str) -> None:
    said = answer(capsys, server, *RUNS)
    assert max(map(len, said.splitlines())) < 80
    row = next(line for line in said.splitlines() if line.startswith("real-data"))
    assert row.split() == ["real-data", "2", "1,024", "4,300", "17.20", "860", "%", "238", "ms", "28", "%"]


def test_runs_of_one_name_are_set_side_by_side_by_their_clusters(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    east, west = (f"{cluster}/vision/twins" for cluster in TWINS)
    assert f"CLUSTER/NAMESPACE/RUN: {east}, {west}" in refusal(capsys, server, "twins", "batch4")
    found = document(capsys, server, east, west, "--cluster=research-east")
    assert [(run["name"], run["cluster"], run["samples"]) for run in found["runs"]] == [
        (east, TWINS[0], pytest.approx(6100)),
        (west, TWINS[1], pytest.approx(4300)),
    ]
    said = answer(capsys, server, east, west, f"--baseline={west}").splitlines()
    assert said[said.index(east) + 1].split()[3] == "1.42"
    assert said[said.index(west) + 1].split()[3] == "base"


def test_one_run_by_two_names_is_not_compared_with_itself(capsys: pytest.CaptureFixture[str], server: str) -> None:
    said = refusal(capsys, server, "batch4", "vision/batch4", "batch512")
    assert said == "stallscope compare: 'batch4' and 'vision/batch4' are the same run; name another\n"


def test_what_a_server_warns_of_stands_beneath_the_comparison(
    capsys: pytest.CaptureFixture[str], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prometheus, "take_warnings", lambda _: ["a store did not answer"])
    note = f"{server} warns: a store did not answer"
    assert note in document(capsys, server, "batch4", "batch512")["notes"]
    *_, first, second = answer(capsys, server, "batch4", "batch512").splitlines()
    assert note in f"{first} {second}"


def test_an_unknown_run_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert "did you mean batch512" in refusal(capsys, server, "batch4", "batch513")


def test_an_unreachable_server_is_one_line_of_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "can't be reached" in refusal(capsys, "http://127.0.0.1:9", "batch4", "batch512")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["batch4"], "at least two runs"), (["a", "a"], "'a' is listed twice"), (["a", "b", "--base", "a"], "--baseline")],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
