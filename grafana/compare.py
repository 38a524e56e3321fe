"""For whoever changes one thing at a time: two to six runs side by side, or two periods of one run.

The studies of batch size, of several GPUs and of the input pipeline are read here: choose the runs, choose one of them
as the base, and take the time so that all of them lie in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana.builders import Json, choices, variables, verdicts
from grafana.builders.annotations import events
from grafana.builders.choices import NAMESPACE, RUN
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import RED, Override, by_name, fixed_colours
from grafana.builders.links import to_dashboard
from grafana.builders.panel import Panel, bar_gauge, table, text, time_series
from grafana.builders.phases import shares
from grafana.builders.query import Query
from stallscope.catalogue.causes import PHASE_COLOURS

LABELS = "cluster, namespace, run"
BASE = f'{NAMESPACE}, run="$base"'
SHIFT = "offset $shift"
_TO_RUN = to_dashboard("stallscope-run", "This run", {"run": "${__field.labels.run}"}, kept=["namespace"])


def _mean(series: str, chosen: str = RUN) -> str:
    """Mean of a recorded figure over the time shown, while the run lived."""
    return f"avg by ({LABELS}) (avg_over_time({series}{{{chosen}}}[$__range]))"


def _base(series: str) -> str:
    """The same for the base, without labels."""
    return f"avg(avg_over_time({series}{{{BASE}}}[$__range]))"


def _to_base(figure: str, of_base: str) -> str:
    """Over the base's; absent where the base has none, or did nothing."""
    return f"{figure} / on () group_left () ({of_base} > 0)"


_GPUS = _mean("run:gpus:count")


def _work_to_base(gpus: str = "", gpus_of_base: str = "") -> str:
    """Samples a second over the base's, or tokens where one of the two doesn't tell samples."""
    return " or ".join(
        _to_base(f"({_mean(work)}{gpus})", f"{_base(work)}{gpus_of_base}")
        for work in ("run:samples:rate5m", "run:tokens:rate5m")
    )


_ENERGY = f"{_mean('run:power:watts5m')} / ({_mean('run:samples:rate5m')} > 0)"
"""Joules a sample; absent for a run that made none."""


def _recorded_each_minute(of: str, over: str) -> str:
    """Mean over the time that a run lived, of something that is not there where it is zero."""
    return (
        f"sum_over_time({of}[$__range:1m]) / on ({LABELS}) group_left () count_over_time({over}{{{RUN}}}[$__range:1m])"
    )


_LOST = _recorded_each_minute(f"run_cause:time_lost:ratio5m{{{RUN}}}", "run:ranks:count")


def _run_column() -> Override:
    return by_name(
        "Run",
        links=[to_dashboard("stallscope-run", "This run", {"run": "${__data.fields.Run}"}, kept=["namespace"])],
        custom__minWidth=150,
    )


def _figures(*columns: tuple[str, str, str, int | None]) -> tuple[list[Query], dict[str, str], list[Override]]:
    """Queries, columns and their looks, from heading, expression, unit and digits of each figure of a run."""
    queries = [Query(expression, table=True) for _heading, expression, _unit, _digits in columns]
    headings = {f"Value #{letter}": column[0] for letter, column in zip("ABCDEFGHIJKLMNOP", columns, strict=False)}
    looks = [
        by_name(heading, unit=unit, **({} if digits is None else {"decimals": digits}))
        for heading, _expression, unit, digits in columns
    ]
    return queries, headings, looks


def _speed() -> Panel:
    queries, headings, looks = _figures(
        ("GPUs", _GPUS, "none", 0),
        ("Batch of all ranks", _mean("run:batch_size:sum"), "none", 0),
        ("Samples/s", _mean("run:samples:rate5m"), "short", 1),
        ("Tokens/s", _mean("run:tokens:rate5m"), "short", 1),
        ("Times the base", _work_to_base(), "none", 2),
        (
            "Per GPU, of the base",
            _work_to_base(f" / {_GPUS}", f" / {_base('run:gpus:count')}"),
            "percentunit",
            1,
        ),
        ("Step time", _mean("run:step:seconds5m"), "s", None),
        ("GPU busy", _mean("run:gpu_busy:ratio5m"), "percentunit", 0),
        ("Memory busy", _mean("run:gpu_memory_busy:ratio5m"), "percentunit", 0),
        ("Memory in use", _mean("run:gpu_memory_used:ratio"), "percentunit", 0),
    )
    return table(
        "How fast, and how well the GPUs are used",
        "Means over the time shown, while each run lived. A larger batch that pays has a higher rate than the base; "
        "more GPUs that pay keep their rate per GPU near 100 % of the base's.",
        queries,
        columns={"run": "Run", "namespace": "Namespace", **headings},
        height=7,
        sort="Times the base",
        overrides=[_run_column(), *looks],
        no_value="no run that is chosen has told anything in this time",
    )


