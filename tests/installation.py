"""An installation with every kind of problem and one healthy run: test data for dashboards, status page and reports.

Each part is a labelled scenario case, or a case of the same form, with its own machines and its own run name:
`waiting` is the run of that part, `waiting0:19400` its first node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stallscope.lab.replay.series import Series
from tests.rules.rulebook import GROUPS
from tests.scenarios.case import Case, render
from tests.scenarios.cases import CASES
from tests.scenarios.cases.settings import CLOUD_WORK, NODE_WORK, QUIET, SERVER_WORK, negative, positive, run_on
from tests.scenarios.machines import CLOUD, H100, PAIR, SERVER
from tests.scenarios.story import ALWAYS, GIB, From, Gpu, Host, Node, Run, Story

SCRAPE_SECONDS = 30
HEALTHY = "healthy"
"""Name of the part without problems, in which every signal is available."""
CLUSTER = "east"
"""The `cluster` label of all parts except laptops, which have none."""
TEAM = "perception"
"""Team of the namespace `vision`, as kube-state-metrics exposes it."""
_SEED = 1
_GPU = ("cluster", "job", "instance", "gpu", "uuid", "mig")
_TIMES = ("timestamp_seconds", "process_start_time_seconds", "run:clock:seconds", "ALERTS_FOR_STATE")
"""Ends of names whose values are moments."""


@dataclass(frozen=True)
class Part:
    """One case under a name of its own."""

    name: str
    case: Case
    cluster: str = CLUSTER

    @property
    def run(self) -> str:
        """Its run; the part that has none has GPUs alone."""
        return self.name if self.case.story.runs else ""

    @property
    def instances(self) -> tuple[str, ...]:
        """Its nodes, as Prometheus calls them."""
        return tuple(f"{self.name}{number}:19400" for number in range(len(self.case.story.nodes)))

    @property
    def scrapes(self) -> int:
        """How often it was scraped."""
        return int(self.case.length * 60 / SCRAPE_SECONDS) + 1


def _known(name: str, *, minutes: float | None = None) -> Case:
    case = next(each for each in CASES if each.name == name)
    return case if minutes is None else replace(case, length=minutes)


def _healthy() -> Case:
    work = replace(
        NODE_WORK,
        tokens_per_sample=2048,
        flops_per_sample=8e11,
        quota_throttled=0.001,
        data="nfs",
    )
    story = run_on(
        PAIR,
        before=work,
        count=2,
        start=-40.0,
        measures_communication=True,
        namespace="vision",
        pods=True,
        quota=True,
        values={"single_gpu_samples_per_second": 560.0},
    )
    return negative("everything_told", story, length=45.0)


def _broken() -> Case:
    """Four GPUs are ill, each otherwise."""
    story = run_on(PAIR, count=2, measures_communication=True)
    states = (
        From(ALWAYS, Gpu()),
        From(7.0, Gpu(uncorrected=2, corrected=40, remap_pending=True, remapped=1, xids=(48,)), (0,)),
        From(7.0, Gpu(links_down=2, link_errors={"crc": 20.0}, width=8, replays=90.0, corrected=5), (1,)),
        From(7.0, Gpu(throttled={"power_brake": 0.4, "hw_slowdown": 0.4}, clock=0.7, xids=(31,)), (2,)),
        From(20.0, Gpu(present=False, xids=(79,)), (3,)),
    )
    run = story.runs[0]
    waits = From(20.0, replace(NODE_WORK, hangs="spin"))
    dead = From(20.0, replace(NODE_WORK, hangs="idle", main_thread=0.0), (3,))
    run = replace(run, work=(*run.work, waits, dead), killed=(3,))
    return positive("broken_gpus", "lost", replace(story, runs=(run,), gpus=states), subject="gpu")


def _host() -> Case:
    host = Host(
        cores=27.0,
        busiest=1.0,
        cpu_waiting=0.4,
        io_waiting=0.4,
        io_stalled=0.2,
        memory_waiting=0.25,
        memory_used=0.95,
        page_cache=0.03,
        dropped=4000.0,
        errors=2500.0,
        received=5e7,
        swap_in=3e7,
        swap_out=2e7,
        faults=4000,
        shared_memory=0.97,
        nfs_in_flight=60,
        oom_kills=0.1,
    )
    slow = Gpu(clock_configured=0.9, clock=0.9)
    story = run_on(SERVER, SERVER_WORK, host=host, onset=2.0, gpu=slow, gpus=(0,))
    return positive("host_in_trouble", "mem_pressure", story, subject="host", length=45.0)


def _partitioned() -> Case:
    """A GPU in two instances, one of them with a run."""
    card = replace(H100, mig="3g.40gb", memory=40 * GIB, links=0)
    node = Node(card=card, gpus=2, cpus=24, memory=256 * GIB)
    work = replace(CLOUD_WORK, memory=0.5)
    run = Run(ranks=((0,),), work=(From(ALWAYS, work),))
    return negative("partitioned_gpu", Story((node,), (run,), hosts=(From(ALWAYS, QUIET[CLOUD]),)), subject="gpu")


def _shared() -> Case:
    """Two runs on one GPU, and memory that a dead process left on the other."""
    case = _known("ac_17_two_jobs_on_one_gpu")
    left = (From(ALWAYS, Gpu()), From(7.0, Gpu(kept=0.6), (1,)))
    return replace(case, story=replace(case.story, gpus=left))


def _lopsided() -> Case:
    """One process drives two GPUs and gives the first twice the load of the second."""
    whole = replace(SERVER_WORK, communication=0.0, loader_cores=12.0, loader_workers=48)
    story = run_on(SERVER, before=whole, ranks=((0, 1),), gpu_shares=(1.0, 0.5))
    return positive("one_process_on_two_gpus", "gpu_load_imbalance", story, subject="run", length=25.0)


def _idle() -> Case:
    """One user holds two GPUs and uses one; `recorded_before` sets how long the other has been idle."""
    states = (
        From(ALWAYS, Gpu()),
        From(ALWAYS, Gpu(foreign=("grace",)), (0,)),
        From(ALWAYS, Gpu(foreign=("ada",), foreign_busy=0.8), (1,)),
    )
    story = Story(nodes=(SERVER,), hosts=(From(ALWAYS, QUIET[SERVER]),), gpus=states)
    return positive("held_and_idle", "idle_allocated", story, subject="gpu", run="")


def _exporters() -> Case:
    """One exporter rejects reports, drops series and has failing sources; another exporter is down."""
    story = run_on(
        CLOUD,
        count=2,
        more={
            "reports_rejected": 20.0,
            "series_dropped": 40.0,
            "failing_source": (("nfs", 8.0), ("disk", 8.0)),
            "exporter_down": ((1, 20.0),),
        },
    )
    return negative("exporters_in_trouble", story)


PARTS = (
    Part(HEALTHY, _healthy()),
    Part("waiting", _known("input_few_workers_laptop"), cluster=""),
    Part("starving", _known("input_network_bound_cloud")),
    Part("straggling", _known("straggler_hw_two_nodes")),
    Part("lopsided", _lopsided()),
    Part("broken", _broken()),
    Part("hot", _known("thermal_throttle_laptop"), cluster=""),
    Part("idle", _idle()),
    Part("shared", _shared()),
    Part("full", _known("gpu_mem_near_oom_laptop"), cluster=""),
    Part("saving", _known("checkpoint_stall_laptop", minutes=45.0), cluster=""),
    Part("stuttering", _known("step_outliers_laptop", minutes=45.0), cluster=""),
    Part("restarting", _known("restart_loop_server", minutes=45.0)),
    Part("unknown", _known("no_phases_measured"), cluster=""),
    Part("host", _host()),
    Part("partitioned", _partitioned()),
    Part("exporters", _exporters()),
)
MINUTES = max(part.case.length for part in PARTS)
"""Minutes from the first scrape of the longest part to the last scrape of all parts."""


def series() -> list[Series]:
    """Return all scraped series. Each is as long as the longest part, and all end at the same scrape."""
    scrapes = max(part.scrapes for part in PARTS)
    found: list[Series] = []
    for number, part in enumerate(PARTS):
        late = scrapes - part.scrapes
        for each in render(part.case, _SEED, noise=False, labels={}, scrape_seconds=SCRAPE_SECONDS):
            labels = {name: _renamed(name, value, part, number) for name, value in each.labels.items()}
            values = moved(each.name, each.values, late * SCRAPE_SECONDS)
            found.append(Series(each.name, {"cluster": part.cluster, **labels}, [*([None] * late), *values]))
    teams = Series("kube_namespace_labels", {"namespace": "vision", "label_team": TEAM}, [1.0] * scrapes)
    return [*found, *_further(found, scrapes), *_of_scrapes(found, scrapes), *_of_prometheus(scrapes), teams]


def recorded_before(scraped: Sequence[Series]) -> list[Series]:
    """Return the series recorded before the first scrape: the idle GPU was last used 40 minutes earlier."""
    return [
        Series("gpu:last_use:timestamp_seconds", _subset(each.labels, _GPU), [-2400.0])
        for each in scraped
        if each.name == "stallscope_gpu_up" and each.labels["instance"] == "idle0:19400" and each.labels["gpu"] == "0"
    ]


def _further(scraped: Sequence[Series], scrapes: int) -> Iterator[Series]:
    """Yield further series of the healthy part's exporters that no scenario case uses."""
    ages = [float(SCRAPE_SECONDS * number) for number in range(scrapes)]
    for each in scraped:
        if not each.labels["instance"].startswith(HEALTHY):
            continue
        if each.name == "stallscope_training_step":
            for name, value in (
                ("steps_planned", 20000.0),
                ("gradient_norm", 0.8),
                ("recompilations_total", 3.0),
            ):
                yield Series(f"stallscope_training_{name}", each.labels, [value] * scrapes)
            dropped = {**each.labels, "cause": "queue_full"}
            yield Series("stallscope_training_shim_dropped_reports_total", dropped, [0.0] * scrapes)
        elif each.name == "stallscope_gpu_owner_info":
            labels = _subset(each.labels, (*_GPU, "namespace", "pod"))
            workload = {"queue": "research", "workload_kind": "PyTorchJob", "workload": HEALTHY}
            yield Series("stallscope_gpu_owner_workload_info", {**labels, **workload}, each.values)
        elif each.name == "stallscope_exporter_source_up":
            name = "stallscope_exporter_source"
            yield Series(f"{name}_cpu_seconds_total", each.labels, [0.001 * age for age in ages])
            yield Series(f"{name}_reading_seconds_total", each.labels, [0.002 * age for age in ages])
            if each.labels["source"] == "nvidia":
                yield Series("stallscope_exporter_driver_calls_total", each.labels, [40 * age for age in ages])
        elif each.name == "process_resident_memory_bytes":
            yield Series("process_virtual_memory_bytes", each.labels, [2e8] * scrapes)
            yield Series("process_open_fds", each.labels, [30.0] * scrapes)
            yield Series("process_max_fds", each.labels, [1024.0] * scrapes)


