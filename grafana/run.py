"""One training run, for whoever trains: where its GPU time goes, what to change, and what that would gain.

The first screen answers, from recorded series alone. Below it lies the evidence: steps against the GPU's activity,
ranks against each other, hosts, memory.
"""

from __future__ import annotations

from grafana.builders import Json
from grafana.builders.annotations import events
from grafana.builders.choices import HOST, RANK, RUN, cluster, rank, run
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    Override,
    Text,
    absent_as,
    by_name,
    fixed_colours,
    limit_line,
    second_axis,
    texts,
)
from grafana.builders.links import runbook, to_dashboard
from grafana.builders.panel import (
    Panel,
    bar_gauge,
    heat_map,
    stat,
    state_timeline,
    status_history,
    table,
    time_series,
)
from grafana.builders.query import Query, threshold
from grafana.builders.variables import datasource, labels_of
from grafana.builders.verdicts import (
    VERDICTS,
    WITHOUT_RUNBOOK,
    by_code,
    cause_colours,
    coded,
    columns,
    remedy_by_cause,
    runbook_by_cause,
    title_column,
    with_remedy,
)

_RUN_HERE = f'{HOST}, run=~"$run"'
_HERE = f'{_RUN_HERE}, rank=~"$rank"'
"""Ranks as their own nodes tell of them."""
_OF_RUN = "cluster, namespace, run"
_OF_RANK = f"{_OF_RUN}, rank"
_OF_GPU = "cluster, job, instance, gpu, uuid, mig"
_OF_PROCESS = "cluster, job, instance, run, rank"
_FEW = 8
"""Curves that a panel still can be read with."""
_ROWS = 32
"""Ranks in a table or a heat map."""

_SHARE: Json = {"mode": "continuous-GrYlRd"}
_PHASE_COLOURS = {
    "data_wait": "#3274D9",
    "host_copy": "#8AB8FF",
    "forward": "#37872D",
    "backward": "#73BF69",
    "communication": "#E0B400",
    "optimizer": "#96D98D",
    "checkpoint": "#FF780A",
    "evaluation": "#FFB357",
    "logging": "#B07D55",
    "other": "#808080",
}
_MISSING = {
    "reports": "no fresh reports: see whether the process lives, and STALLSCOPE_SOCKET",
    "steps": "too few steps yet: wait",
    "warmup": "the run has only begun: wait",
    "data_wait": 'phase data_wait is not told: wrap the loader, or use phase("data_wait")',
    "gpu_idle": "the rank's GPU tells nothing: see the exporter's health",
}
_TO_RANK = to_dashboard(
    "stallscope-run", "This rank alone", {"run": "${__field.labels.run}", "rank": "${__field.labels.rank}"}
)
_TO_HOST = to_dashboard(
    "stallscope-host", "Host ${__field.labels.instance}", {"instance": "${__field.labels.instance}"}
)
_TO_GPU = to_dashboard(
    "stallscope-gpu",
    "GPU ${__field.labels.gpu} of ${__field.labels.instance}",
    {"instance": "${__field.labels.instance}", "gpu": "${__field.labels.gpu}"},
)
_CELL_TO_RANK = to_dashboard(
    "stallscope-run", "This rank alone", {"run": "${__data.fields.run}", "rank": "${__data.fields.rank}"}
)
_CELL_TO_HOST = to_dashboard("stallscope-host", "Its host", {"instance": "${__data.fields.instance}"})
_CELL_TO_GPU = to_dashboard(
    "stallscope-gpu", "Its GPU", {"instance": "${__data.fields.instance}", "gpu": "${__data.fields.gpu}"}
)
_TO_COMPARE = to_dashboard("stallscope-compare", "Compare with other runs", {"run": "${__field.labels.run}"})


def _of_ranks(expression: str) -> str:
    """What each live rank tells, with the run's namespace."""
    return f"rank:live:info{{{_HERE}}} * on ({_OF_PROCESS}) group_left () max by ({_OF_PROCESS}) ({expression})"


def _of_gpus(expression: str) -> str:
    """What each GPU tells that the ranks claim, under the rank's labels too."""
    return f"rank_gpu:claim:info{{{_HERE}}} * on ({_OF_GPU}) group_left () max by ({_OF_GPU}) ({expression})"


def _of_nodes(expression: str, at: str = "") -> str:
    """What the nodes of the run tell, while it is there."""
    return f"{expression} and on (cluster, job, instance) run_node:known:info{{{_RUN_HERE}}}{at}"


def _few(expression: str, labels: str, number: int = _FEW) -> str:
    """The greatest few at the end of the time shown, over all of it; `@@` stands behind every selector in them."""
    now, at_end = expression.replace("@@", ""), expression.replace("@@", " @ end()")
    return f"({now}) and on ({labels}) topk({number}, max by ({labels}) ({at_end}))"


def _worst(number: int, at: str = "") -> str:
    """The ranks that others wait for; in a run where nobody is waited for, those that lose most."""
    return (
        f"topk by ({_OF_RUN}) ({number}, max by ({_OF_RANK}) (run_rank:straggler_score:ratio5m{{{RANK}}}{at})"
        f" or on ({_OF_RUN}) max by ({_OF_RANK}) (rank:verdict:ratio5m{{{RANK}}}{at}))"
    )


def _among_worst(expression: str, number: int = _ROWS) -> str:
    """An expression by rank, of the worst ranks at the end of the time shown."""
    return f"max by ({_OF_RANK}) ({expression}) and on ({_OF_RANK}) {_worst(number, ' @ end()')}"


# The answer: recorded series only, so that it is there at once however large the run.


def _verdict() -> Panel:
    return stat(
        "Verdict",
        "What costs the run most now, hardware and standstill before all else. What to change stands below; grey means "
        "that evidence is missing, and the table of what is missing says which.",
        [Query(coded(f"run:verdict:ratio5m{{{RUN}}}", "cluster", "namespace", "run"), "{{run}}", instant=True)],
        unit="none",
        mappings=by_code(),
        background=True,
        text_of="auto",
        width=8,
        no_value="no live rank",
        links=[_TO_COMPARE],
    )


def _lost() -> Panel:
    return stat(
        "GPU time lost",
        "Share of the GPUs' time that is lost to all causes together, a mean over the ranks and over five minutes. "
        "If it is high, begin with the first cause in the table.",
        [Query(f"run:time_lost:ratio5m{{{RUN}}}", "{{run}}", instant=True)],
        unit="percentunit",
        decimals=0,
        colour=_SHARE,
        overrides=[Override(("byRegexp", "/.*/"), {"min": 0, "max": 1})],
        text_of="auto",
    )


