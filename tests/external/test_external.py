"""Recordings, converters and a replay, on small files written by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.external import aligned, hangs, kineto, megatron_log, mlperf_storage, operation_trace, step_log, synthetic
from tests.external.__main__ import CASES, main
from tests.external.errors import ExternalError
from tests.external.judge import judged, trials
from tests.external.recording import read, write
from tests.external.replay import check_size

STEPS = [
    [{"forward": 0.4, "backward": 0.6, "communication": 1.0}, {"forward": 0.8, "backward": 1.15, "communication": 0.05}]
] * 2


def saved(folder: Path, document: object, name: str = "own.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def test_a_slow_rank_is_the_verdict_and_the_culprit_of_a_replay(tmp_path: Path) -> None:
    answer = {"statement": "rank 1 is slow", "causes": ["straggler_rank"], "ranks": [1], "lost": 0.475}
    recording = read(saved(tmp_path, {"steps": STEPS, "published": answer}))
    (finding,) = judged(trials([recording])[:1], minutes=20)
    assert (finding.verdict, finding.culprit, finding.is_right) == ("straggler_rank", "1", True)
    assert finding.lost == pytest.approx(0.475, abs=0.03)
    assert finding.delay is not None


def test_a_pipeline_by_formula_fills_and_drains_in_the_time_of_one_microbatch_for_each_further_stage() -> None:
    equal = np.full((4, 8), 1 / 8)
    assert synthetic.pipeline(equal, 1 / 3) == pytest.approx(1 + 3 / 8)
    heavy = equal.copy()
    heavy[3] *= 2
    assert synthetic.pipeline(heavy, 1 / 3) == pytest.approx(2 + 3 / 8)


def test_the_lost_share_by_formula_is_that_of_the_same_steps_without_the_cause() -> None:
    found = {recording.name: recording for _, recording in synthetic.recordings() if not recording.stages}
    slow = found["rank-4-1.5-0.5s"].published
    assert slow is not None
    assert slow.lost == pytest.approx(1 - 1 / 1.5, abs=0.05)
    assert slow.ranks == (2,)


def test_a_recording_with_communication_is_replayed_with_and_without_measuring_it(tmp_path: Path) -> None:
    with_it = read(saved(tmp_path, {"steps": STEPS}))
    without = read(saved(tmp_path, {"steps": [[{"other": 1.0}]] * 2}))
    assert [trial.measured for trial in trials([with_it, without])] == [True, False, True]


def test_every_case_of_the_casebook_is_a_recording_with_an_answer_and_a_source() -> None:
    cases = [read(path) for path in sorted(CASES.iterdir())]
    assert len(cases) >= 17
    assert all(case.source and case.published for case in cases)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"steps": [[{"forward": -0.1}], [{"forward": 1}]]}, "negative"),
        ({"steps": [[{"forward": 1}]]}, "one step only"),
        ({"steps": [[{"forward": 1}, {"forward": 1}], [{"forward": 1}]]}, "1 ranks, but 2"),
        ({"steps": [[{"forward": 1}, None], [{"forward": 1}, None]]}, "rank is missing"),
        ({"steps": [[{"forward": 1}] * 4097]}, "at most 4096"),
        ({"steps": [[{"forward": 0}]] * 2}, "takes no time"),
        ({"steps": []}, "missing"),
        ({"steps": [[{"forward": "1"}]] * 2}, "expected seconds"),
        ({"steps": [[{"forward": 1}]] * 2, "global_ranks": [0, 1]}, "global_ranks"),
        ({"steps": [[{"forward": 1}]] * 2, "gpu": {"no_such": 1}}, "unknown name"),
        ({"steps": [[{"forward": 1}]] * 2, "published": {"statement": "", "causes": ["magic"]}}, "no cause"),
        ([1], "JSON object"),
    ],
)
def test_an_invalid_recording_is_one_clear_error(tmp_path: Path, document: object, problem: str) -> None:
    with pytest.raises(ExternalError, match=problem) as caught:
        read(saved(tmp_path, document))
    assert "\n" not in str(caught.value)


def test_of_a_long_recording_only_the_first_steps_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "long.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"steps": [[{"forward": 1.0}]] * 50_000}, file)
    recording = read(path, max_rank_steps=100)
    assert len(recording.steps) == 100
    assert recording.notes == ("only the first 100 steps are used",)


def test_a_cut_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"steps": STEPS}).encode())[:-12])
    with pytest.raises(ExternalError, match="cut off"):
        read(path)


def test_a_replay_refuses_more_ranks_than_it_can_evaluate(tmp_path: Path) -> None:
    with pytest.raises(ExternalError, match="4096 ranks"):
        check_size(read(saved(tmp_path, {"steps": [[{"forward": 1}] * 4096] * 2})))


def test_a_written_recording_is_read_unchanged(tmp_path: Path) -> None:
    first = read(saved(tmp_path, {"steps": STEPS, "stages": [0, 1], "source": "a"}))
    write(first, tmp_path / "own.json")
    assert read(tmp_path / "own.json") == first


def test_a_missing_folder_is_a_message_and_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent")]) == 0
    assert "no such folder" in capsys.readouterr().out


def test_an_invalid_file_is_reported_and_is_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, {"steps": []})
    assert main([str(tmp_path)]) == 1
    assert "own.json: steps: missing" in capsys.readouterr().err


def event(name: str, ts: float, dur: float, cat: str = "user_annotation") -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1}


def trace(rank: int, clock: float, steps: int = 3) -> dict[str, object]:
    events = []
    for number in range(steps):
        begin = clock + 1e6 * number
        events += [
            event(f"ProfilerStep#{number}", begin, 1e6),
            event("enumerate(DataLoader)#_Iter.__next__", begin, 2e5),
            event("gemm", begin + 3e5, 3e5, "kernel"),
            event("ncclDevKernel_AllReduce", begin + 5e5, 3e5, "kernel"),
            event("Optimizer.step#SGD.step", begin + 8e5, 1e5),
        ]
    return {"distributedInfo": {"rank": rank}, "traceEvents": events}


def test_traces_are_aligned_by_step_although_their_clocks_differ_by_hours(tmp_path: Path) -> None:
    one = saved(tmp_path, trace(0, 1.7e15), "one.json")
    two = saved(tmp_path, trace(1, 1.7e15 + 3.6e9, steps=4), "two.json")
    recording = kineto.converted([one, two])
    expected = {"data_wait": 0.2, "communication": 0.2, "optimizer": 0.1, "forward": 0.4, "other": 0.1}
    assert len(recording.steps) == 3
    assert recording.notes == ("1 steps are left out, because a rank lacks them",)
    for step in recording.steps:
        assert [dict(rank) for rank in step] == [pytest.approx(expected, abs=1e-6)] * 2


def test_two_traces_of_one_rank_are_an_error(tmp_path: Path) -> None:
    paths = [saved(tmp_path, trace(0, 0.0), f"{name}.json") for name in "ab"]
    with pytest.raises(ExternalError, match="second trace of rank 0"):
        kineto.converted(paths)


def test_operations_are_summed_and_the_rest_of_the_step_is_communication() -> None:
    rows = [
        (rank, rank, step, kind, start + 5.0 * rank, duration)
        for rank in (0, 1)
        for step in (7, 8)
        for kind, start, duration in (
            ("forward-compute", 0.0, 1.0 + rank),
            ("backward-compute", 2.0, 1.0),
            ("grads-reduce-scatter", 3.0, 1.0),
        )
    ]
    recording = operation_trace.summed("trace", iter(rows))
    assert recording.stages == (0, 1)
    assert recording.steps[0] == [
        {"forward": 1.0, "backward": 1.0, "communication": 2.0},
        {"forward": 2.0, "backward": 1.0, "communication": 1.0},
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ['{"env": "a"}', *['{"mode": "train", "iter": 50, "data_time": 0.5, "time": 2.0}'] * 2, '{"mode": "val", "ti'],
        ["INFO - Epoch [1][50/100] lr: 1e-3, eta: 5:23:15, time: 2.000, data_time: 0.500, memory: 9"] * 2,
        ['{"lr": 1e-3, "data_time": 0.5, "time": 2.0, "iter": 50, "step": 50}'] * 2
        + ['{"mIoU": 0.5, "data_time": 9.0, "time": 9.5, "step": 100}'],
        ["mmengine - INFO - Iter(train) [  50/900]  lr: 1e-3  time: 2.0000  data_time: 0.5000  loss: 1"] * 2
        + ["mmengine - INFO - Iter(val) [ 50/500]    eta: 0:00:20  time: 9.5000  data_time: 9.0000  memory: 9"],
        ["d2.utils.events: eta: 0:01 iter: 9 time: 2.0 last_time: 3.0 data_time: 0.5 last_data_time: 0.9 lr: 1"] * 2,
    ],
)
def test_a_step_log_has_the_wait_for_data_and_the_rest(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines))
    assert list(step_log.converted([path]).steps) == [[{"data_wait": 0.5, "other": 1.5}]] * 2


def test_of_a_long_step_log_the_first_steps_are_read_and_the_rest_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    path.write_text("\n".join(["Epoch [1][50/100] time: 2.000, data_time: 0.500"] * 5 + ["time: -1, data_time: -2"]))
    for module in (step_log, aligned):
        monkeypatch.setattr(module, "MAX_RANK_STEPS", 4)
    recording = step_log.converted([path])
    assert (len(recording.steps), recording.notes) == (4, ("only the first 4 steps are used",))


def test_a_wait_that_is_longer_than_the_mean_step_of_the_training_is_the_whole_step(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    line = "d2.utils.events:  eta: 0:01  iter: {}  total_loss: 1  time: 0.5000  data_time: {}  lr: 1"
    path.write_text("\n".join((line.format(19, 0.1), line.format(39, 0.8))))
    first, second = step_log.converted([path]).steps
    assert dict(first[0]) == pytest.approx({"data_wait": 0.1, "other": 0.4})
    assert dict(second[0]) == {"data_wait": 0.8, "other": 0.0}


def test_output_of_mlperf_storage_has_a_file_for_each_rank(tmp_path: Path) -> None:
    output = {"1": {"load": {"block1": [0.2, 0.1], "eval": [9]}, "compute": {"block1": [1.0, 1.0], "eval": [9]}}}
    paths = [saved(tmp_path, output, f"{rank}_output.json") for rank in (0, 1)]
    assert mlperf_storage.converted(paths).steps[0] == [{"data_wait": 0.2, "other": 1.0}] * 2
    for seconds, problem in ((float("nan"), "no duration"), (-0.5, "negative")):
        damaged = {"1": {"load": {"block1": [0.2, seconds]}, "compute": {"block1": [1.0, 1.0]}}}
        with pytest.raises(ExternalError, match=rf"0_output.json: epoch 1: block1\[1\]: .*{problem}"):
            mlperf_storage.converted([saved(tmp_path, damaged, "0_output.json")])
    with pytest.raises(ExternalError, match="RANK_output"):
        mlperf_storage.converted([saved(tmp_path, output, "summary.json")])


LOG = """ iteration {n}/ 100 | consumed samples: 9 | elapsed time per iteration (ms): 1000.0 | loss: 1
times across ranks (ms):
  forward-compute:
     rank  0: 300.00
     rank  1: 400.00
  backward-compute:
     rank  0: 400.00
     rank  1: 500.00
  batch-generator:
     rank  0: 100.00
     rank  1: 100.00
