"""Dashboard for operators: losses of the fleet by cause, run and GPU, and the remedies."""

from __future__ import annotations

from grafana.builders import Json, choices, variables, verdicts
from grafana.builders.annotations import events
from grafana.builders.choices import CLUSTER
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import BLUE, GREEN, GREY, ORANGE, RED, Override, Text, by_name, fixed_colours, texts
from grafana.builders.links import runbook, to_dashboard
from grafana.builders.panel import Panel, stat, state_timeline, status_history, table, time_series
from grafana.builders.query import Query
from stallscope.catalogue.causes import CAUSES

RUN_LABELS = "cluster, namespace, run"
GPU_LABELS = "cluster, job, instance, gpu, uuid, mig"
LISTED = 20
"""Rows of a ranking table."""
DRAWN = 40
"""Rows of a map."""

PRICE = "$price_per_gpu_hour"
NOTHING_LOST = f"0 * sum(cluster:gpus_known:count{{{CLUSTER}}})"
"""Zero if GPUs are known; otherwise losses are unknown too."""
LOST = f"(sum(cause:gpus_lost:sum5m{{{CLUSTER}}}) or {NOTHING_LOST})"
"""Time that is being lost, in GPUs."""
FIRING = f'ALERTS{{alertstate="firing", cause!="", cause!="watchdog", {CLUSTER}}}'
"""Firing alerts of the bundle: only they have a cause."""
NO_LOSS = verdicts.WITHOUT_RUNBOOK
"""Verdicts that need no action."""
HARDWARE = [cause.name for cause in CAUSES.values() if cause.domain == "hardware" and cause.tier]

RANKED_RUNS = f"""
topk({LISTED},
    (
        run:time_lost:ratio5m{{{CLUSTER}}}
      or
        0 * max by ({RUN_LABELS}) (run:verdict:ratio5m{{{CLUSTER}}})
    )
  *
    (run:gpus:count{{{CLUSTER}}} or 0 * run:ranks:count{{{CLUSTER}}})
)"""
"""The runs with the largest losses, in GPUs."""
RANKED_GPUS = f'topk({LISTED}, gpu:verdict:ratio5m{{{CLUSTER}, cause!~"{NO_LOSS}"}})'
RANKED_IDLE = f"topk({LISTED}, gpu:idle_allocated:seconds{{{CLUSTER}}})"


def _of_runs(series: str, *further: str) -> str:
    """Return a value of the ranked runs with few labels, so that tables can join on them."""
    return f"max by ({', '.join((RUN_LABELS, *further))}) ({series} and on ({RUN_LABELS}) {RANKED_RUNS})"


def _of_gpus(series: str, *further: str, ranked: str = RANKED_GPUS) -> str:
    """Return a value of the ranked GPUs with few labels."""
    return f"max by ({', '.join((GPU_LABELS, *further))}) ({series} and on ({GPU_LABELS}) {ranked})"


def _one(expression: str) -> str:
    """Return one series per GPU, because a table has no room for a second owner or run."""
    return f"topk by ({GPU_LABELS}) (1, {expression})"


def _gpus() -> Panel:
    return stat(
        "GPUs",
        "GPUs known to the exporters, and how many of them are up. The reasons for the others are listed below.",
        [
            Query(f"sum(cluster:gpus_known:count{{{CLUSTER}}})", "known", instant=True),
            Query(f"sum(cluster:gpus_up:count{{{CLUSTER}}})", "up", instant=True),
        ],
        unit="none",
        width=3,
        text_of="value_and_name",
    )


def _use() -> Panel:
    return stat(
        "GPUs in use",
        "GPUs held by a process, an owner or a run, and the equivalent number of fully busy GPUs. If far more are held "
        "than busy, see the runs and the idle GPUs below.",
        [
            Query(f"sum(cluster:gpus_held:count{{{CLUSTER}}})", "held", instant=True),
            Query(f"sum(cluster:gpus_busy:sum5m{{{CLUSTER}}})", "busy", instant=True),
        ],
        unit="none",
        decimals=0,
        width=3,
        text_of="value_and_name",
    )


def _hours_lost() -> Panel:
    return stat(
        "GPU-hours lost per day",
        "Loss per day over all causes, at the rate of the last five minutes. A GPU loses at most its own time, a MIG "
        "instance at most its share of it. The causes are below.",
        [Query(f"24 * {LOST}", instant=True)],
        unit="short",
        decimals=1,
        width=3,
    )


def _money_lost() -> Panel:
    return stat(
        "Money lost a day, $currency",
        "GPU-hours lost per day times the price above. Set your own price.",
        [Query(f"24 * {PRICE} * {LOST}", instant=True)],
        unit="short",
        decimals=0,
        width=3,
    )