def _gain() -> Panel:
    return stat(
        "Faster by at most",
        "How many times as fast the run would be if nothing were lost: 1 / (1 - share lost). The table says what each "
        "cause has in it; where no step is made there is no figure.",
        [Query(f"1 / (1 - (run:time_lost:ratio5m{{{RUN}}} < 1))", "{{run}}", instant=True)],
        unit="suffix: times",
        decimals=2,
        text_of="auto",
        no_value="not foreseeable",
    )


def _hours() -> Panel:
    return stat(
        "GPU-hours lost a day",
        "What that share comes to on all GPUs of the run, and so what there is to win. Weigh it against the work that "
        "the change is.",
        [
            Query(
                f"24 * run:time_lost:ratio5m{{{RUN}}} * on ({_OF_RUN}) group_left () run:gpus:count{{{RUN}}}",
                "{{run}}",
                instant=True,
            )
        ],
        unit="short",
        decimals=1,
        text_of="auto",
        no_value="no GPU claimed",
    )


def _goodput() -> Panel:
    return stat(
        "Goodput",
        "Productive step time over wall time, in the last hour: without waits, saves, restarts, and steps done twice. "
        "If it is low while little GPU time is lost, look at saves and restarts.",
        [Query(f"run:goodput:ratio1h{{{RUN}}}", "{{run}}", instant=True)],
        unit="percentunit",
        decimals=0,
        colour={"mode": "continuous-RdYlGr"},
        overrides=[Override(("byRegexp", "/.*/"), {"min": 0, "max": 1})],
        text_of="auto",
        no_value="too new",
    )


def _change() -> Panel:
    verdict = f"run:verdict:ratio5m{{{RUN}}}"
    paged = f'run:verdict:ratio5m{{{RUN}, cause!~"{WITHOUT_RUNBOOK}"}}'
    return table(
        "What to change first",
        "The remedy for the verdict, in one sentence. The runbook says how to confirm it, and how to go about it.",
        [
            Query(with_remedy(f"max by ({_OF_RUN}, cause) ({verdict})"), table=True),
            Query(_with_runbook(f"max by ({_OF_RUN}, cause) ({paged})"), table=True),
        ],
        columns={
            "run": "Run",
            "remedy": "What to change",
            "Value #A": "Lost to it",
            "runbook": "Runbook",
        },
        width=16,
        height=4,
        overrides=[
            by_name(
                "What to change",
                mappings=remedy_by_cause(VERDICTS),
                custom__cellOptions={"type": "auto", "wrapText": True},
                custom__minWidth=260,
            ),
            by_name("Run", custom__width=140),
            by_name("Lost to it", unit="percentunit", decimals=0, custom__width=90),
            _runbook_column(),
        ],
        no_value="No live rank of this run.",
    )


def _with_runbook(expression: str) -> str:
    return f'label_replace({expression}, "runbook", "$1", "cause", "(.*)")'


def _runbook_column() -> Override:
    return by_name("Runbook", mappings=runbook_by_cause(), links=[runbook()], custom__width=210)


def _progress() -> Panel:
    return stat(
        "Progress",
        "Step reached, and its share of the steps planned where the code tells them.",
        [
            Query(f"run:step:max{{{RUN}}}", "step", instant=True),
            Query(f"run:step:max{{{RUN}}} / run:steps_planned:max{{{RUN}}}", "of planned", instant=True),
        ],
        unit="locale",
        decimals=0,
        text_of="value_and_name",
        overrides=[Override(("byFrameRefID", "B"), {"unit": "percentunit", "decimals": 1})],
        no_value="no step yet",
    )


def _time_left() -> Panel:
    return stat(
        "Time left",
        "Time until the planned steps are done, at the pace of the last half hour, saves and evaluations included. "
        "Missing where no number of steps is told, or while no step is made.",
        [Query(f"run:time_left:seconds{{{RUN}}}", "{{run}}", instant=True)],
        unit="s",
        decimals=1,
        text_of="auto",
        no_value="not foreseeable",
    )


def _causes() -> Panel:
    share = f"max by ({_OF_RUN}, cause) (run_cause:time_lost:ratio5m{{{RUN}}} > 0)"
    hours = f"24 * {share} * on ({_OF_RUN}) group_left () run:gpus:count{{{RUN}}}"
    return table(
        "All causes, the costliest first",
        "Every cause that costs the run GPU time now, with its remedy. Causes lie behind one another: mend the first, "
        "then look again.",
        [
            Query(with_remedy(_with_runbook(share)), table=True),
            Query(with_remedy(_with_runbook(f"1 / (1 - ({share} < 1))")), table=True),
            Query(with_remedy(_with_runbook(hours)), table=True),
        ],
        columns={
            "run": "Run",
            "cause": "Verdict",
            "Value #A": "Lost",
            "Value #B": "Faster by",
            "Value #C": "GPU-hours a day",
            "remedy": "What to change",
            "runbook": "Runbook",
        },
        width=16,
        height=7,
        sort="Lost",
        overrides=[
            *columns(),
            by_name("Run", custom__width=140),
            by_name("Lost", unit="percentunit", decimals=1, custom__width=70),
            by_name("Faster by", unit="suffix: times", decimals=2, custom__width=85),
            by_name("GPU-hours a day", decimals=1, custom__width=125),
            _runbook_column(),
        ],
        no_value="Nothing is lost.",
    )


def _alerts() -> Panel:
    labels = "alertname, severity, run, rank, instance, gpu"
    return table(
        "Alerts firing",
        "Alerts on the run and on the nodes and GPUs under it. Click a name for its runbook.",
        [
            Query(
                f'max by ({labels}) (ALERTS{{alertstate="firing", {RUN}}}'
                f' or (ALERTS{{alertstate="firing", {HOST}, run=""}}'
                f" and on (cluster, instance) run_node:known:info{{{_RUN_HERE}}}))",
                table=True,
            )
        ],
        columns={
            "alertname": "Alert",
            "severity": "Severity",
            "run": "Run",
            "rank": "Rank",
            "instance": "Node",
            "gpu": "GPU",
        },
        unit="none",
        width=8,
        height=7,
        overrides=[
            by_name("Alert", links=[runbook()], custom__minWidth=180),
            by_name(
                "Severity",
                mappings=texts(
                    {
                        "critical": Text("critical", RED),
                        "warning": Text("warning", ORANGE),
                        "info": Text("info", BLUE),
                    }
                ),
                custom__cellOptions={"type": "color-text"},
                custom__width=80,
            ),
            by_name("Rank", links=[_CELL_TO_RANK], custom__width=60),
            by_name("Node", links=[_CELL_TO_HOST]),
            by_name("GPU", links=[_CELL_TO_GPU], custom__width=55),
        ],
        no_value="No alert fires.",
    )