def _cost() -> Panel:
    worst = f"topk by ({LABELS}) (1, {_LOST})"
    queries, headings, looks = _figures(
        ("Lost to it", verdicts.with_remedy(worst), "percentunit", 0),
        ("Lost in all", _mean("run:time_lost:ratio5m"), "percentunit", 0),
        ("Goodput", f"max by ({LABELS}) (last_over_time(run:goodput:ratio1h{{{RUN}}}[$__range]))", "percentunit", 0),
        ("MFU", _mean("run:mfu:ratio5m"), "percentunit", 1),
        ("Scaling efficiency", _mean("run:scaling_efficiency:ratio5m"), "percentunit", 0),
        ("Power", _mean("run:power:watts5m"), "watt", 0),
        ("Energy a sample", _ENERGY, "joule", None),
    )
    return table(
        "What it costs, and what costs most",
        "Means over the time shown, while each run lived; the cause that cost most in it, and what to change first. "
        "Scaling efficiency needs the value single_gpu_samples_per_second, and MFU the model's operations.",
        queries,
        columns={
            "run": "Run",
            "namespace": "Namespace",
            "cause": "Verdict",
            "remedy": "What to change",
            **headings,
        },
        height=7,
        sort="Lost in all",
        overrides=[_run_column(), *verdicts.columns(), *looks],
        no_value="no run that is chosen has told anything in this time",
    )


def _curve(
    title: str, description: str, series: str, unit: str, *, maximum: float | None = None, width: int = 8
) -> Panel:
    return time_series(
        title,
        description,
        [Query(f"avg by ({LABELS}) ({series}{{{RUN}}})", "{{run}}")],
        unit=unit,
        maximum=maximum,
        width=width,
        links=[_TO_RUN],
    )


def _curves() -> Sequence[Panel]:
    return (
        _curve(
            "Samples a second",
            "Of all ranks of each run together. A curve that sags has a run whose input, clocks or peers slow it.",
            "run:samples:rate5m",
            "short",
        ),
        _curve(
            "Tokens a second",
            "Of all ranks of each run together, where tokens are told. Read it as the samples.",
            "run:tokens:rate5m",
            "short",
        ),
        _curve(
            "Step time",
            "Mean over five minutes and the ranks. Compare only with the batch size in mind.",
            "run:step:seconds5m",
            "s",
        ),
        _curve(
            "GPU busy",
            "Share of time with a kernel resident, mean of each run's GPUs. High alone does not mean well used: "
            "compare the samples a second.",
            "run:gpu_busy:ratio5m",
            "percentunit",
            maximum=1,
        ),
        _curve(
            "GPU memory busy",
            "Share of time in which device memory was read or written, mean of each run's GPUs. It falls when a "
            "larger batch does more arithmetic on what it reads.",
            "run:gpu_memory_busy:ratio5m",
            "percentunit",
            maximum=1,
        ),
        _curve(
            "GPU memory in use",
            "Share of device memory that is held, mean of each run's GPUs. Room left over is room for a larger "
            "batch, unless the framework takes all of it beforehand.",
            "run:gpu_memory_used:ratio",
            "percentunit",
            maximum=1,
        ),
    )


def _bars(title: str, description: str, expression: str, unit: str, decimals: int | None = None) -> Panel:
    return bar_gauge(
        title,
        description,
        [Query(expression, "{{run}}", instant=True)],
        unit=unit,
        decimals=decimals,
        height=6,
        colour={"mode": "palette-classic"},
        links=[_TO_RUN],
    )


def _phases() -> Panel:
    return time_series(
        "Phases of $run",
        "What the loop's time goes into, as shares. The run whose data wait or communication is broader has its loss "
        "there.",
        [Query(shares(f"run_phase:time:rate5m{{{RUN}}}"), "{{phase}}")],
        unit="percentunit",
        width=8,
        stacked="percent",
        maximum=1,
        overrides=fixed_colours(PHASE_COLOURS),
        repeat="run",
    )


def _lost_by_cause() -> Panel:
    return time_series(
        "Time lost by $run, by cause",
        "Share of the run's GPU time that each cause costs. Attend to the broadest band first.",
        [Query(f"max by (cause) (run_cause:time_lost:ratio5m{{{RUN}}})", "{{cause}}")],
        unit="percentunit",
        width=8,
        stacked="normal",
        overrides=verdicts.cause_colours(),
        repeat="run",
    )


def _then_and_now(title: str, description: str, series: str, unit: str, maximum: float | None = None) -> Panel:
    return time_series(
        title,
        description,
        [
            Query(f"avg by ({LABELS}) ({series}{{{RUN}}})", "{{run}}"),
            Query(f"avg by ({LABELS}) ({series}{{{RUN}}} {SHIFT})", "{{run}}, $shift before"),
        ],
        unit=unit,
        maximum=maximum,
        links=[_TO_RUN],
        overrides=[
            Override(
                ("byFrameRefID", "B"),
                {"custom.lineStyle": {"fill": "dash", "dash": [8, 8]}},
            )
        ],
    )


