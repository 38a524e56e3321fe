"""The series of one rank, as its last report states them."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.model.catalogue.metrics import ACTIVITIES, RUN_STATES, family
from stallscope.node.intake.held import Held
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.training.protocol.measurements import COUNTERS, GAUGES
from stallscope.training.protocol.vocabulary import INFO_KEYS

RANK_INFO = family("stallscope_training_rank_info")
RANK_GPU_INFO = family("stallscope_training_rank_gpu_info")
PROCESS_INFO = family("stallscope_training_process_info")
STATE = family("stallscope_training_state")
ACTIVITY = family("stallscope_training_activity")
START = family("stallscope_training_start_timestamp_seconds")
FIRST_STEP = family("stallscope_training_first_step_timestamp_seconds")
LAST_STEP = family("stallscope_training_last_step_timestamp_seconds")
LAST_PUSH = family("stallscope_training_last_push_timestamp_seconds")
RESTARTS = family("stallscope_training_restarts_total")
STEP_SECONDS = family("stallscope_training_step_seconds")
PHASE_SECONDS = family("stallscope_training_phase_seconds_total")
PHASE_GPU_SECONDS = family("stallscope_training_phase_gpu_seconds_total")
PHASE_OCCURRENCES = family("stallscope_training_phase_occurrences_total")
PHASE_MAX = family("stallscope_training_phase_max_seconds")
CODE_SECONDS = family("stallscope_training_code_seconds_total")
VALUE = family("stallscope_training_value")
PRECISION = family("stallscope_training_precision_info")
DROPPED_REPORTS = family("stallscope_training_shim_dropped_reports_total")
COUNTER_FAMILIES = {key: family(f"stallscope_training_{key}_total") for key in COUNTERS}
GAUGE_FAMILIES = {key: family(f"stallscope_training_{key}") for key in GAUGES}


def samples_of(held: Held) -> Iterator[Sample]:
    """Yield every series of a rank."""
    report = held.report
    rank = (report.run, str(report.rank))
    yield Sample(RANK_INFO, (*rank, *[report.info.get(key, "") for key in INFO_KEYS]), 1)
    for gpu in report.gpus:
        yield Sample(RANK_GPU_INFO, (*rank, gpu.gpu, gpu.uuid), 1)
    yield Sample(PROCESS_INFO, (*rank, report.info.get("hostname", ""), str(report.pid)), 1)
    present = held.state
    for state in RUN_STATES:
        yield Sample(STATE, (*rank, state), 1 if state == present else 0)
    for activity in ACTIVITIES:
        yield Sample(ACTIVITY, (*rank, activity), 1 if activity == report.activity else 0)
    yield Sample(START, rank, report.start)
    if report.first_step is not None:
        yield Sample(FIRST_STEP, rank, report.first_step)
    if report.last_step is not None:
        yield Sample(LAST_STEP, rank, report.last_step)
    yield Sample(LAST_PUSH, rank, held.arrived)
    yield Sample(RESTARTS, rank, held.restarts)
    steps = report.step_seconds
    if steps is not None:
        yield Sample(STEP_SECONDS, rank, Distribution(steps.counts, steps.sum, steps.count))
    for name, phase in report.phases.items():
        labels = (*rank, name)
        yield Sample(PHASE_SECONDS, labels, phase.seconds)
        yield Sample(PHASE_OCCURRENCES, labels, phase.occurrences)
        yield Sample(PHASE_MAX, labels, phase.max)
        if phase.gpu_seconds is not None:
            yield Sample(PHASE_GPU_SECONDS, labels, phase.gpu_seconds)
    for name, lines in report.code.items():
        for line in lines:
            yield Sample(CODE_SECONDS, (*rank, name, line.location, line.function), line.seconds)
    for key, number in report.counters.items():
        yield Sample(COUNTER_FAMILIES[key], rank, number)
    for key, number in report.gauges.items():
        yield Sample(GAUGE_FAMILIES[key], rank, number)
    for name, number in report.values.items():
        yield Sample(VALUE, (*rank, name), number)
    for precision in report.precision:
        yield Sample(PRECISION, (*rank, precision), 1)
    for cause, number in report.dropped.items():
        yield Sample(DROPPED_REPORTS, (*rank, cause), number)