def _verdicts() -> Panel:
    return state_timeline(
        "Verdict over time",
        "What cost the run most, at each moment. A gap: no rank lived, or Prometheus did not scrape.",
        [Query(coded(f"run:verdict:ratio5m{{{RUN}}}", "cluster", "namespace", "run"), "{{run}}")],
        mappings=by_code(),
        height=4,
        show_values=True,
        links=[_TO_COMPARE],
    )


def _lost_over_time() -> Panel:
    return time_series(
        "GPU time lost, by cause",
        "Share of the run's GPU time that each cause takes. A cause that comes and goes is worth the moment that it "
        "came: look at the marks of saves, restarts and alerts there.",
        [Query(f"max by (cause) (run_cause:time_lost:ratio5m{{{RUN}}} > 0)", "{{cause}}")],
        unit="percentunit",
        stacked="normal",
        height=7,
        legend=["mean", "lastNotNull"],
        overrides=cause_colours(),
    )


def _missing() -> Panel:
    return table(
        "What is missing",
        "Why ranks can't be judged, and how many. Once it is there a verdict follows within a minute or two.",
        [Query(f"count by (run, missing) (rank:missing:info{{{_HERE}}})", table=True)],
        columns={"missing": "Missing, and what to do", "Value": "Ranks"},
        width=7,
        height=7,
        sort="Ranks",
        overrides=[
            by_name(
                "Missing, and what to do",
                mappings=texts({name: Text(text) for name, text in _MISSING.items()}),
                custom__cellOptions={"type": "auto", "wrapText": True},
            ),
            by_name("Ranks", custom__width=65),
        ],
        no_value="Nothing is missing.",
    )


def _activities() -> Panel:
    return bar_gauge(
        "Ranks by what they do",
        "Live ranks by activity. Some in another activity than the rest are what the rest wait for; fewer than the run "
        "should have means that some are lost.",
        [
            Query(f"sum by (activity) (run_activity:ranks:count{{{RUN}}})", "{{activity}}", instant=True),
            Query(f"sum(run_world:ranks:count{{{RUN}}})", "known in any state", instant=True),
        ],
        unit="locale",
        decimals=0,
        width=5,
        height=7,
        colour={"mode": "fixed", "fixedColor": BLUE},
    )


# Steps against the GPU's activity.


def _activity_against_steps() -> Panel:
    dips = "rate(stallscope_gpu_dip_interval_seconds_{}{{{}}}[$__rate_interval])"
    interval = (
        f"sum by ({_OF_RUN}) ({_of_gpus(dips.format('sum', HOST))})"
        f" / (sum by ({_OF_RUN}) ({_of_gpus(dips.format('count', HOST))}) > 0)"
    )
    sample = _of_gpus(f"stallscope_gpu_utilization_ratio{{{HOST}}}")
    dipping = _of_gpus(f'rate(stallscope_gpu_below_seconds_total{{{HOST}, level="0.1"}}[$__rate_interval] @ end())')
    return time_series(
        "GPU activity against steps",
        "Left: how busy the GPUs are, and the share of time under 10 %, counted at the driver's own rate, so that dips "
        "between two scrapes are seen. Right: how many steps lie between two dips. A steady figure there names the "
        "culprit: look for what the loop does every so many steps. Hover for the step.",
        [
            Query(
                f"avg by (run) ({_of_gpus(f'rate(stallscope_gpu_busy_seconds_total{{{HOST}}}[$__rate_interval])')})",
                "kernel resident",
            ),
            Query(
                "avg by (run) ("
                + _of_gpus(f'rate(stallscope_gpu_below_seconds_total{{{HOST}, level="0.1"}}[$__rate_interval])')
                + ")",
                "under 10 %",
            ),
            Query(
                f"({sample}) and on ({_OF_RANK}) topk by ({_OF_RUN}) (4, max by ({_OF_RANK}) ({dipping}))",
                "sample, rank {{rank}}",
            ),
            Query(f"({interval}) / on ({_OF_RUN}) run:step:seconds5m{{{RUN}}}", "steps between dips"),
            Query(
                f"min by (run) ({_of_gpus(f'gpu:dip_period:steps30m{{{HOST}}}')})",
                "steps between regular dips",
            ),
            Query(f"max by (run) (run:step:max{{{RUN}}})", "step"),
        ],
        unit="percentunit",
        maximum=1,
        width=24,
        height=10,
        legend=["mean", "lastNotNull"],
        overrides=[
            *fixed_colours({"kernel resident": "#37872D", "under 10 %": "#C4162A", "steps between dips": "#3274D9"}),
            by_name("under 10 %", custom__fillOpacity=40),
            Override(("byRegexp", "/^sample/"), {"custom.drawStyle": "points", "custom.pointSize": 4}),
            *(
                by_name(
                    name,
                    unit="none",
                    decimals=0,
                    max=None,
                    custom__axisPlacement="right",
                    custom__axisLabel="steps",
                    custom__drawStyle=style,
                )
                for name, style in (("steps between dips", "points"), ("steps between regular dips", "line"))
            ),
            by_name("steps between regular dips", custom__lineStyle={"fill": "dash", "dash": [8, 8]}),
            # The step's scale would flatten the rest; its place is the tooltip.
            by_name(
                "step",
                unit="locale",
                decimals=0,
                max=None,
                custom__hideFrom={"viz": True, "legend": False, "tooltip": False},
                custom__axisPlacement="hidden",
            ),
        ],
    )