def _share_lost() -> Panel:
    return stat(
        "Lost share of held GPUs",
        "GPU time lost to all causes, relative to the GPU time that is held. Start with the largest cause below.",
        [Query(f"{LOST} / (sum(cluster:gpus_held:count{{{CLUSTER}}}) > 0)", instant=True)],
        unit="percentunit",
        decimals=1,
        width=3,
        no_value="no GPU held",
    )


def _goodput() -> Panel:
    gpus = f"run:gpus:count{{{CLUSTER}}}"
    goodput = f"run:goodput:ratio1h{{{CLUSTER}}}"
    return stat(
        "Goodput",
        "Productive step time relative to wall time in the last hour, mean over the runs weighted by their GPUs. The "
        "remainder is startup, waiting, saving, evaluation and repeated work.",
        [Query(f"sum({goodput} * {gpus}) / sum({gpus} and {goodput})", instant=True)],
        unit="percentunit",
        decimals=1,
        width=3,
    )


def _runs() -> Panel:
    live = f"count(run:ranks:count{{{CLUSTER}}})"
    return stat(
        "Runs",
        "Training runs that are starting or running, and those that lose time to a cause.",
        [
            Query(f"{live} or {NOTHING_LOST}", "live", instant=True),
            Query(
                f'count(run:verdict:ratio5m{{{CLUSTER}, cause!~"{NO_LOSS}"}}) or 0 * {live} or {NOTHING_LOST}',
                "losing time",
                instant=True,
            ),
        ],
        unit="none",
        width=3,
        text_of="value_and_name",
    )


def _alerts_by_severity() -> Panel:
    def count(severity: str) -> Query:
        known = "0 * count(stallscope:cause:code)"  # the rules run, so that no alert means none
        selector = FIRING.replace("}", f', severity="{severity}"}}')
        return Query(f"count({selector}) or {known}", severity, instant=True)

    return stat(
        "Firing alerts",
        "Stallscope alerts that fire now, by severity. They are listed below with their runbooks.",
        [count("critical"), count("warning"), count("info")],
        unit="none",
        width=3,
        text_of="value_and_name",
        mappings=texts({"0": Text("0", GREEN)}),
        overrides=fixed_colours({"critical": RED, "warning": ORANGE, "info": BLUE}),
    )


def _lost_over_time() -> Panel:
    return time_series(
        "GPU time lost, by cause",
        "Number of GPUs whose whole time each cause costs, that is GPU-hours per hour. Fix the largest cause first.",
        [Query(f"sum by (cause) (cause:gpus_lost:sum5m{{{CLUSTER}}})", "{{cause}}", least_step="1m")],
        unit="short",
        width=12,
        height=9,
        stacked=True,
        overrides=verdicts.cause_colours(),
    )


