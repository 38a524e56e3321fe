"""Data frames of runs in a real Prometheus: the reported values, at the steps of the same scrape."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stallscope.lab.replay.series import Series
from stallscope.model.analysis import Frames, frames, pieces
from stallscope.model.analysis.runs import RunError, UnknownRunError
from stallscope.model.clients.prometheus import Prometheus
from tests.analysis.scrapes import (
    BUSY,
    DATA_WAIT,
    INTERVAL,
    SCRAPES,
    STEPS,
    Held,
    Values,
    counter,
    of_gpu,
    of_host,
    of_rank,
    scraped,
    there,
)
from tests.installation import part
from tests.scenarios.case import render

NODE = "plain:19400"
RESTART = 31
"""The first scrape after the restart."""
SLOW = 15
"""The scrape with a slow step."""
AWAY = range(20, 40)
"""Failed scrapes of an exporter."""
RESTARTED: Values = [1000 + STEPS * n if n < RESTART else 5 + STEPS * (n - RESTART) for n in range(SCRAPES)]


def everything() -> Iterator[Series]:
    yield from of_rank("plain", 0, uuid="GPU-a", world_size=2)
    yield from of_rank("plain", 1, uuid="GPU-b", instance=NODE, world_size=2, steps=RESTARTED)
    for index, uuid in enumerate(("GPU-a", "GPU-b", "GPU-unclaimed")):
        yield from of_gpu(NODE, index, uuid)
    yield from of_host(NODE)
    yield Series("stallscope_training_value", {**rank_of("plain"), "name": "accuracy"}, counter(0.001))
    longest: Values = [9.0 if number == SLOW else 1.0 for number in range(SCRAPES)]
    yield Series("stallscope_training_phase_max_seconds", {**rank_of("plain"), "phase": "forward"}, longest)
    for each in (*of_rank("away", uuid="GPU-c"), *of_gpu("away:19400", 0, "GPU-c")):
        values = there(each.values, range(AWAY.start), range(AWAY.stop, SCRAPES))
        yield Series(each.name, each.labels, values)
    # Half of a run, whose only rank claims a GPU by its index and until the middle.
    yield from of_rank("half", 0, world_size=4, uuid="", only=range(SCRAPES // 2))
    yield from of_rank("half", 2, instance="half:19400", world_size=4)
    yield from of_rank("lone", world_size=10**9)
    yield from of_gpu("half:19400", 0, "GPU-d")
    for rank in (0, 1):
        for each in of_rank("together", rank, uuid="GPU-e"):
            yield Series(each.name, {**each.labels, **({"gpu": "0"} if "gpu" in each.labels else {})}, each.values)
    yield from of_gpu("together:19400", 0, "GPU-e")
    yield from story()


def rank_of(run: str) -> dict[str, str]:
    return {"job": "stallscope", "instance": f"{run}:19400", "run": run, "rank": "0"}


def story() -> list[Series]:
    """Two nodes with two GPUs each, from the scenario of a healthy training."""
    rendered = render(part("healthy").case, 1, noise=False, labels={"cluster": "east"}, scrape_seconds=INTERVAL)
    return [Series(each.name, each.labels, each.values[:SCRAPES]) for each in rendered]


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with scraped(list(everything())) as held:
        yield held


def read(held: Held, run: str, step: float | None = None) -> Frames:
    return frames(run, prometheus=held.server, start=held.start - 60, end=held.end + 60, step=step)


def read_in_pieces(held: Held, run: str, step: float | None, rows: int) -> list[Frames]:
    start, end = held.start - 60, held.end + 60
    return list(pieces(run, prometheus=held.server, start=start, end=end, step=step, piece_bytes=rows * 1000))


def only(frame: pd.DataFrame, **which: object) -> pd.DataFrame:
    for column, value in which.items():
        frame = frame[frame[column] == value]
    assert len(frame)
    return frame


def test_a_row_is_a_scrape_with_its_time(held: Held) -> None:
    steps = only(read(held, "plain").steps, rank=0)
    scrapes = [pd.Timestamp(held.start + INTERVAL * number, unit="s", tz="UTC") for number in range(SCRAPES)]
    assert list(steps.index) == scrapes
    assert np.isnan(steps["interval_seconds"].iloc[0])
    assert set(steps["interval_seconds"].iloc[1:]) == {float(INTERVAL)}


def test_every_row_has_the_step_of_its_own_scrape(held: Held) -> None:
    run = read(held, "plain")
    expected = [counter(STEPS), RESTARTED]
    for frame in (run.steps, run.gpu, only(run.phases, phase="forward")):
        for rank in (0, 1):
            assert list(only(frame, rank=rank)["step"]) == expected[rank]
    assert list(run.host["step"]) == expected[0]
    assert list(run.values["step"]) == expected[0]


def test_counters_become_increases_over_the_interval(held: Held) -> None:
    run = read(held, "plain")
    gpu, steps = only(run.gpu, rank=0), only(run.steps, rank=0)
    assert gpu["busy_ratio"].iloc[1:].to_numpy() == pytest.approx(BUSY)
    assert gpu["energy_watts"].iloc[1:].to_numpy() == pytest.approx(300)
    assert gpu["temperature_memory_celsius"].to_numpy() == pytest.approx(65)
    assert steps["steps"].iloc[1:].to_numpy() == pytest.approx(STEPS)
    assert steps["step_seconds"].iloc[1:].to_numpy() == pytest.approx(INTERVAL / STEPS)
    waits = only(run.phases, rank=0, phase="data_wait")
    assert waits["seconds"].iloc[1:].to_numpy() == pytest.approx(DATA_WAIT * INTERVAL)
    assert waits["ratio"].iloc[1:].to_numpy() == pytest.approx(DATA_WAIT)
    # The start of the first interval is unknown.
    assert gpu["busy_ratio"].isna().iloc[0]


def test_after_a_restart_a_counter_has_increased_by_its_value(held: Held) -> None:
    steps = only(read(held, "plain").steps, rank=1)["steps"]
    assert steps.iloc[RESTART] == 5
    assert steps.drop(steps.index[RESTART]).iloc[1:].to_numpy() == pytest.approx(STEPS)


def test_over_a_gap_the_interval_is_longer_and_sums_stay_exact(held: Held) -> None:
    run = read(held, "away")
    after = run.steps.iloc[AWAY.start]
    assert len(run.steps) == SCRAPES - len(AWAY)
    assert after["interval_seconds"] == (len(AWAY) + 1) * INTERVAL
    assert after["steps"] == STEPS * (len(AWAY) + 1)
    assert run.gpu["busy_ratio"].iloc[AWAY.start] == pytest.approx(BUSY)
    assert run.gaps == 1
    assert read(held, "plain").gaps == 0


@pytest.mark.parametrize(("step", "rows"), [(None, 16), (120.0, 8)])
def test_gaps_are_counted_across_pieces(held: Held, step: float | None, rows: int) -> None:
    parts = read_in_pieces(held, "away", step, rows)
    within = range(AWAY.start * INTERVAL, AWAY.stop * INTERVAL)
    assert any(int(part.end - held.start) in within for part in parts)
    assert read(held, "away", step).gaps == 1
    assert sum(part.gaps for part in parts) == 1


def test_columns_without_data_exist_and_are_empty(held: Held) -> None:
    run = read(held, "plain")
    assert run.gpu["sm_active_ratio"].isna().all()
    assert run.gpu["temperature_gpu_celsius"].isna().all()
    assert run.steps["loss"].isna().all()
    assert run.steps["activity"].isna().all()
    story = read(held, "resnet50")
    for name, frame in run.items():
        assert list(frame.columns) == list(getattr(story, name).columns)


def test_disks_are_summed_and_of_their_busy_time_the_busiest_counts(held: Held) -> None:
    host = read(held, "plain").host
    assert host["disk_read_bytes_per_second"].iloc[1:].to_numpy() == pytest.approx(2e6)
    assert host["disk_busy_ratio"].iloc[1:].to_numpy() == pytest.approx(0.4)
    assert set(host["cpus"]) == {32.0}


def test_states_are_categories(held: Held) -> None:
    steps = read(held, "plain").steps
    assert set(steps["state"]) == {"running"}
    assert steps["state"].dtype == "category"


def test_columns_have_their_units(held: Held) -> None:
    units = read(held, "plain").gpu.attrs["units"]
    assert units["busy_ratio"] == "ratio"
    assert units["energy_watts"] == "watts"
    assert "up" not in units


def test_an_unclaimed_gpu_has_no_rows(held: Held) -> None:
    assert set(read(held, "plain").gpu["uuid"]) == {"GPU-a", "GPU-b"}


def test_a_gpu_has_rows_only_while_it_is_claimed_even_by_index_alone(held: Held) -> None:
    gpu = read(held, "half").gpu
    assert set(gpu["uuid"]) == {"GPU-d"}
    assert len(gpu) == SCRAPES // 2


def test_a_gpu_of_two_ranks_has_the_step_of_the_first_and_each_row_once(held: Held) -> None:
    gpu = read(held, "together").gpu
    assert len(gpu) == SCRAPES
    assert set(gpu["rank"]) == {0}


def test_missing_ranks_and_gpus_are_noted(held: Held) -> None:
    assert read(held, "half").notes == (
        "2 of 4 ranks reported; missing: 1, 3",
        "the GPU of rank 2 is unknown: its rows are missing in `gpu`",
    )
    assert read(held, "lone").notes[0] == (
        "1 of 1000000000 ranks reported; missing: 1, 2, 3, 4, 5, 6, 7, 8 and 999999991 more"
    )
    assert not read(held, "plain").notes


def test_the_server_computes_longer_rows(held: Held) -> None:
    run = read(held, "plain", step=300)
    steps = only(run.steps, rank=0)
    assert steps.index[0].timestamp() == held.start + 300
    assert set(steps.index.to_series().diff().dropna().dt.total_seconds()) == {300.0}
    assert set(steps["interval_seconds"]) == {300.0}
    assert steps["steps"].to_numpy() == pytest.approx(10 * STEPS)
    assert only(run.gpu, rank=0)["busy_ratio"].to_numpy() == pytest.approx(BUSY)
    longest = only(run.phases, rank=0, phase="forward")["max_seconds"]
    assert list(longest)[:3] == [1, 9, 1]  # not a mean of the peak and other values
    assert steps["step"].is_monotonic_increasing
    assert set(steps["step"]) < set(counter(STEPS))  # the last reported value, not a mean


def test_a_run_shorter_than_a_row_is_refused(held: Held) -> None:
    with pytest.raises(RunError, match=r"the run's 1800 s have no row of 3600 s; choose a shorter step"):
        read(held, "plain", step=3600)
    with pytest.raises(ValueError, match="at least 1 second"):
        read(held, "plain", step=0)


@pytest.mark.parametrize(("step", "rows"), [(None, 250), (120.0, 20)])
def test_concatenated_pieces_equal_the_whole(held: Held, step: float | None, rows: int) -> None:
    for name in ("plain", "away"):
        parts = read_in_pieces(held, name, step, rows)
        assert len(parts) > 1
        for frame_name, frame in read(held, name, step).items():
            joined = pd.concat([getattr(each, frame_name) for each in parts])
            words = {column: str for column in frame if isinstance(frame[column].dtype, pd.CategoricalDtype)}
            pd.testing.assert_frame_equal(joined.astype(words), frame.astype(words))


def test_frames_that_exceed_the_limit_get_a_longer_step_with_a_warning(held: Held) -> None:
    shares: list[float] = []
    with pytest.warns(UserWarning, match=r"a row covers 300 s; `pieces` reads every scrape"):
        run = frames(
            "plain",
            prometheus=held.server,
            start=held.start - 60,
            end=held.end,
            max_bytes=40_000,
            advance=shares.append,
        )
    assert run.resolution == 300
    assert "a row covers 300 s" in run.notes[-1]
    assert sum(shares) == pytest.approx(1)


def test_an_unknown_run_and_a_time_without_it_are_errors(held: Held) -> None:
    with pytest.raises(UnknownRunError, match="did you mean plain"):
        read(held, "plian")
    with pytest.raises(UnknownRunError, match="'plain' reported nothing between"):
        frames("plain", prometheus=held.server, start=held.start - 7200, end=held.start - 3600)
    with pytest.raises(ValueError, match="the end is not after the start"):
        frames("plain", prometheus=held.server, start=held.end, end=held.start)


def test_warnings_of_the_server_are_noted(held: Held) -> None:
    class Warned(Prometheus):
        def take_warnings(self) -> list[str]:
            return ["store b is down"]

    with closing(Warned(held.url)) as server:
        note = f"{held.url} warns: store b is down"
        assert frames("plain", prometheus=server, step=300).notes == (note,)
        assert {each.notes for each in pieces("plain", prometheus=server, step=300)} == {(note,)}


@pytest.mark.parametrize("moment", ["yesterday", pd.NaT, float("inf"), dt.date(2026, 11, 21)])
def test_an_invalid_time_is_rejected(moment: Any) -> None:
    with pytest.raises(ValueError, match="is not a time; expected a datetime or Unix time"):
        frames("plain", start=moment)


def test_a_time_without_a_zone_is_local_also_in_pandas(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "MST7")  # a zone without daylight saving time
    time.tzset()
    try:
        middle = dt.datetime.fromtimestamp(held.start + 600, dt.timezone.utc).astimezone().replace(tzinfo=None)
        found = [frames("plain", prometheus=held.server, start=moment) for moment in (middle, pd.Timestamp(middle))]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert {each.steps.index[0].timestamp() for each in found} == {held.start + 600 + INTERVAL}


def test_a_wrong_local_clock_is_noted_and_times_are_the_servers(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: held.end + 7200)
    run = frames("plain", prometheus=held.server)
    assert len(only(run.steps, rank=0)) == SCRAPES
    (note,) = run.notes
    assert re.fullmatch(r"the clocks of this machine and of \S+ differ by \d+ s; times are the server's", note)


def test_values_of_a_story_are_read_back(held: Held) -> None:
    run = read(held, "resnet50")
    assert run.run.cluster == "east"
    assert len(run.run.claims) == 4
    compared = 0
    for each in story():
        labels, increases = each.labels, np.diff(np.array(each.values, float))
        if each.name == "stallscope_gpu_sm_active_seconds_total":
            gpu = only(run.gpu, uuid=labels["uuid"])
            assert gpu["sm_active_ratio"].iloc[1:].to_numpy() == pytest.approx(increases / INTERVAL)
            compared += 1
        elif each.name == "stallscope_training_phase_gpu_seconds_total":
            phase = only(run.phases, rank=int(labels["rank"]), phase=labels["phase"])
            assert phase["gpu_seconds"].iloc[1:].to_numpy() == pytest.approx(increases)
            compared += 1
    assert compared >= 4 + 4 * 4
    # Phases sum to the whole time.
    sums = run.phases.groupby(["time", "rank"])["seconds"].sum(min_count=1).dropna()
    assert sums.to_numpy() == pytest.approx(INTERVAL, abs=5.5)  # ranks report every five seconds


def test_importing_the_package_loads_no_library() -> None:
    heavy = "{'pandas', 'numpy', 'requests', 'pyarrow'} & set(sys.modules)"
    program = f"import sys, stallscope.model.view.verdicts; sys.exit(', '.join({heavy}) or 0)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