def _comes_back() -> Panel:
    steps = f"avg by (run) (increase(stallscope_training_step_seconds_count{{{_HERE}}}[$__range]))"
    dips = _of_gpus(f"increase(stallscope_gpu_dips_total{{{HOST}}}[$__range])")
    phases = 'phase!~"data_wait|host_copy|forward|backward|communication|optimizer|other|initialization|restore"'
    occurrences = f"increase(stallscope_training_phase_occurrences_total{{{_HERE}, {phases}}}[$__range])"
    return stat(
        "What comes back every so many steps",
        "Steps, over the time shown, for each dip of the GPU, each slow step, and each occurrence of a phase that not "
        "every step has. The phase with the figure of the dips is their cause: do it less often, or beside the loop.",
        [
            Query(f"{steps} / (avg by (run) ({dips}) > 0)", "GPU dip", instant=True),
            Query(
                f"{steps} / (avg by (run) (increase(stallscope_training_slow_steps_total{{{_HERE}}}[$__range])) > 0)",
                "slow step",
                instant=True,
            ),
            Query(
                f"{steps} / on (run) group_right () (max by (run, phase) ({occurrences}) > 0)",
                "{{phase}}",
                instant=True,
            ),
        ],
        unit="locale",
        decimals=0,
        width=12,
        height=5,
        text_of="value_and_name",
        no_value="nothing does",
    )


def _regular_dips() -> Panel:
    steps, seconds = (f"gpu:dip_period:{unit}30m{{{HOST}}}" for unit in ("steps", "seconds"))
    busy = f"gpu:regular_dips:ratio5m{{{HOST}}}"
    labels = "cluster, namespace, run, rank, instance, gpu"
    return table(
        "GPUs that dip at regular intervals",
        "Dips as regular as a clock, by GPU, with what they cost. What the loop does at that interval (logging, "
        "saving, evaluating, reading a loss) is the cause: do it less often, or asynchronously.",
        [
            Query(f"topk({_ROWS}, max by ({labels}) ({_of_gpus(expression)}))", table=True)
            for expression in (steps, seconds, busy)
        ],
        columns={
            "run": "Run",
            "rank": "Rank",
            "instance": "Node",
            "gpu": "GPU",
            "Value #A": "Every … steps",
            "Value #B": "Every … seconds",
            "Value #C": "Time under 10 %",
        },
        width=12,
        height=5,
        sort="Time under 10 %",
        overrides=[
            by_name("Rank", links=[_CELL_TO_RANK]),
            by_name("Node", links=[_CELL_TO_HOST]),
            by_name("GPU", links=[_CELL_TO_GPU]),
            by_name("Every … steps", unit="none", decimals=0),
            by_name("Every … seconds", unit="s", decimals=1),
            by_name("Time under 10 %", unit="percentunit", decimals=1),
        ],
        no_value="No GPU dips regularly.",
    )


def _step_times() -> Panel:
    bucket = f"run:step_seconds_bucket:rate5m{{{RUN}}}"
    return time_series(
        "Step time",
        "Quantiles over all ranks in five minutes, and the mean. A 99th percentile far from the median means slow "
        "steps: compare their number with saves and dips. A mean that creeps up means drift.",
        [
            *(
                Query(f"histogram_quantile({share}, sum by (run, le) ({bucket}))", name)
                for share, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
            ),
            Query(f"max by (run) (run:step:seconds5m{{{RUN}}})", "mean"),
            Query(
                f"max by (run) (rate(stallscope_training_slow_step_excess_seconds_total{{{_HERE}}}[$__rate_interval])"
                f" / (rate(stallscope_training_slow_steps_total{{{_HERE}}}[$__rate_interval]) > 0))",
                "lost by a slow step, mean",
            ),
        ],
        unit="s",
        legend=["mean", "max"],
        overrides=[
            *fixed_colours({"median": "#37872D", "95 %": "#E0B400", "99 %": "#C4162A", "mean": "#3274D9"}),
            by_name("lost by a slow step, mean", custom__drawStyle="points"),
        ],
        links=[_TO_COMPARE],
    )


def _step_heat() -> Panel:
    return heat_map(
        "How step times are spread",
        "Steps a second by length. One band is a steady run; a second band above it is a kind of step that takes "
        "longer, as every so many that save or log.",
        Query(f"sum by (le) (run:step_seconds_bucket:rate5m{{{RUN}}})", "{{le}}", heat_map=True),
        unit="s",
    )


def _phases(title: str, description: str, record: str) -> Panel:
    return time_series(
        title,
        description,
        [Query(f"sum by (run, phase) ({record}{{{RUN}}})", "{{phase}}")],
        unit="percentunit",
        stacked="percent",
        maximum=1,
        legend=["mean", "lastNotNull"],
        overrides=fixed_colours(_PHASE_COLOURS),
        links=[_TO_COMPARE],
    )


# Throughput, and what the training itself tells.


def _samples() -> Panel:
    return time_series(
        "Throughput",
        "Samples and tokens a second, of all ranks. A fall with an unchanged batch size is lost time: see which phase "
        "grew.",
        [
            Query(f"max by (run) (run:samples:rate5m{{{RUN}}})", "samples a second, {{run}}"),
            Query(f"max by (run) (run:tokens:rate5m{{{RUN}}})", "tokens a second, {{run}}"),
        ],
        unit="short",
        width=8,
        overrides=[Override(("byRegexp", "/^tokens/"), {"custom.axisPlacement": "right"})],
        links=[_TO_COMPARE],
    )


def _batch() -> Panel:
    return time_series(
        "Batch size and epoch",
        "Samples in a step of all ranks, and the epoch on the right.",
        [
            Query(f"max by (run) (run:batch_size:sum{{{RUN}}})", "batch, {{run}}"),
            Query(f"max by (run) (stallscope_training_epoch{{{_HERE}}})", "epoch, {{run}}"),
        ],
        unit="short",
        width=8,
        overrides=[Override(("byRegexp", "/^epoch/"), {"custom.axisPlacement": "right", "unit": "none"})],
    )


def _mfu() -> Panel:
    return time_series(
        "Model FLOP/s used",
        "Useful arithmetic over what the GPUs could do in the model's precision. Under the line: check precision, "
        "kernels and parallel layout. Missing where the code tells no FLOPs.",
        [Query(f"max by (run) (run:mfu:ratio5m{{{RUN}}})", "{{run}}"), threshold("mfu_low", "low from here down")],
        unit="percentunit",
        width=8,
        overrides=limit_line("low from here down", colour=ORANGE),
        links=[_TO_COMPARE],
    )


def _learning(title: str, description: str, name: str, *, logarithmic: bool = False) -> Panel:
    series = f"stallscope_training_{name}{{{_HERE}}}"
    return time_series(
        title,
        description,
        [
            Query(f"avg by (run) ({series})", "{{run}}, mean of ranks"),
            Query(f"max by (run) ({series})", "{{run}}, most"),
        ],
        unit="short",
        width=6,
        minimum=None,
        logarithmic=logarithmic,
        show_legend=False,
        links=[_TO_COMPARE],
    )


