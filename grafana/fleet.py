"""Dashboard for operators: losses of the fleet by cause, run and GPU, and the remedies."""

from __future__ import annotations

from grafana.builders import Json, answers, choices, owners, variables, verdicts
from grafana.builders.alerts import alert_table, fired, firing, severities
from grafana.builders.bands import bands
from grafana.builders.choices import CLUSTER
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import BLUE, GREEN, GREY, ORANGE, Override, by_name, fixed_colours
from grafana.builders.links import to_dashboard
from grafana.builders.panel import Panel, stat, state_timeline, table, time_series
from grafana.builders.query import Query
from grafana.fleet_rows import economics, serving

RUN_LABELS = "cluster, namespace, run"
GPU_LABELS = "cluster, job, instance, gpu, uuid, mig"
LISTED = 20
"""Rows for each kind of root cause."""
DRAWN = 16
"""Rows of a map and of the list of runs."""

NOTHING_LOST = f"0 * sum(cluster:gpus_known:count{{{CLUSTER}}})"
"""Zero if GPUs are known; otherwise losses are unknown too."""
LOST = f"(sum(cause:gpus_lost:sum5m{{{CLUSTER}}}) or {NOTHING_LOST})"
"""Time that is being lost, in GPUs."""
NO_LOSS = verdicts.WITHOUT_RUNBOOK
"""Verdicts that need no action."""
ROWS = f"{RUN_LABELS}, instance, cause, culprit, root"
"""Labels of a root cause: a run with its culprit, or a node."""
RANKED_IDLE = f"topk({LISTED}, gpu:idle_allocated:seconds{{{CLUSTER}}})"


def _of_gpus(series: str, *further: str, ranked: str) -> str:
    """Return a value of the ranked GPUs with few labels."""
    return f"max by ({', '.join((GPU_LABELS, *further))}) ({series} and on ({GPU_LABELS}) {ranked})"


def _one(expression: str) -> str:
    """Return one series per GPU, because a table has no room for a second owner or run."""
    return f"topk by ({GPU_LABELS}) (1, {expression})"


def _numbers() -> Panel:
    live = f"count(run:ranks:count{{{CLUSTER}}})"
    losing = f'count(run:verdict:ratio5m{{{CLUSTER}, cause!~"{NO_LOSS}"}})'
    return stat(
        "In numbers",
        "GPUs that are up, those held by a process, an owner or a run, and the equivalent number of fully busy GPUs; "
        "GPU-hours lost per day at the rate of the last five minutes, and their price (set your own above); active "
        "runs, and those that lose time to a cause. If far more GPUs are held than busy, see the causes below.",
        [
            Query(expression, name, instant=True)
            for name, expression in (
                ("GPUs up", f"sum(cluster:gpus_up:count{{{CLUSTER}}})"),
                ("held", f"sum(cluster:gpus_held:count{{{CLUSTER}}})"),
                ("busy", f"sum(cluster:gpus_busy:sum5m{{{CLUSTER}}})"),
                ("GPU-hours lost a day", f"24 * {LOST}"),
                ("$currency lost a day", f"24 * {economics.PRICE} * {LOST}"),
                ("runs", f"{live} or {NOTHING_LOST}"),
                ("runs losing time", f"{losing} or 0 * {live} or {NOTHING_LOST}"),
            )
        ],
        unit="locale",
        decimals=0,
        width=11,
        height=6,
        text_of="value_and_name",
    )


def _lost_in_runs() -> str:
    """Return PromQL for the GPUs that each run loses to its verdict."""
    verdict = f'run:verdict:ratio5m{{{CLUSTER}, cause!~"{NO_LOSS}"}}'
    in_gpus = f"(run:gpus:count{{{CLUSTER}}} or 0 * run:ranks:count{{{CLUSTER}}})"
    lost = f"({verdicts.with_culprit(verdict, CLUSTER)}) * on ({RUN_LABELS}) group_left () {in_gpus}"
    return f"topk({LISTED}, sum by ({ROWS}) ({lost}) > 0)"