def _lost_by_cause() -> Panel:
    hours = f"sum by (cause) (sum_over_time(cause:gpus_lost:sum5m{{{CLUSTER}}}[$__range:1m])) / 60"
    return table(
        "GPU-hours lost in the time range, by cause",
        "Cost of each cause over the selected time range, and its remedy.",
        [
            Query(verdicts.with_remedy(f"({hours})"), table=True),
            Query(f"{PRICE} * {hours}", table=True),
        ],
        columns={
            "cause": "Verdict",
            "Value #A": "GPU-hours",
            "Value #B": "Money",
            "remedy": "What to change",
        },
        width=12,
        height=9,
        sort="GPU-hours",
        overrides=[
            *verdicts.columns(),
            by_name("GPU-hours", decimals=1, custom__width=100),
            by_name("Money", decimals=0, custom__width=120),
        ],
        no_value="No loss is recorded in this time range.",
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


def _worst_runs() -> Panel:
    verdict = _of_runs(f"run:verdict:ratio5m{{{CLUSTER}}}", "cause")
    return table(
        "Runs with the largest losses",
        "Active runs by lost GPU time, with the costliest cause, its remedy, and the rank, GPU, node and root cause if "
        "one rank is the culprit. Click a run for its evidence. Runs without a verdict yet are listed last.",
        [
            Query(verdicts.with_root_remedy(verdicts.with_culprit(verdict, CLUSTER)), table=True),
            Query(_of_runs(f"run:time_lost:ratio5m{{{CLUSTER}}}"), table=True),
            Query(_of_runs(f"run:gpus:count{{{CLUSTER}}}"), table=True),
            Query(f"24 * {RANKED_RUNS}", table=True),
            Query(f"24 * {PRICE} * {RANKED_RUNS}", table=True),
            Query(_of_runs(f"run:goodput:ratio1h{{{CLUSTER}}}"), table=True),
            Query(_of_runs(f"run:job_class:info{{{CLUSTER}}}", "user"), table=True),
        ],
        columns={
            "run": "Run",
            "namespace": "Namespace",
            "user": "User",
            "cause": "Verdict",
            "Value #A": "Lost to cause",
            "culprit": "Culprit",
            "remedy": "What to change",
            "Value #B": "Lost in total",
            "Value #C": "GPUs",
            "Value #D": "GPU-hours lost per day",
            "Value #E": "Money lost a day",
            "Value #F": "Goodput",
        },
        height=9,
        sort="GPU-hours lost per day",
        overrides=[
            _run_link(),
            *verdicts.columns(),
            verdicts.culprit_column(),
            by_name("Lost to cause", unit="percentunit", decimals=0, custom__width=90),
            by_name("Lost in total", unit="percentunit", decimals=0, custom__width=90),
            by_name("GPUs", unit="none", custom__width=60),
            by_name("GPU-hours lost per day", decimals=1, custom__width=150),
            by_name("Money lost a day", decimals=0, custom__width=150),
            by_name("Goodput", unit="percentunit", decimals=0, custom__width=80),
        ],
        no_value="No active runs.",
    )


def _alerts() -> Panel:
    labels = "alertname, severity, cause, cluster, namespace, run, rank, instance, gpu, uuid, mig"
    since = "ALERTS_FOR_STATE" + FIRING.removeprefix("ALERTS").replace('alertstate="firing", ', "")
    return table(
        "Firing alerts of all runs and nodes",
        "Stallscope alerts, newest first. Click an alert for its runbook, a run or a GPU for its evidence.",
        [
            Query(f"topk(100, max by ({labels}) ({FIRING}))", table=True),
            Query(
                f"1000 * max by ({labels}) ({since} and on ({labels}) {FIRING})",
                table=True,
            ),
        ],
        columns={
            "severity": "Severity",
            "alertname": "Alert",
            "cause": "Cause",
            "Value #B": "Since",
            "run": "Run",
            "rank": "Rank",
            "instance": "Node",
            "gpu": "GPU",
            "namespace": "Namespace",
        },
        sort="Since",
        overrides=[
            by_name(
                "Severity",
                mappings=texts(
                    {
                        "critical": Text("critical", RED),
                        "warning": Text("warning", ORANGE),
                        "info": Text("info", BLUE),
                    }
                ),
                custom__width=90,
                **verdicts.in_colour(),
            ),
            by_name(
                "Alert",
                links=[runbook()],
                custom__minWidth=200,
            ),
            verdicts.title_column("Cause", verdicts.TITLES),
            by_name("Since", unit="dateTimeFromNow", custom__width=130),
            *_links(),
        ],
        no_value="No firing alerts.",
    )


def _worst_gpus() -> Panel:
    claim = f'gpu_rank:pair:info{{{CLUSTER}, run!=""}}'
    return table(
        "GPUs with the largest losses",
        "GPUs whose verdict costs time, with the remedy and the run on them. Click a GPU for its evidence.",
        [
            Query(verdicts.with_remedy(f"max by ({GPU_LABELS}, cause) ({RANKED_GPUS})"), table=True),
            Query(_of_gpus(f"gpu:busy:ratio5m{{{CLUSTER}}}"), table=True),
            Query(_one(_of_gpus(claim, "namespace", "run", "rank")), table=True),
        ],
        columns={
            "instance": "Node",
            "gpu": "GPU",
            "mig": "MIG",
            "cause": "Verdict",
            "Value #A": "Lost to cause",
            "remedy": "What to change",
            "Value #B": "Busy",
            "run": "Run",
            "rank": "Rank",
        },
        height=9,
        sort="Lost to cause",
        overrides=[
            *_links(),
            *verdicts.columns(),
            by_name("MIG", custom__width=60),
            by_name("Lost to cause", unit="percentunit", decimals=0, custom__width=90),
            by_name("Busy", unit="percentunit", decimals=0, custom__width=70),
            by_name("Rank", custom__width=60),
        ],
        no_value="No GPU loses time.",
    )


def _idle_gpus() -> Panel:
    owner = _of_gpus(
        f"stallscope_gpu_owner_info{{{CLUSTER}}}", "namespace", "pod", "slurm_job", "user", ranked=RANKED_IDLE
    )
    claim = _of_gpus(f'gpu_rank:pair:info{{{CLUSTER}, run!=""}}', "run", ranked=RANKED_IDLE)
    return table(
        "Held but idle GPUs",
        "Held GPUs that have been idle for longer than the threshold, with their holders.",
        [
            Query(f"max by ({GPU_LABELS}) ({RANKED_IDLE})", table=True),
            Query(f"{PRICE} * max by ({GPU_LABELS}) ({RANKED_IDLE}) / 3600", table=True),
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
            "slurm_job": "Slurm job",
            "run": "Run",
        },
        height=7,
        sort="Idle for",
        overrides=[
            *_links(),
            by_name("Idle for", unit="s", custom__width=100),
            by_name("Cost so far", decimals=1, custom__width=160),
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


def _gpus_by_verdict() -> Panel:
    return time_series(
        "GPUs by verdict",
        "Each GPU and MIG instance has one verdict. If many lack evidence, add the shim to their training code.",
        [Query(f"sum by (cause) (cause:gpus:count{{{CLUSTER}}})", "{{cause}}", least_step="1m")],
        unit="none",
        stacked=True,
        overrides=verdicts.cause_colours(),
    )


def _runs_by_verdict() -> Panel:
    return time_series(
        "Runs by verdict",
        "Each active run has one verdict. If many runs share a cause, fix it once for all of them.",
        [Query(f"count by (cause) (run:verdict:ratio5m{{{CLUSTER}}})", "{{cause}}", least_step="1m")],
        unit="none",
        stacked=True,
        overrides=verdicts.cause_colours(),
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


def _hardware() -> Panel:
    broken = f'topk(100, gpu:verdict:ratio5m{{{CLUSTER}, cause=~"{"|".join(HARDWARE)}"}})'
    return table(
        "GPUs with a hardware verdict",
        "GPUs slowed by heat, power, a link or an error. Drain such a node before the next run starts there.",
        [Query(verdicts.with_remedy(f"max by ({GPU_LABELS}, cause) ({broken})"), table=True)],
        columns={"instance": "Node", "gpu": "GPU", "cause": "Verdict", "remedy": "What to change"},
        width=12,
        sort="Verdict",
        overrides=[*_place_links(), *verdicts.columns(HARDWARE)],
        no_value="No GPU has a hardware verdict.",
    )


def _map_of_nodes() -> Panel:
    lost = f"sum by (cluster, instance) (card_cause:time_lost:ratio5m{{{CLUSTER}}}"
    return status_history(
        f"The {DRAWN} nodes with the largest losses now",
        "Time lost on each node, in GPUs. If one node of a run loses more than the others, check it first.",
        [
            Query(
                f"{lost}) and on (cluster, instance) topk({DRAWN}, {lost} @ end()))",
                "{{instance}}",
                least_step="5m",
            )
        ],
        unit="short",
        height=12,
        links=[to_dashboard("stallscope-host", "Open node", {"instance": "${__field.labels.instance}"})],
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


def _power_lost() -> Panel:
    return time_series(
        "Power drawn while time was lost, by cause",
        "Power that the GPUs drew while their time was lost. Waiting for data draws little power, spinning in a "
        "collective draws much.",
        [Query(f"sum by (cause) (cause:power_lost:watts5m{{{CLUSTER}}})", "{{cause}}", least_step="1m")],
        unit="watt",
        width=18,
        stacked=True,
        overrides=verdicts.cause_colours(),
    )


def _energy_lost() -> Panel:
    lost = f"sum(sum_over_time(cause:power_lost:watts5m{{{CLUSTER}}}[$__range:1m]))"
    return stat(
        "Energy lost in the time range",
        "Energy that the GPUs used while their time was lost, over the selected time range, without cooling.",
        [Query(f"({lost} or {NOTHING_LOST}) / 60 / 1000", instant=True)],
        unit="kwatth",
        width=6,
        height=8,
    )


def dashboard() -> Dashboard:
    """Compose the dashboard; its first screen reads recorded series only."""
    return Dashboard(
        uid="stallscope-fleet",
        title="Stallscope / Fleet",
        description="GPU-hours and cost lost by cause, and the runs, GPUs and alerts that need attention.",
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
        ),
        rows=(
            Row(
                "",
                (
                    _gpus(),
                    _use(),
                    _hours_lost(),
                    _money_lost(),
                    _share_lost(),
                    _goodput(),
                    _runs(),
                    _alerts_by_severity(),
                    _lost_over_time(),
                    _lost_by_cause(),
                    _worst_runs(),
                ),
            ),
            Row("Alerts", (_alerts(),)),
            Row("GPUs that need attention", (_worst_gpus(), _idle_gpus())),
            Row("GPU health", (_not_up(), _hardware())),
            Row(
                "Utilisation and verdicts over time",
                (_gpus_over_time(), _gpus_by_verdict(), _runs_by_verdict()),
                collapsed=True,
            ),
            Row("Map", (_map_of_nodes(), _map_of_gpus()), collapsed=True),
            Row("Energy", (_power_lost(), _energy_lost()), collapsed=True),
        ),
        annotations=(
            events(
                "Critical alerts",
                FIRING.replace("}", ', severity="critical"}'),
                title="{{alertname}}",
                text="{{run}} {{instance}} {{gpu}}",
                colour=RED,
                labels="cause,severity",
            ),
        ),
        since="now-6h",
        refresh="1m",
    )