def _values() -> Panel:
    return time_series(
        "The code's own values",
        "Whatever the training reports by log(name=value), a mean over its ranks.",
        [Query(f"avg by (run, name) (stallscope_training_value{{{_HERE}}})", "{{name}}, {{run}}")],
        unit="short",
        width=6,
        minimum=None,
    )


# Ranks against each other.


def _stragglers() -> Panel:
    def by_rank(expression: str) -> Query:
        return Query(_among_worst(expression), table=True)

    where = f"{_OF_RANK}, instance, gpu"
    step = "rate(stallscope_training_step_seconds_{}{{{}}}[$__rate_interval])"
    return table(
        "Ranks, those first that the others wait for",
        f"The {_ROWS} ranks of each run with the greatest straggler score: the share of the others' step that they "
        "wait for this one. Look along its row for what differs: data, clock, or activity. The straggler itself waits "
        "least.",
        [
            Query(
                f"max by ({where}) (rank_gpu:claim:info{{{_HERE}}} or on ({_OF_RANK}) rank:live:info{{{_HERE}}})"
                f" and on ({_OF_RANK}) {_worst(_ROWS)}",
                table=True,
            ),
            Query(
                f"max by ({_OF_RANK}, cause) (rank:verdict:ratio5m{{{RANK}}}) and on ({_OF_RANK}) {_worst(_ROWS)}",
                table=True,
            ),
            by_rank(f"run_rank:straggler_score:ratio5m{{{RANK}}}"),
            by_rank(_of_ranks(f"{step.format('sum', _HERE)} / ({step.format('count', _HERE)} > 0)")),
            by_rank(f"rank:data_wait:ratio5m{{{_HERE}}}"),
            by_rank(f"run_rank:communication:ratio5m{{{RANK}}}"),
            by_rank(_of_gpus(f"gpu:busy:ratio5m{{{HOST}}}")),
            by_rank(_of_gpus(f"gpu:sm_active:ratio5m{{{HOST}}}")),
            by_rank(_of_gpus(f"gpu:sm_clock:ratio5m{{{HOST}}}")),
        ],
        columns={
            "run": "Run",
            "rank": "Rank",
            "instance": "Node",
            "gpu": "GPU",
            "cause": "Verdict",
            "Value #C": "Straggler score",
            "Value #D": "Step time",
            "Value #E": "Data wait",
            "Value #F": "Communication",
            "Value #G": "GPU busy",
            "Value #H": "SMs active",
            "Value #I": "SM clock",
        },
        unit="percentunit",
        height=10,
        sort="Straggler score",
        overrides=[
            title_column("Verdict"),
            by_name("Rank", unit="none", links=[_CELL_TO_RANK], custom__width=60),
            by_name("Node", links=[_CELL_TO_HOST]),
            by_name("GPU", unit="none", links=[_CELL_TO_GPU], custom__width=55),
            by_name("Step time", unit="s", decimals=3),
            *(
                by_name(
                    name,
                    decimals=1,
                    min=0,
                    max=1,
                    mappings=absent_as("n/a"),
                    color=_SHARE,
                    custom__cellOptions={"type": "color-text"},
                )
                for name in ("Straggler score", "Data wait", "Communication")
            ),
            *(by_name(name, decimals=1, mappings=absent_as("n/a")) for name in ("GPU busy", "SMs active", "SM clock")),
        ],
        no_value="No live rank.",
    )


def _spread(title: str, description: str, expression: str, unit: str, *further: Query) -> Panel:
    by_rank = f"max by ({_OF_RANK}) ({expression})"
    return time_series(
        title,
        description,
        [
            Query(f"max by (run) ({by_rank})", "highest rank"),
            Query(f"quantile by (run) (0.5, {by_rank})", "median"),
            Query(f"min by (run) ({by_rank})", "lowest rank"),
            *further,
        ],
        unit=unit,
        width=8,
        overrides=[
            *fixed_colours({"highest rank": "#C4162A", "median": "#37872D", "lowest rank": "#3274D9"}),
            *limit_line(*(query.legend for query in further), colour=ORANGE),
        ],
    )


def _step_spread() -> Panel:
    step = "rate(stallscope_training_step_seconds_{}{{{}}}[$__rate_interval])"
    return _spread(
        "Step time across ranks",
        "Ranks that train together take equally long: curves that part mean that steps are not in step, or that a rank "
        "is lost.",
        f"{step.format('sum', _HERE)} / ({step.format('count', _HERE)} > 0)",
        "s",
    )


def _scaling() -> Panel:
    return time_series(
        "Scaling efficiency and load",
        "Work of each GPU here over that of one GPU alone, where the code tells single_gpu_samples_per_second; and how "
        "far the GPUs' activity lies apart. Under or over its line: look at communication, or at how work is divided.",
        [
            Query(f"max by (run) (run:scaling_efficiency:ratio5m{{{RUN}}})", "efficiency"),
            Query(f"max by (run) (run:load_spread:ratio5m{{{RUN}}})", "load apart by"),
            threshold("scaling_warning", "efficiency too low"),
            threshold("load_spread", "load too uneven"),
        ],
        unit="percentunit",
        width=12,
        overrides=[
            *fixed_colours({"efficiency": "#37872D", "load apart by": "#E0B400"}),
            *limit_line("efficiency too low", colour="#37872D"),
            *limit_line("load too uneven", colour="#E0B400"),
        ],
        links=[_TO_COMPARE],
    )


def _states() -> Panel:
    return time_series(
        "Ranks by state",
        "Processes that start, run, have ended, or are lost. A lost one holds the others up in their next collective: "
        "restart from the last checkpoint.",
        [Query(f"count by (state) (stallscope_training_state{{{_HERE}}} == 1)", "{{state}}")],
        unit="locale",
        stacked="normal",
        width=12,
        overrides=fixed_colours(
            {"starting": "#3274D9", "running": "#37872D", "finished": GREY, "failed": "#C4162A", "lost": "#FF780A"}
        ),
    )


def _rank_verdicts() -> Panel:
    chosen = f"rank:verdict:ratio5m{{{RANK}}} and on ({_OF_RANK}) {_worst(_ROWS, ' @ end()')}"
    return state_timeline(
        "Verdict of ranks over time",
        f"What cost each rank most, of the {_ROWS} that others wait for most. One that differs is the straggler.",
        [Query(coded(f"({chosen})", "cluster", "namespace", "run", "rank"), "rank {{rank}}")],
        mappings=by_code(),
        height=10,
        links=[_TO_RANK],
    )