def _lost_on_nodes() -> str:
    """Return PromQL for the GPUs that each node loses to each cause, outside runs and their culprits."""
    lost = (
        f'sum by ({ROWS}) (gpu:verdict:ratio5m{{{CLUSTER}, cause!~"{NO_LOSS}"}}'
        f' unless on ({GPU_LABELS}) gpu_rank:pair:info{{{CLUSTER}, run!=""}})'
    )
    return f"topk({LISTED}, {lost} > 0 unless on (cluster, instance, cause) run:culprit:info{{{CLUSTER}}})"


def _answer() -> str:
    """Return PromQL for the sentence on the fleet: how many of the held GPUs are lost, and to what most of all."""
    found = f'count_values by ({ROWS}) ("part", round(topk(1, {_lost_in_runs()} or {_lost_on_nodes()}), 0.1))'
    for label, total in (
        ("lost", f"round({LOST}, 0.1)"),
        ("held", f"round(sum(cluster:gpus_held:count{{{CLUSTER}}}))"),
    ):
        found = f'{found} * on () group_left ({label}) count_values("{label}", {total})'
    return answers.worded(
        found,
        ("run", "instance", "lost", "held", "part", "place", "words", "remedy", "who"),
        (
            ("$3 of $4 held GPUs are lost, $5 of them in run $1: $6$7. $8 ($9)", f"(.+?){8 * answers.PART}"),
            ("$3 of $4 held GPUs are lost, $5 of them on $2: $6$7. $8 ($9)", f"(){8 * answers.PART}"),
        ),
        with_culprit=True,
    )


def _worded(rows: str) -> str:
    return verdicts.with_reason(verdicts.with_root_remedy(rows))


def _root_causes() -> Panel:
    runs, nodes = _lost_in_runs(), _lost_on_nodes()
    duration = answers.lasting(f"run:verdict:ratio5m{{{CLUSTER}}}", RUN_LABELS)
    return table(
        "What costs most now",
        "One row for each root cause: a run with the rank, GPU and node that delay it, or a node whose GPUs lose time "
        "outside a run. Start with the first row. The duration is at most the time range. Click a run or "
        "node for its evidence.",
        [
            Query(_worded(f"({runs}) or ({nodes})"), table=True),
            Query(_worded(f"0 * {runs} + on ({RUN_LABELS}) group_left () ({duration})"), table=True),
        ],
        columns={
            "Value #A": "GPUs lost",
            "run": "Run",
            "instance": "Node",
            "reason": "Root cause",
            "Value #B": "For",
            "remedy": "What to change",
        },
        height=9,
        sort="GPUs lost",
        overrides=[
            by_name("Run", links=[_to_run()], custom__width=100),
            by_name("Node", links=[_to_host()], custom__width=120),
            verdicts.reason_column("Root cause"),
            verdicts.remedy_column(),
            by_name("GPUs lost", unit="none", decimals=1, custom__width=105),
            by_name("For", unit="s", decimals=0, custom__width=75),
        ],
        no_value="No GPU time is lost.",
    )


def _runs_table() -> Panel:
    def of_runs(series: str, *further: str) -> Query:
        return Query(f"max by ({', '.join((RUN_LABELS, *further))}) ({series})", table=True)

    largest = f"topk({DRAWN}, run:gpus:count{{{CLUSTER}}} or 0 * run:ranks:count{{{CLUSTER}}})"
    return table(
        "Runs",
        f"The {DRAWN} active runs with the most GPUs. Click a run for its verdict and its evidence.",
        [
            of_runs(largest),
            of_runs(f"run:time_lost:ratio5m{{{CLUSTER}}} and on ({RUN_LABELS}) {largest}"),
            of_runs(f"run:goodput:ratio1h{{{CLUSTER}}} and on ({RUN_LABELS}) {largest}"),
            of_runs(f"run:job_class:info{{{CLUSTER}}} and on ({RUN_LABELS}) {largest}", "user"),
        ],
        columns={
            "run": "Run",
            "namespace": "Namespace",
            "user": "User",
            "Value #A": "GPUs",
            "Value #B": "Time lost",
            "Value #C": "Goodput",
        },
        width=12,
        height=8,
        sort="GPUs",
        overrides=[
            by_name("Run", links=[_to_run()], custom__minWidth=140),
            by_name("Namespace", custom__width=100),
            by_name("User", custom__width=90),
            by_name("GPUs", unit="none", custom__width=80),
            by_name("Time lost", unit="percentunit", decimals=0, custom__width=90),
            by_name("Goodput", unit="percentunit", decimals=0, custom__width=90),
        ],
        no_value="No active runs.",
    )


