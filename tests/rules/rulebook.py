"""Describe the series of a node, run the bundle's rules on them with promtool, and compare the results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stallscope.lab.replay.rule_files import group_of, rule_files
from tests.rules.layers import ADAPTERS
from tests.rules.needed import with_needed_rules

if TYPE_CHECKING:
    from tests.rules.together import Document, Together

ROOT = Path(__file__).parents[2]
_RULES = ROOT / "prometheus" / "rules"
CANONICAL_FILES = tuple(_RULES / f"{stem}.yml" for stem in ADAPTERS)
"""Rule files that convert the series of other exporters; without such series they record nothing."""
RULE_FILES = tuple(rule_files())
"""Layer by layer; the thresholds come first."""
ALERT_FILES = tuple(path for path in RULE_FILES if path.parent.name == "alerts")
SHARED = ("thresholds", "subjects", "trends", "signals")
"""Names of the files that most other files read."""
GROUPS = tuple(map(group_of, RULE_FILES))
"""In the order of evaluation."""
_CANONICAL_GROUPS = tuple(f"stallscope-{path.stem.replace('_', '-')}" for path in CANONICAL_FILES)

INTERVAL = 30
"""Seconds between scrapes."""
EVALUATION_INTERVAL = 60
"""Seconds between evaluations; a test whose times need others has `evaluated_every`. With 60, stories take half of the
time that they take with 30."""
LENGTH = 120
"""Scrapes in a story: an hour."""

Story = list[tuple[str, str]]
"""Series, each with its values in promtool's notation."""
Labels = Mapping[str, str]


def tool(name: str) -> str:
    """Find a program of Prometheus or Alertmanager; without it, fail the test with instructions."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is not on PATH; sh tests/install_tools.sh installs it on Debian and Ubuntu")
    return path


def run_tool(name: str, *arguments: str) -> str:
    """Run a program and return its output; fail the test with that output if the program fails."""
    return _succeeded(_run_tool(name, *arguments))


def _succeeded(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        pytest.fail(f"{' '.join(done.args)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def run_promtool(document: Document, path: Path) -> str:
    """Run promtool's rule tests with the rules that they need; return the output, whether they passed or failed."""
    done = _test_rules(document, path)
    return done.stdout + done.stderr


def _test_rules(document: Document, path: Path) -> subprocess.CompletedProcess[str]:
    path.write_text(json.dumps(with_needed_rules(document, path.parent / "rules")))
    return _run_tool("promtool", "test", "rules", str(path))