def _ranks_over_time(title: str, description: str, expression: str, unit: str, maximum: float | None = None) -> Panel:
    return status_history(
        title,
        description,
        [Query(_among_worst(expression), "{{rank}}", least_step="30s")],
        unit=unit,
        maximum=maximum,
        minimum=None if maximum is None else 0,
        width=12,
        height=10,
        links=[_TO_RANK],
    )


# The hosts that the ranks are on.


def _on_hosts(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "percentunit",
    lines: tuple[tuple[str, str], ...] = (),
    further: tuple[Override, ...] = (),
    by_host: bool = True,
) -> Panel:
    return time_series(
        title,
        description,
        [*queries, *(threshold(name, legend) for name, legend in lines)],
        unit=unit,
        width=8,
        overrides=[*limit_line(*(legend for _name, legend in lines), colour=ORANGE), *further],
        links=[_TO_HOST] if by_host else [],
    )


def _few_hosts(expression: str, legend: str, number: int = 4) -> Query:
    return Query(
        _few(f"max by (cluster, instance) ({_of_nodes(expression, '@@')})", "cluster, instance", number), legend
    )


def _few_ranks(expression: str, legend: str, number: int = 4) -> Query:
    return Query(
        _few(f"max by (cluster, instance, run, rank) ({expression})", "cluster, instance, run, rank", number), legend
    )


def _processors() -> Panel:
    return _on_hosts(
        "Processors, and the busiest of them",
        "All processors of a node together, and its busiest one alone: a busiest one at its limit beside idle others "
        "is one thread that everything waits for. The fullest nodes are shown.",
        _few_hosts(f"host:cpu_busy:ratio5m{{{HOST}}}@@", "all, {{instance}}"),
        _few_hosts(
            f"rate(stallscope_host_busiest_cpu_seconds_total{{{HOST}}}[$__rate_interval]@@)", "busiest, {{instance}}"
        ),
        lines=(("cpu_saturated", "all are in use"), ("single_thread_core", "one thread at its limit")),
    )


def _process() -> Panel:
    return _on_hosts(
        "Processors used, of those allowed",
        "What a rank and its loader use, over its quota or affinity. At 100 % raise the limit, or decode less a "
        "sample. Main thread: the loop itself. The ranks that use most are shown.",
        _few_ranks(
            f"rate(stallscope_training_process_cpu_seconds_total{{{_HERE}}}[$__rate_interval]@@)"
            f" / stallscope_training_cpu_limit_cores{{{_HERE}}}@@",
            "rank {{rank}}",
        ),
        _few_ranks(
            f"rate(stallscope_training_main_thread_cpu_seconds_total{{{_HERE}}}[$__rate_interval]@@)",
            "main thread of {{rank}}",
        ),
        lines=(("cpu_saturated", "all are in use"),),
    )


def _throttled() -> Panel:
    return _on_hosts(
        "Throttled by the processor quota",
        "Share of the quota's periods in which a rank was stopped. Over the line: raise the container's limit, or run "
        "no more workers than it allows.",
        _few_ranks(
            f"rate(stallscope_training_cpu_throttled_periods_total{{{_HERE}}}[$__rate_interval]@@)"
            f" / (rate(stallscope_training_cpu_periods_total{{{_HERE}}}[$__rate_interval]@@) > 0)",
            "rank {{rank}}",
        ),
        lines=(("quota_throttled", "too much"),),
    )


def _workers() -> Panel:
    return _on_hosts(
        "Loader workers",
        "Workers of each rank's loader, and for each processor that a waiting rank has. Few workers and idle "
        "processors: add some. More than one a processor: take some away.",
        Query(f"min by (run) (stallscope_training_dataloader_workers{{{_HERE}}})", "fewest of a rank"),
        Query(f"max by (run) (stallscope_training_dataloader_workers{{{_HERE}}})", "most of a rank"),
        Query(f"max by (run) (rank:workers_of_cpus:ratio{{{_HERE}}})", "a processor, at most"),
        threshold("workers_too_many", "too many a processor"),
        unit="short",
        further=(
            *limit_line("too many a processor", colour=ORANGE),
            *second_axis("a processor, at most", "too many a processor", unit="short"),
        ),
        by_host=False,
    )


def _reads() -> Panel:
    def together(name: str, legend: str) -> Query:
        rates = _of_nodes(f"rate(stallscope_host_{name}{{{HOST}}}[$__rate_interval])")
        return Query(f"sum({rates})", legend)

    return _on_hosts(
        "Where data come from",
        "Bytes a second that all nodes of the run read or receive. While ranks wait for data, the source that is at "
        "its ceiling is what they wait for: stage the data nearer, or read larger pieces.",
        together("disk_read_bytes_total", "disks"),
        together("network_receive_bytes_total", "network"),
        together("nfs_read_bytes_total", "NFS"),
        together("rdma_receive_bytes_total", "RDMA"),
        unit="Bps",
        by_host=False,
    )


def _ceiling() -> Panel:
    return _on_hosts(
        "What the network could feed",
        "While the network is what ranks wait for: samples a second that it could carry at most, beside those that "
        "there are, and bytes that come in for each. To go faster, shrink the sample or cache it.",
        Query(f"max by (run) (run:input_ceiling:rate5m{{{RUN}}})", "samples a second at most"),
        Query(f"max by (run) (run:samples:rate5m{{{RUN}}})", "samples a second now"),
        Query(f"max by (run) (run:input_sample:bytes5m{{{RUN}}})", "bytes for a sample"),
        unit="short",
        further=(
            *second_axis("bytes for a sample", unit="bytes"),
            *limit_line("samples a second at most", colour=ORANGE),
        ),
        by_host=False,
    )


def _pressure() -> Panel:
    return _on_hosts(
        "Waiting for processors, memory, storage",
        "Share of time in which some task of a node waited for it; the worst node. Storage while ranks wait for data: "
        "the disk or mount is the limit.",
        *(
            Query(
                "max("
                + _of_nodes(
                    "rate(stallscope_host_pressure_waiting_seconds_total"
                    f'{{{HOST}, resource="{resource}"}}[$__rate_interval])'
                )
                + ")",
                legend,
            )
            for resource, legend in (("cpu", "processors"), ("memory", "memory"), ("io", "storage"))
        ),
        lines=(("memory_pressure", "too much for memory"), ("disk_pressure", "too much for storage")),
        by_host=False,
    )