def _lost_over_time() -> Panel:
    return time_series(
        "GPU time lost, by cause",
        "Number of GPUs whose whole time each cause costs, that is GPU-hours per hour: the largest causes of the time "
        "range, and all others together.",
        bands(f"sum by (cause) (cause:gpus_lost:sum5m{{{CLUSTER}}})", "cause"),
        unit="short",
        stacked=True,
        overrides=verdicts.cause_colours(),
    )


def _alerts_over_time() -> Panel:
    return state_timeline(
        "Alerts over time",
        "The alerts that fired longest in the time range, on any run or node. They are listed below.",
        [fired(firing(CLUSTER))],
        mappings=severities(),
        width=12,
    )


def _alerts() -> Panel:
    return alert_table(
        "Firing alerts",
        "Stallscope alerts, newest first. Click an alert for its runbook, a run or a GPU for its evidence.",
        firing(CLUSTER),
        {"run": "Run", "rank": "Rank", "instance": "Node", "gpu": "GPU"},
        [
            *_place_links(),
            by_name("Run", links=[_to_run()], custom__minWidth=140),
            by_name("Rank", custom__width=60),
        ],
        height=8,
    )


def _lost_by_cause() -> Panel:
    return economics.losses(
        "GPU-hours lost in the time range, by cause",
        "Cost of each cause over the selected time range, and its remedy.",
        f"sum by (cause) (sum_over_time(cause:gpus_lost:sum5m{{{CLUSTER}}}[$__range:1m])) / 60",
        height=8,
    )


def _to_run() -> Json:
    return to_dashboard("stallscope-run", "Open run", {"run": "${__data.fields.Run}"})


def _to_host() -> Json:
    return to_dashboard("stallscope-host", "Open node", {"instance": "${__data.fields.Node}"})


def _to_gpu() -> Json:
    return to_dashboard(
        "stallscope-gpu", "Open GPU", {"instance": "${__data.fields.Node}", "gpu": "${__data.fields.GPU}"}
    )


def _run_link() -> Override:
    return by_name("Run", links=[_to_run()], custom__minWidth=140)


def _place_links() -> list[Override]:
    """Return the links of the columns `Node` and `GPU`."""
    return [
        by_name("Node", links=[_to_host()], custom__minWidth=140),
        by_name("GPU", links=[_to_gpu()], custom__width=60),
    ]


def _links() -> list[Override]:
    """Return the links of the columns `Node`, `GPU` and `Run`."""
    return [*_place_links(), _run_link()]


def _idle_gpus() -> Panel:
    owner = _of_gpus(
        owners.with_workload(CLUSTER), "namespace", "pod", "slurm_job", "user", owners.WORKLOAD, ranked=RANKED_IDLE
    )
    claim = _of_gpus(f'gpu_rank:pair:info{{{CLUSTER}, run!=""}}', "run", ranked=RANKED_IDLE)
    return table(
        "Held but idle GPUs",
        "Held GPUs that have been idle for longer than the threshold, with their holders.",
        [
            Query(f"max by ({GPU_LABELS}) ({RANKED_IDLE})", table=True),
            Query(f"{economics.PRICE} * max by ({GPU_LABELS}) ({RANKED_IDLE}) / 3600", table=True),
            Query(_one(owner), table=True),
            Query(_one(claim), table=True),
        ],
        columns={
            "instance": "Node",
            "gpu": "GPU",
            "Value #A": "Idle for",
            "Value #B": "Cost so far",
            "user": "User",
            "namespace": "Namespace",
            "pod": "Pod",
            **owners.COLUMNS,
            "slurm_job": "Slurm job",
            "run": "Run",
        },
        height=5,
        sort="Idle for",
        overrides=[
            *_links(),
            *owners.workload_columns(),
            by_name("Idle for", unit="s", custom__width=100),
            economics.money("Cost so far", width=140),
        ],
        no_value="No held GPU is idle.",
    )