def _periods() -> Sequence[Panel]:
    return (
        _then_and_now(
            "Samples a second, now and $shift before",
            "The dashed curve is the earlier period, drawn over the later one; set how much earlier above. So a run "
            "before and after a change is compared, or runs that followed each other.",
            "run:samples:rate5m",
            "short",
        ),
        _then_and_now(
            "Step time, now and $shift before",
            "Dashed: the earlier period. Steps that have become slower at the same batch size are a change to look "
            "for.",
            "run:step:seconds5m",
            "s",
        ),
        _then_and_now(
            "GPU busy, now and $shift before",
            "Dashed: the earlier period. If it has not risen after a change of the input, the input was "
            "not what it waits for.",
            "run:gpu_busy:ratio5m",
            "percentunit",
            1,
        ),
        _then_and_now(
            "Time lost, now and $shift before",
            "Dashed: the earlier period. If the loss has not fallen after a change, the change did not reach its "
            "cause.",
            "run:time_lost:ratio5m",
            "percentunit",
            1,
        ),
        _lost_of_periods("Lost in the time shown", ""),
        _lost_of_periods("Lost $shift before", f" {SHIFT}"),
    )


def _lost_of_periods(title: str, shift: str) -> Panel:
    lost = (
        f"sum_over_time(run_cause:time_lost:ratio5m{{{RUN}}}[$__range:1m]{shift}) / on ({LABELS}) group_left () "
        f"count_over_time(run:ranks:count{{{RUN}}}[$__range:1m]{shift})"
    )
    return table(
        title,
        "Mean share of the GPU time that each cause cost in that period, while the run lived. What has left the list "
        "between the periods is mended.",
        [Query(f"topk(20, {lost})", table=True)],
        columns={"run": "Run", "cause": "Verdict", "Value": "Lost to it"},
        width=12,
        sort="Lost to it",
        overrides=[
            _run_column(),
            verdicts.title_column("Verdict"),
            by_name("Lost to it", unit="percentunit", decimals=1),
        ],
        no_value="no loss is recorded in this period",
    )


def _how() -> Panel:
    return text(
        "How to compare",
        "What to choose above.",
        "Choose two to six **runs**, the **base** among them that the others are measured by, and a time in which all "
        "of them lie. Change one thing between runs: the batch size, the GPUs, the data.",
        height=2,
    )


def _base_choice() -> Json:
    return variables.labels_of(
        "base",
        "run",
        f"stallscope_training_rank_info{{{RUN}}}",
        title="base",
        description="The run, among those chosen, that the others are measured by.",
        multi=False,
        everything=False,
    )


def dashboard() -> Dashboard:
    """Compose the dashboard."""
    samples = _mean("run:samples:rate5m")
    return Dashboard(
        uid="stallscope-compare",
        title="Stallscope / Compare",
        description="Two to six runs side by side, or two periods of one run: speed, use of GPUs, losses and energy.",
        variables=(
            variables.datasource(),
            choices.cluster(),
            choices.namespace(),
            choices.run(everything=False),
            _base_choice(),
            variables.choice(
                "shift",
                ("1h", "15m", "30m", "3h", "6h", "12h", "1d", "2d", "7d"),
                title="earlier by",
                description="How much earlier the period lies that the time shown is compared with.",
            ),
        ),
        rows=(
            Row(
                "",
                (
                    _how(),
                    _speed(),
                    _cost(),
                    _bars(
                        "Samples a second, mean",
                        "Of all ranks together, mean over the time shown while each run lived.",
                        samples,
                        "short",
                        1,
                    ),
                    _bars(
                        "Samples a second and GPU, mean",
                        "The same for each GPU. It falls where more GPUs do not pay.",
                        f"{samples} / {_GPUS}",
                        "short",
                        1,
                    ),
                    _bars(
                        "Energy a sample, mean",
                        "Power of the run's GPUs over its samples a second. It falls with everything that lets them "
                        "wait less.",
                        _ENERGY,
                        "joule",
                    ),
                ),
            ),
            Row("Curves", tuple(_curves())),
            Row("What each run's time goes into", (_phases(), _lost_by_cause())),
            Row("Two periods", tuple(_periods()), collapsed=True),
        ),
        annotations=(
            events(
                "Alerts",
                f'ALERTS{{alertstate="firing", cause!="", {RUN}}}',
                title="{{alertname}}",
                text="{{run}} {{rank}}",
                colour=RED,
                labels="cause,severity",
            ),
        ),
        since="now-6h",
    )