def _host_memory() -> Panel:
    return _on_hosts(
        "Memory and shared memory",
        "Used share of each node's memory, and of /dev/shm, through which workers hand over batches. Over its line: "
        "fewer workers or less prefetching, or a larger /dev/shm. The fullest nodes are shown.",
        _few_hosts(f"host:memory_used:ratio{{{HOST}}}@@", "memory, {{instance}}"),
        _few_hosts(f"host:shared_memory_used:ratio{{{HOST}}}@@", "shared memory, {{instance}}"),
        lines=(("host_memory_used", "memory nearly full"), ("shared_memory_used", "shared memory nearly full")),
    )


def _network() -> Panel:
    return _on_hosts(
        "Network against its link",
        "Bytes received over what the fullest interface carries, where far more comes in than goes out. Over the line: "
        "cache on the node, or compress before it travels. The fullest nodes are shown.",
        _few_hosts(f"host:network_data:ratio5m{{{HOST}}}@@", "{{instance}}"),
        lines=(("network_high", "full"),),
    )


# GPU memory, as the framework's allocator tells it.


def _allocator() -> Panel:
    def most(name: str, legend: str) -> Query:
        return Query(f"max by (run) (stallscope_training_allocator_{name}_bytes{{{_HERE}}})", legend)

    return time_series(
        "GPU memory of the fullest rank",
        "What tensors use, what the allocator holds, and the highest use so far, against the GPU's memory. Far under "
        "it: a larger batch fits. Over the dashed line: checkpoint activations, or a smaller micro-batch.",
        [
            most("used", "tensors"),
            most("reserved", "held by the allocator"),
            most("peak", "highest so far"),
            Query(f"min by (run) (rank:gpu_memory:bytes{{{_HERE}}})", "memory of the GPU"),
            Query(
                f'min by (run) (rank:gpu_memory:bytes{{{_HERE}}}) * scalar(stallscope:threshold{{name="memory_near"}})',
                "nearly full",
            ),
        ],
        unit="bytes",
        legend=["max", "lastNotNull"],
        overrides=[*limit_line("memory of the GPU"), *limit_line("nearly full", colour=ORANGE)],
    )


def _allocator_by_rank() -> Panel:
    return _spread(
        "Highest use across ranks",
        "Highest use by tensors over the GPU's memory. Curves that part: balance shards and stages.",
        f"rank:allocator_peak:ratio{{{_HERE}}}",
        "percentunit",
        threshold("memory_near", "nearly full"),
    )


def _failed_allocations() -> Panel:
    def grown(name: str, legend: str) -> Query:
        return Query(f"sum by (run) (increase(stallscope_training_{name}_total{{{_HERE}}}[$__rate_interval]))", legend)

    return time_series(
        "Allocations that failed at first, or for good",
        "A retry empties the allocator's cache and costs time: use expandable segments, and avoid changing shapes. One "
        "that fails for good ends most trainings.",
        [grown("allocator_retries", "retries"), grown("out_of_memory", "out of memory")],
        unit="short",
        bars=True,
        width=8,
        overrides=fixed_colours({"retries": "#E0B400", "out of memory": "#C4162A"}),
    )


def _process_memory() -> Panel:
    return time_series(
        "Host memory of ranks",
        "Resident memory of a rank and its workers. One that grows without end leads to the node's killer of "
        "processes: look for what is kept from step to step. The largest are shown.",
        [_few_ranks(f"stallscope_training_process_memory_bytes{{{_HERE}}}@@", "rank {{rank}}", _FEW)],
        unit="bytes",
        width=8,
        links=[_TO_RANK],
    )


def _work_beside() -> Panel:
    def share(name: str, legend: str) -> Query:
        return Query(f"max by (run) (rate(stallscope_training_{name}{{{_HERE}}}[$__rate_interval]))", legend)

    return time_series(
        "Time beside the model",
        "Seconds a second in Python's garbage collector and in Stallscope's own shim, and graph compilations; of the "
        "rank with most. Compilations that go on mean that shapes change: pad them, or mark them as dynamic.",
        [
            share("garbage_collection_seconds_total", "garbage collection"),
            share("shim_overhead_seconds_total", "Stallscope"),
            Query(
                f"max by (run) (increase(stallscope_training_recompilations_total{{{_HERE}}}[$__rate_interval]))",
                "compilations",
            ),
        ],
        unit="percentunit",
        width=8,
        overrides=second_axis("compilations", unit="short"),
    )


# The GPUs of the chosen ranks, one curve each.


def _gpu_curves(title: str, description: str, expression: str, unit: str) -> Panel:
    labels = "cluster, instance, gpu, run, rank"
    return time_series(
        title,
        description,
        [Query(_few(f"max by ({labels}) ({expression})", labels), "rank {{rank}}, {{instance}} GPU {{gpu}}")],
        unit=unit,
        width=8,
        links=[_TO_GPU],
    )


def _chosen_gpus() -> tuple[Panel, ...]:
    claim = f"rank_gpu:claim:info{{{_HERE}}}@@ * on ({_OF_GPU}) group_left () max by ({_OF_GPU}) "
    return (
        _gpu_curves(
            "GPU busy",
            "Share of time with a kernel resident, of the ranks chosen (the busiest where there are many). Click a "
            "curve for its GPU.",
            claim + f"(rate(stallscope_gpu_busy_seconds_total{{{HOST}}}[$__rate_interval]@@))",
            "percentunit",
        ),
        _gpu_curves(
            "Time under 10 %",
            "Share of time in which utilisation was under 10 %, of the ranks with most of it. What the host did "
            "meanwhile is what the GPU waited for.",
            claim + f'(rate(stallscope_gpu_below_seconds_total{{{HOST}, level="0.1"}}[$__rate_interval]@@))',
            "percentunit",
        ),
        _gpu_curves(
            "SM clock",
            "SM clock over the highest, of the ranks chosen. One under its peers is throttled: its GPU's page says by "
            "what.",
            claim + f"(gpu:sm_clock:ratio5m{{{HOST}}}@@)",
            "percentunit",
        ),
    )


# Events, as marks on every panel with a time axis. Rank 0 stands for the run: it saves, starts and ends with the rest.