def _gpus_over_time() -> Panel:
    return time_series(
        "GPUs known, up, held and busy",
        "The verdicts explain the gap between held and busy. The gap between up and held is free capacity.",
        [
            Query(f"sum(cluster:gpus_known:count{{{CLUSTER}}})", "known", least_step="1m"),
            Query(f"sum(cluster:gpus_up:count{{{CLUSTER}}})", "up", least_step="1m"),
            Query(f"sum(cluster:gpus_held:count{{{CLUSTER}}})", "held", least_step="1m"),
            Query(f"sum(cluster:gpus_busy:sum5m{{{CLUSTER}}})", "busy", least_step="1m"),
        ],
        unit="none",
        overrides=fixed_colours({"known": GREY, "up": BLUE, "held": ORANGE, "busy": GREEN}),
    )


def _not_up() -> Panel:
    return table(
        "GPUs that are down",
        "GPUs that the driver does not report, with the reason. Released, suspended and reconfigured are intentional. "
        "Lost: drain the node and reboot.",
        [
            Query(
                f"topk(100, max by ({GPU_LABELS}, reason) (stallscope_gpu_lost_info{{{CLUSTER}}}))",
                table=True,
            )
        ],
        columns={"instance": "Node", "gpu": "GPU", "mig": "MIG", "uuid": "UUID", "reason": "Reason"},
        width=12,
        sort="Node",
        overrides=_place_links(),
        no_value="No GPU is down.",
    )


def _map_of_gpus() -> Panel:
    worst = f'topk({DRAWN}, gpu:verdict:ratio5m{{{CLUSTER}, cause!~"{NO_LOSS}"}} @ end())'
    shown = f"(gpu:verdict:ratio5m{{{CLUSTER}}} and on ({GPU_LABELS}) {worst})"
    return state_timeline(
        f"Verdicts of the {DRAWN} GPUs with the largest losses now",
        "Verdict of each GPU over time. Rows that change together share a cause, such as a run or a node.",
        [
            Query(
                verdicts.coded(shown, "cluster", "instance", "gpu", "mig"),
                "{{instance}} GPU {{gpu}} {{mig}}",
                least_step="1m",
            )
        ],
        mappings=verdicts.by_code(),
        height=14,
        links=[
            to_dashboard(
                "stallscope-gpu",
                "Open GPU",
                {"instance": "${__field.labels.instance}", "gpu": "${__field.labels.gpu}"},
            )
        ],
    )


def dashboard() -> Dashboard:
    """Compose the dashboard; its first screen reads recorded series only."""
    return Dashboard(
        uid="stallscope-fleet",
        title="Stallscope / Fleet",
        description="GPU-hours and cost lost by cause and owner, and the runs, GPUs and alerts that need attention.",
        variables=(
            variables.datasource(),
            choices.cluster(),
            variables.entry(
                "price_per_gpu_hour",
                "2.50",
                title="price per GPU-hour",
                description="Your cost of one GPU for one hour: a number.",
            ),
            variables.entry(
                "currency",
                "USD",
                title="currency",
                description="Currency of the price and of all costs.",
            ),
            economics.variable(),
            answers.variable(_answer(), "No GPU time is lost."),
        ),
        rows=(
            Row(
                "",
                (
                    answers.panel("What the fleet loses", "The time that is lost now, and its largest cause."),
                    _numbers(),
                    _root_causes(),
                    _lost_over_time(),
                    _alerts_over_time(),
                ),
            ),
            Row("Alerts", (_alerts(),)),
            Row("Runs and GPUs", (_lost_by_cause(), _runs_table(), _not_up(), _idle_gpus())),
            economics.row(),
            serving.row(),
            Row(
                "Utilisation and verdicts over time",
                (_gpus_over_time(), _map_of_gpus()),
                collapsed=True,
            ),
        ),
        since="now-6h",
        refresh="1m",
    )