def _of_scrapes(scraped: Sequence[Series], scrapes: int) -> Iterator[Series]:
    """Yield Prometheus's series about its scrapes, and the error counters of failing exporters."""
    for each in scraped:
        if each.name != "up":
            continue
        answered = [None if not value else 1.0 for value in each.values]
        yield Series("scrape_duration_seconds", each.labels, [0.01] * scrapes)
        yield Series("scrape_samples_scraped", each.labels, [500 * (value or 0.0) for value in answered])
        if each.labels["instance"].startswith("exporters"):
            counted = [None if value is None else float(number) for number, value in enumerate(answered)]
            rejected = {**each.labels, "source": "nvidia", "reason": "out_of_range"}
            yield Series("stallscope_exporter_values_rejected_total", rejected, counted)
            refused = {**each.labels, "reason": "credentials"}
            yield Series("stallscope_exporter_requests_refused_total", refused, counted)
            failed = {**each.labels, "reason": "kubelet"}
            yield Series("stallscope_exporter_attribution_errors_total", failed, counted)


def _of_prometheus(scrapes: int) -> Iterator[Series]:
    """Yield the rule metrics of a Prometheus that scrapes itself."""
    target = {"job": "prometheus", "instance": "localhost:9090"}
    yield Series("up", target, [1.0] * scrapes)
    for group in GROUPS:
        labels = {**target, "rule_group": f"/etc/prometheus/rules/{group}.yml;{group}"}
        yield Series("prometheus_rule_group_last_duration_seconds", labels, [0.02] * scrapes)
        yield Series("prometheus_rule_group_interval_seconds", labels, [30.0] * scrapes)
        yield Series("prometheus_rule_group_last_evaluation_samples", labels, [100.0] * scrapes)
        yield Series("prometheus_rule_group_rules", labels, [10.0] * scrapes)
        yield Series("prometheus_rule_evaluations_total", labels, [10.0 * number for number in range(scrapes)])
        yield Series("prometheus_rule_evaluation_failures_total", labels, [0.0] * scrapes)
        yield Series("prometheus_rule_group_iterations_total", labels, [float(number) for number in range(scrapes)])
        yield Series("prometheus_rule_group_iterations_missed_total", labels, [0.0] * scrapes)


def _subset(labels: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: labels[name] for name in names if name in labels}


def moved(name: str, values: list[float | None], seconds: float) -> list[float | None]:
    """Return the values moved forward in time; only values that are timestamps change."""
    if not name.endswith(_TIMES):
        return values
    return [None if value is None else value + seconds for value in values]


def _renamed(label: str, value: str, part: Part, number: int) -> str:
    if label in ("instance", "hostname"):
        return value.replace("node", part.name, 1)
    if label in ("run", "pod"):
        return value.replace(part.case.story.runs[0].name, part.name, 1) if part.run else value
    if label == "uuid":
        return f"{value[:4]}{number:04x}{value[8:]}"
    return value


_BY_NAME: Mapping[str, Part] = {part.name: part for part in PARTS}


def part(name: str) -> Part:
    return _BY_NAME[name]