def _events() -> tuple[Json, ...]:
    saves = f'stallscope_training_phase_occurrences_total{{{_RUN_HERE}, rank="0", phase="checkpoint"}}[2m]'
    start = f'stallscope_training_start_timestamp_seconds{{{_RUN_HERE}, rank="0"}}'
    on_gpus = f"and on ({_OF_GPU}) rank_gpu:claim:info{{{_HERE}}}"
    verdict = f"run:verdict:ratio5m{{{RUN}}}"
    return (
        events(
            "Checkpoints",
            f"max by (run) (changes({saves}) - resets({saves})) > 0",
            title="Checkpoint of {{run}}",
            colour="#FF780A",
        ),
        events(
            "Starts and restarts",
            f"1000 * max by (run) ({start})",
            title="{{run}} began a session",
            colour="#37872D",
            at_value=True,
        ),
        events(
            "Xids",
            "1000 * max by (instance, gpu, xid, action) ("
            f"gpu:xid_hw:timestamp_seconds{{{HOST}}} {on_gpus} or gpu:xid_app:timestamp_seconds{{{HOST}}} {on_gpus})",
            title="Xid {{xid}} on GPU {{gpu}} of {{instance}}",
            text="{{action}}",
            colour="#C4162A",
            labels="instance,gpu,xid",
            at_value=True,
        ),
        events(
            "Alerts",
            f'max by (alertname, severity, run) (ALERTS{{alertstate="firing", {RUN}}})',
            title="{{alertname}}",
            text="{{severity}}, run {{run}}",
            colour="#E0B400",
            labels="alertname,severity",
        ),
        events(
            "Verdict changes",
            f"max by (run, cause) (({verdict} >= bool 0) unless {verdict} offset 2m)",
            title="{{run}}: {{cause}}",
            colour="#A352CC",
            labels="cause",
            shown=False,
        ),
    )


def dashboard() -> Dashboard:
    """Return the dashboard of a run."""
    return Dashboard(
        uid="stallscope-run",
        title="Stallscope: run",
        description="One training run: where its GPU time goes, what to change, and what that would gain.",
        variables=(
            datasource(),
            cluster(),
            run(everything=False),
            # No value for all: Grafana then lists the run's nodes, and queries of hosts and GPUs read no others.
            labels_of(
                "instance",
                "instance",
                f"stallscope_training_rank_info{{{RUN}}}",
                title="instance",
                description="Nodes of the run, by the address at which Prometheus scrapes their exporter.",
                all_value="",
            ),
            rank(),
        ),
        annotations=_events(),
        rows=(
            Row(
                "",
                (
                    _verdict(),
                    _lost(),
                    _gain(),
                    _hours(),
                    _goodput(),
                    _change(),
                    _progress(),
                    _time_left(),
                    _causes(),
                    _alerts(),
                    _verdicts(),
                    _lost_over_time(),
                    _missing(),
                    _activities(),
                ),
            ),
            Row(
                "Steps and the GPU's activity",
                (
                    _activity_against_steps(),
                    _comes_back(),
                    _regular_dips(),
                    _step_times(),
                    _step_heat(),
                    _phases(
                        "Phases of the step",
                        "Share of the ranks' time in each phase, by the host's clock. What grows is where time goes; "
                        "asynchronous copies and kernels only show where the host waits for them.",
                        "run_phase:time:rate5m",
                    ),
                    _phases(
                        "Phases by the GPU's clock",
                        "The same as the device measures it, where the integration can. A copy that is long here and "
                        "short on the left holds the GPU up unseen.",
                        "run_phase:gpu_time:rate5m",
                    ),
                ),
            ),
            Row(
                "Throughput and learning",
                (
                    _samples(),
                    _batch(),
                    _mfu(),
                    _learning(
                        "Loss",
                        "As the code told it last. A gap may be a loss that is not a number: alerts tell.",
                        "loss",
                    ),
                    _learning("Learning rate", "As the code told it last.", "learning_rate", logarithmic=True),
                    _learning(
                        "Gradient norm",
                        "As the code told it last. A peak before the loss jumps: clip gradients, or lower the learning "
                        "rate.",
                        "gradient_norm",
                        logarithmic=True,
                    ),
                    _values(),
                ),
            ),
            Row(
                "Ranks compared",
                (
                    _stragglers(),
                    _step_spread(),
                    _spread(
                        "Waiting for data across ranks",
                        "Share of the loop in which ranks wait for data. One far over the others holds all of them up.",
                        f"rank:data_wait:ratio5m{{{_HERE}}}",
                        "percentunit",
                        threshold("input_notice", "worth a look"),
                    ),
                    _spread(
                        "Communication across ranks",
                        "Share of the loop in collectives, waiting for other ranks included. The lowest is whom the "
                        "others wait for; all of them high: the network, or too little work between collectives.",
                        f"run_rank:communication:ratio5m{{{RANK}}}",
                        "percentunit",
                        threshold("comm_warning", "too much"),
                    ),
                    _scaling(),
                    _states(),
                ),
            ),
            Row(
                "Ranks over time",
                (
                    _rank_verdicts(),
                    _ranks_over_time(
                        "Step time, rank by rank",
                        f"Mean step time of the {_ROWS} ranks that the others wait for most. A darker row is slower.",
                        _of_ranks(
                            f"rate(stallscope_training_step_seconds_sum{{{_HERE}}}[$__rate_interval])"
                            f" / (rate(stallscope_training_step_seconds_count{{{_HERE}}}[$__rate_interval]) > 0)"
                        ),
                        "s",
                    ),
                    _ranks_over_time(
                        "Communication, rank by rank",
                        "Share of the loop in collectives: the straggler is the row that stays pale while others are "
                        "dark, for they wait for it.",
                        f"run_rank:communication:ratio5m{{{RANK}}}",
                        "percentunit",
                        1,
                    ),
                    _ranks_over_time(
                        "Waiting for data, rank by rank",
                        "Share of the loop in waiting for data. One dark row: that rank's shard or host is slow.",
                        f"rank:data_wait:ratio5m{{{_HERE}}}",
                        "percentunit",
                        1,
                    ),
                    _ranks_over_time(
                        "GPU busy, rank by rank",
                        "Share of time with a kernel resident. Pale rows idle.",
                        _of_gpus(f"gpu:busy:ratio5m{{{HOST}}}"),
                        "percentunit",
                        1,
                    ),
                ),
                collapsed=True,
            ),
            Row("GPUs of the chosen ranks", _chosen_gpus(), collapsed=True),
            Row(
                "Input and hosts",
                (
                    _processors(),
                    _process(),
                    _throttled(),
                    _workers(),
                    _reads(),
                    _ceiling(),
                    _pressure(),
                    _host_memory(),
                    _network(),
                ),
                collapsed=True,
            ),
            Row(
                "Memory, and time beside the model",
                (_allocator(), _allocator_by_rank(), _failed_allocations(), _process_memory(), _work_beside()),
                collapsed=True,
            ),
        ),
    )