def _run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # promtool would spend a quarter of its time on collecting little garbage often.
    environment = {**os.environ, "GOGC": "800"}
    return subprocess.run(
        [tool(name), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=280
    )


def series(name: str, values: str, /, **labels: str) -> tuple[str, str]:
    """One series; a label without a value is left out, as the exposition does."""
    inner = ",".join(f'{label}="{value}"' for label, value in labels.items() if value)
    return f"{name}{{{inner}}}", values


def scrapes(minutes: float) -> int:
    """Return the number of scrapes in `minutes`."""
    return round(minutes * 60 / INTERVAL)


def steady(value: float) -> str:
    """A constant gauge."""
    return f"{value:.10g}+0x{LENGTH}"


def until(minute: float, before: float = 1, after: float = 0) -> str:
    """A gauge that changes once."""
    return f"{before:.10g}+0x{scrapes(minute)} {after:.10g}+0x{LENGTH - scrapes(minute)}"


def growing(per_second: float) -> str:
    """A counter that grows at a constant rate."""
    return f"0+{per_second * INTERVAL:g}x{LENGTH}"


def growing_until(minute: float, per_second: float = 1.0) -> str:
    """A counter, or a clock, that stops."""
    end = per_second * minute * 60
    return f"0+{per_second * INTERVAL:g}x{scrapes(minute)} {end:g}+0x{LENGTH - scrapes(minute)}"


def growing_then(minute: float, before: float, after: float) -> str:
    """A counter that changes its rate once; both rates are per second."""
    turn, left = scrapes(minute), LENGTH - scrapes(minute) - 1
    first = before * INTERVAL * turn + after * INTERVAL
    return f"0+{before * INTERVAL:.10g}x{turn} {first:.10g}+{after * INTERVAL:.10g}x{left}"


def interrupted(minute: float, per_second: float, *, first: float = 0.0, reset: bool = False) -> str:
    """A counter that is missing for two minutes and then continues or restarts."""
    step, before, gap = per_second * INTERVAL, scrapes(minute), scrapes(2)
    again = 0.0 if reset else first + step * (before + gap + 1)
    return f"{first:.10g}+{step:g}x{before} _x{gap} {again:.10g}+{step:g}x{LENGTH - before - gap}"


CLOCK = growing(1)
"""A timestamp that is always now: stories begin at Unix time 0."""
TARGET = {"job": "stallscope", "instance": "node1:19400"}


def exporter(**target: str) -> Story:
    """An exporter that responds."""
    return [series("up", steady(1), **{**TARGET, **target})]


def gpu(
    index: int = 0,
    *,
    up: str = steady(1),
    idle: float | None = 0.0,
    busy: float | None = None,
    low_samples: float = 0.0,
    throttled: Mapping[str, float] | None = None,
    clock: float | None = 1.0,
    celsius: float = 60,
    held: bool = True,
    mig: str = "",
    uuid: str | None = None,
    **target: str,
) -> Story:
    """A GPU; shares of time. `idle` is the time without work, None if the GPU does not report it."""
    labels = {**TARGET, **target, "gpu": str(index), "uuid": f"GPU-{index}" if uuid is None else uuid, "mig": mig}
    story = [
        series("stallscope_gpu_up", up, **labels),
        series("stallscope_gpu_processes", steady(float(held)), kind="compute", **labels),
        series("stallscope_gpu_temperature_celsius", steady(celsius), sensor="gpu", **labels),
    ]
    if idle is not None:
        story += [
            series("stallscope_gpu_observed_seconds_total", growing(1), **labels),
            series("stallscope_gpu_below_seconds_total", growing(idle), level="0.1", **labels),
            series("stallscope_gpu_busy_seconds_total", growing(1 - idle if busy is None else busy), **labels),
            series(
                "stallscope_gpu_utilization_samples_sum", growing(6 * (1 - idle if busy is None else busy)), **labels
            ),
            series("stallscope_gpu_utilization_samples_bucket", growing(6 * low_samples), le="0.7", **labels),
            series("stallscope_gpu_utilization_samples_count", growing(6), **labels),
        ]
    if clock is not None:
        story += [
            series("stallscope_gpu_clock_hertz", steady(clock * 2e9), clock="sm", **labels),
            series("stallscope_gpu_clock_max_hertz", steady(2e9), clock="sm", **labels),
        ]
    return story + [
        series("stallscope_gpu_throttled_seconds_total", growing(share), reason=reason, **labels)
        for reason, share in (throttled or {}).items()
    ]


def rank(
    number: int = 0,
    *,
    run: str = "train",
    wait: float | None = 0.0,
    wait_then: tuple[float, float] | None = None,
    gpus: Sequence[tuple[str, str]] = (("0", "GPU-0"),),
    state: str = "running",
    activity: Mapping[str, str] | None = None,
    first_step: float = 0,
    last_step: str = CLOCK,
    last_push: str = CLOCK,
    steps: str = CLOCK,
    step_seconds: float = 1.0,
    other_phase: str = "forward",
    phases: Mapping[str, float] | None = None,
    cores: float | None = None,
    cpu_limit: float = 8,
    job_class: str = "production",
    namespace: str = "",
    pod: str = "",
    world_size: str = "",
    pipeline_stage: str = "",
    **target: str,
) -> Story:
    """A rank of a run that makes a step a second.

    `wait` is its data wait as a share of the loop's time, which from a minute on may be another one (`wait_then`);
    `phases` are shares of further phases, and `other_phase` takes what is left.
    """
    labels = {**TARGET, **target, "run": run, "rank": str(number)}
    info = {
        "job_class": job_class,
        "namespace": namespace,
        "pod": pod,
        "world_size": world_size,
        "local_rank": str(number),
        "pipeline_stage": pipeline_stage,
    }
    left = 1 - (wait or 0.0) - sum((phases or {}).values())
    bucket = "stallscope_training_step_seconds_bucket"
    story = [
        series("stallscope_training_rank_info", steady(1), **labels, **info),
        *(
            series("stallscope_training_state", steady(float(each == state)), state=each, **labels)
            for each in ("starting", "running", "finished", "failed", "terminated", "lost")
        ),
        *(
            series("stallscope_training_activity", values, activity=each, **labels)
            for each, values in (activity or {"training": steady(1), "evaluation": steady(0)}).items()
        ),
        series("stallscope_training_first_step_timestamp_seconds", steady(first_step), **labels),
        series("stallscope_training_last_step_timestamp_seconds", last_step, **labels),
        series("stallscope_training_last_push_timestamp_seconds", last_push, **labels),
        series("stallscope_training_step_seconds_count", steps, **labels),
        series(bucket, steady(0), le=f"{step_seconds / 2:g}", **labels),
        series(bucket, steps, le=f"{step_seconds:g}", **labels),
        *([series(bucket, steps, le="1", **labels)] if step_seconds < 1 else []),
        series(bucket, steps, le="+Inf", **labels),
        series("stallscope_training_phase_seconds_total", growing(left), phase=other_phase, **labels),
        *(
            series("stallscope_training_phase_seconds_total", growing(share), phase=phase, **labels)
            for phase, share in (phases or {}).items()
        ),
        *(
            series("stallscope_training_rank_gpu_info", steady(1), gpu=index, uuid=uuid, **labels)
            for index, uuid in gpus
        ),
    ]
    if wait is not None:
        waited = growing(wait) if wait_then is None else growing_then(wait_then[0], wait, wait_then[1])
        story.append(series("stallscope_training_phase_seconds_total", waited, phase="data_wait", **labels))
    if cores is not None:
        story += [
            series("stallscope_training_process_cpu_seconds_total", growing(cores), **labels),
            series("stallscope_training_cpu_limit_cores", steady(cpu_limit), **labels),
        ]
    return story


def host(busy: float, *, pressure: float = 0.0, cpus: int = 64, **target: str) -> Story:
    """A host; `busy` is the share of its CPU cores in use."""
    labels = {**TARGET, **target}
    return [
        series("stallscope_host_cpu_seconds_total", growing(busy * cpus), mode="user", **labels),
        series("stallscope_host_cpu_seconds_total", growing((1 - busy) * cpus), mode="idle", **labels),
        series("stallscope_host_cpus", steady(cpus), **labels),
        series("stallscope_host_pressure_waiting_seconds_total", growing(pressure), resource="cpu", **labels),
    ]


def gpu_signal(family: str, values: str, index: int = 0, **labels: str) -> tuple[str, str, int, dict[str, str]]:
    """A further series of a GPU of some node."""
    return f"stallscope_gpu_{family}", values, index, labels


def node(instance: str, story: Story, *further: tuple[str, str, int, Mapping[str, str]]) -> Story:
    """Return the story on another node, with further series of its GPUs."""
    own = [
        series(name, values, job="stallscope", instance=instance, gpu=str(index), uuid=f"GPU-{index}", **labels)
        for name, values, index, labels in further
    ]
    return [(name.replace(TARGET["instance"], instance), values) for name, values in story] + own


class Rulebook:
    """Runs promtool on stories.

    Args:
        folder: where to put what promtool reads.
        together: the stories that may share a run.
        evaluation_interval: seconds between evaluations of the rules.
    """

    def __init__(
        self, folder: Path, together: Together | None = None, *, evaluation_interval: int = EVALUATION_INTERVAL
    ) -> None:
        self._path = folder / "story.test.yml"
        self._together = together
        self._evaluation_interval = evaluation_interval

    def check(
        self,
        story: Story,
        expected: Mapping[str, Iterable[tuple[Labels, float]]],
        *,
        at: str = "20m",
        rule_files: Sequence[Path] = RULE_FILES,
    ) -> None:
        """Expect exactly these samples of each expression, whatever their order."""
        self._run(
            story,
            rule_files,
            promql_expr_test=[
                {
                    "expr": expression,
                    "eval_time": at,
                    "exp_samples": [{"labels": _render(labels), "value": value} for labels, value in samples],
                }
                for expression, samples in expected.items()
            ],
        )

    def check_percent(
        self,
        story: Story,
        name: str,
        expected: Iterable[tuple[Labels, int]],
        *,
        at: str = "20m",
        by: str = "",
        rule_files: Sequence[Path] = RULE_FILES,
    ) -> None:
        """Expect exactly these samples of a recorded share, in whole per cent."""
        percent = f"round(100 * {name})"
        self.check(story, {f"sum by ({by}) ({percent})" if by else percent: expected}, at=at, rule_files=rule_files)

    def check_firing(
        self,
        story: Story,
        expected: Iterable[Labels],
        *,
        at: str = "50m",
        by: str = "alertname, severity, run",
        rule_files: Sequence[Path] = RULE_FILES,
    ) -> None:
        """Expect exactly these alerts, distinguished by the labels in `by`, beside the watchdog."""
        firing = 'ALERTS{alertstate="firing",alertname!="StallscopeWatchdog"}'
        samples = [(labels, 1.0) for labels in expected]
        self.check(story, {f"count by ({by}) ({firing})": samples}, at=at, rule_files=rule_files)

    def check_nodes(
        self,
        nodes: Mapping[str, tuple[Story, str]],
        *,
        at: str = "20m",
        rule_files: Sequence[Path] = RULE_FILES,
    ) -> None:
        """Expect of each node one GPU with that cause, or none; all others are healthy, and have one verdict each."""
        self.check(
            [each for story, _cause in nodes.values() for each in story],
            {
                'count by (instance, cause) (gpu:verdict:ratio5m{cause!="healthy"})': [
                    ({"instance": instance, "cause": cause}, 1) for instance, (_story, cause) in nodes.items() if cause
                ],
                "count by (instance) (count by (instance, gpu, uuid, mig) (gpu:verdict:ratio5m) > 1)": [],
            },
            at=at,
            rule_files=rule_files,
        )

    def check_nodes_firing(
        self,
        nodes: Mapping[str, tuple[Story, Iterable[Labels]]],
        *,
        at: str = "50m",
        rule_files: Sequence[Path] = RULE_FILES,
    ) -> None:
        """Expect exactly these alerts of each node, by name and severity."""
        self.check_firing(
            exporter() + [each for story, _alerts in nodes.values() for each in story],
            [{"instance": instance, **labels} for instance, (_story, expected) in nodes.items() for labels in expected],
            at=at,
            by="alertname, severity, instance",
            rule_files=rule_files,
        )

    def check_text(self, story: Story, alert: str, labels: Labels, annotations: Labels, *, at: str = "50m") -> None:
        """Expect one alert with exactly these labels and annotations."""
        self.check_texts(story, alert, [(labels, annotations)], at=at)

    def check_texts(
        self, story: Story, alert: str, expected: Iterable[tuple[Labels, Labels]], *, at: str = "50m"
    ) -> None:
        """Expect exactly these alerts of a name, each with its labels and annotations."""
        alerts = [{"exp_labels": dict(labels), "exp_annotations": dict(texts)} for labels, texts in expected]
        self._run(story, RULE_FILES, alert_rule_test=[{"alertname": alert, "eval_time": at, "exp_alerts": alerts}])

    def _run(self, story: Story, rule_files: Sequence[Path], **expectations: object) -> None:
        self._settle(
            {
                "rule_files": [str(path) for path in rule_files],
                "evaluation_interval": f"{self._evaluation_interval}s",
                "group_eval_order": [*_CANONICAL_GROUPS, *GROUPS],
                "tests": [
                    {
                        "interval": f"{INTERVAL}s",
                        "input_series": [{"series": name, "values": values} for name, values in story],
                        **expectations,
                    }
                ],
            }
        )

    def _settle(self, document: Document) -> None:
        if self._together is None or not self._together.passed(document):
            _succeeded(_test_rules(document, self._path))


class Notebook(Rulebook):
    """A rulebook that records stories without running them."""

    def __init__(self, *, evaluation_interval: int) -> None:
        self.documents: list[Document] = []
        self._evaluation_interval = evaluation_interval

    def _settle(self, document: Document) -> None:
        self.documents.append(document)


def _render(labels: Labels) -> str:
    return "{" + ", ".join(f'{label}="{value}"' for label, value in labels.items()) + "}"