"""


@pytest.mark.parametrize("prefix", ["", "[default7]:", "7: "])
def test_timers_of_megatron_are_phases_of_each_rank(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "a.log"
    lines = (LOG.format(n=10) + LOG.format(n=20)).splitlines(keepends=True)
    path.write_text("".join(prefix + line for line in lines))
    first = megatron_log.converted([path]).steps[0]
    assert dict(first[0]) == pytest.approx({"data_wait": 0.1, "forward": 0.2, "backward": 0.4, "communication": 0.3})
    assert dict(first[1]) == pytest.approx({"data_wait": 0.1, "forward": 0.3, "backward": 0.5, "communication": 0.1})


def test_a_log_of_megatron_without_ranks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("(min, max) time across ranks (ms):\n    forward-compute ...: (1.00, 2.00)\n")
    with pytest.raises(ExternalError, match="--timing-log-option all"):
        megatron_log.converted([path])


def dump(folder: Path, rank: int, launched: int) -> None:
    """Write the dump of a rank that waits in its newest operation, or that launched one less."""
    entries = [
        {
            "record_id": number,
            "pg_name": ["0", "default_pg"],
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + number,
            "input_sizes": [[4]],
            "state": "completed" if number < 3 else "scheduled",
        }
        for number in range(1, launched + 1)
    ]
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    (folder / f"dump_{rank}.json").write_text(json.dumps({"version": "2.4", "pg_config": group, "entries": entries}))


def test_a_hang_is_right_if_exactly_the_published_ranks_stand_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other", "unpublished"):
        folder = tmp_path / hangs.FOLDER / name
        folder.mkdir(parents=True)
        for rank in range(3):
            dump(folder, rank, 2 if rank == 1 else 3)
    answers = tmp_path / "answers.json"
    published = {"source": "a paper", "statement": "a rank was stopped"}
    answers.write_text(json.dumps({"one": {**published, "ranks": [1]}, "other": {**published, "ranks": [1, 2]}}))
    monkeypatch.setattr(hangs, "ANSWERS", answers)
    found = list(hangs.hangs_in(tmp_path))
    assert [hang.is_right for hang in found] == [True, False, None]
    assert [row.split("|")[-2].strip() for row in hangs.table(found)] == ["right", "**wrong**"]
