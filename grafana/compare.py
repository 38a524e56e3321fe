"""Dashboard for controlled experiments: two to six runs side by side, or two periods of one run.

Use it for studies of batch size, of several GPUs and of the input pipeline: select the runs, one of them as the base,
and a time range that contains all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana.builders import Json, choices, variables, verdicts
from grafana.builders.bands import OTHER_COLOUR, bands
from grafana.builders.choices import NAMESPACE, RUN
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import Override, by_name, fixed_colours
from grafana.builders.links import to_dashboard
from grafana.builders.panel import Panel, table, text, time_series
from grafana.builders.phases import shares
from grafana.builders.query import Query
from stallscope.model.catalogue.causes import PHASE_COLOURS

LABELS = "cluster, namespace, run"
BASE = f'{NAMESPACE}, run="$base"'
SHIFT = "offset $shift"
_TO_RUN = to_dashboard("stallscope-run", "Open run", {"run": "${__field.labels.run}"}, kept=["namespace"])


def _mean(series: str, chosen: str = RUN) -> str:
    """Return the mean of a recorded series over the time range, while the run was active."""
    return f"avg by ({LABELS}) (avg_over_time({series}{{{chosen}}}[$__range]))"


def _base(series: str) -> str:
    """Return the mean for the base run, without labels."""
    return f"avg(avg_over_time({series}{{{BASE}}}[$__range]))"


def _to_base(figure: str, of_base: str) -> str:
    """Return a value relative to the base; absent if the base has no value or zero."""
    return f"{figure} / on () group_left () ({of_base} > 0)"


_GPUS = _mean("run:gpus:count")


def _work_to_base(gpus: str = "", gpus_of_base: str = "") -> str:
    """Return samples per second relative to the base, or tokens if one of the two runs does not report samples."""
    return " or ".join(
        _to_base(f"({_mean(work)}{gpus})", f"{_base(work)}{gpus_of_base}")
        for work in ("run:samples:rate5m", "run:tokens:rate5m")
    )


_SORTED = "Times base"
_ENERGY = f"{_mean('run:power:watts5m')} / ({_mean('run:samples:rate5m')} > 0)"
"""Joules per sample; absent for a run without samples."""


def _recorded_each_minute(of: str, over: str) -> str:
    """Return the mean over the time that a run was active, of a series that is absent when it is zero."""
    return (
        f"sum_over_time({of}[$__range:1m]) / on ({LABELS}) group_left () count_over_time({over}{{{RUN}}}[$__range:1m])"
    )


_LOST = _recorded_each_minute(f"run_cause:time_lost:ratio5m{{{RUN}}}", "run:ranks:count")


def _run_column() -> Override:
    return by_name(
        "Run",
        links=[to_dashboard("stallscope-run", "Open run", {"run": "${__data.fields.Run}"}, kept=["namespace"])],
        custom__width=130,
    )


def _figures(*columns: tuple[str, str, str, int | None]) -> tuple[list[Query], dict[str, str], list[Override]]:
    """Return queries, columns and overrides from heading, expression, unit and decimals of each value of a run."""
    queries = [Query(expression, table=True) for _heading, expression, _unit, _digits in columns]
    headings = {f"Value #{letter}": column[0] for letter, column in zip("ABCDEFGHIJKLMNOP", columns, strict=False)}
    looks = [
        by_name(
            heading,
            unit=unit,
            custom__width=120 if heading == _SORTED else 95,  # with room for the arrow
            **({} if digits is None else {"decimals": digits}),
        )
        for heading, _expression, unit, digits in columns
    ]
    return queries, headings, looks


def _speed() -> Panel:
    queries, headings, looks = _figures(
        ("GPUs", _GPUS, "none", 0),
        ("Batch size", _mean("run:batch_size:sum"), "none", 0),
        ("Samples/s", _mean("run:samples:rate5m"), "short", 1),
        ("Tokens/s", _mean("run:tokens:rate5m"), "short", 1),
        (_SORTED, _work_to_base(), "none", 2),
        (
            "Per GPU",
            _work_to_base(f" / {_GPUS}", f" / {_base('run:gpus:count')}"),
            "percentunit",
            1,
        ),
        ("Step time", _mean("run:step:seconds5m"), "s", None),
        ("GPU busy", _mean("run:gpu_busy:ratio5m"), "percentunit", 0),
        ("MFU", _mean("run:mfu:ratio5m"), "percentunit", 1),
    )
    return table(
        "Speed and GPU utilisation",
        "Means over the time range, while each run was active. If a larger batch helps, its rate is higher than the "
        "base. If more GPUs help, the rate per GPU stays near 100 % of the base. MFU "
        "needs the model FLOPs.",
        queries,
        columns={"run": "Run", **headings},
        height=6,
        sort=_SORTED,
        overrides=[_run_column(), *looks],
        no_value="No selected run has data in this time range.",
    )


def _cost() -> Panel:
    worst = f"topk by ({LABELS}) (1, {_LOST})"
    queries, headings, looks = _figures(
        ("To cause", verdicts.with_remedy(worst), "percentunit", 0),
        ("Lost", _mean("run:time_lost:ratio5m"), "percentunit", 0),
        ("Energy", _ENERGY, "joule", None),
    )
    return table(
        "Losses and energy",
        "Means over the time range, while each run was active, with the costliest cause and its remedy: time lost to "
        "this cause and to all causes, and energy for each sample.",
        queries,
        columns={
            "run": "Run",
            "cause": "Verdict",
            **headings,
            "remedy": "What to change",
        },
        height=6,
        sort="Lost",
        overrides=[_run_column(), *verdicts.columns(), *looks],
        no_value="No selected run has data in this time range.",
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
            "Samples per second",
            "All ranks of each run together. A falling line points to the input, clocks or a straggler.",
            "run:samples:rate5m",
            "short",
        ),
        _curve(
            "Step time",
            "Mean over five minutes and all ranks. Compare only runs with the same batch size.",
            "run:step:seconds5m",
            "s",
        ),
        _curve(
            "GPU busy",
            "Share of time with a kernel resident, mean of each run's GPUs. A high value alone does not prove good "
            "use: compare samples per second.",
            "run:gpu_busy:ratio5m",
            "percentunit",
            maximum=1,
        ),
    )


def _phases() -> Panel:
    return time_series(
        "Phases of $run",
        "Share of the loop's time in each phase. If data wait or communication is larger than in other runs, the loss "
        "is there.",
        bands(shares(f"run_phase:time:rate5m{{{RUN}}}"), "phase"),
        unit="percentunit",
        width=8,
        stacked=True,
        overrides=fixed_colours(PHASE_COLOURS | OTHER_COLOUR),
        repeat="run",
    )


def _lost_by_cause() -> Panel:
    return time_series(
        "Time lost by $run, by cause",
        "Share of the run's GPU time that each cause costs. Fix the largest cause first.",
        bands(f"max by (cause) (run_cause:time_lost:ratio5m{{{RUN}}} > 0)", "cause"),
        unit="percentunit",
        width=8,
        stacked=True,
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
            "Dashed: the earlier period, set by the variable above. Use this to compare a run before and after a "
            "change, or two consecutive runs.",
            "run:samples:rate5m",
            "short",
        ),
        _then_and_now(
            "Time lost, now and $shift before",
            "Dashed: the earlier period. If the loss did not fall after a change, the change did not address its "
            "cause.",
            "run:time_lost:ratio5m",
            "percentunit",
            1,
        ),
        _lost_of_periods("Lost in this period", ""),
        _lost_of_periods("Lost $shift before", f" {SHIFT}"),
    )


def _lost_of_periods(title: str, shift: str) -> Panel:
    lost = (
        f"sum_over_time(run_cause:time_lost:ratio5m{{{RUN}}}[$__range:1m]{shift}) / on ({LABELS}) group_left () "
        f"count_over_time(run:ranks:count{{{RUN}}}[$__range:1m]{shift})"
    )
    return table(
        title,
        "Mean share of GPU time that each cause cost in this period, while the run was active. A cause that is missing "
        "in the later period is fixed.",
        [Query(f"topk(20, {lost})", table=True)],
        columns={"run": "Run", "cause": "Verdict", "Value": "Lost to cause"},
        width=12,
        sort="Lost to cause",
        overrides=[
            _run_column(),
            verdicts.title_column("Verdict"),
            by_name("Lost to cause", unit="percentunit", decimals=1),
        ],
        no_value="No loss is recorded in this period.",
    )


def _how() -> Panel:
    return text(
        "How to compare",
        "How to use the variables above.",
        "Choose two to six **runs**, one of them as the **base** to compare the others with, and a time range that "
        "contains all of them. Change one thing between runs: the batch size, the GPUs, the data.",
        height=2,
    )


def _base_choice() -> Json:
    return variables.labels_of(
        "base",
        "run",
        f"stallscope_training_rank_info{{{RUN}}}",
        title="base",
        description="The selected run to compare the others with.",
        multi=False,
        everything=False,
    )


def dashboard() -> Dashboard:
    """Compose the dashboard."""
    return Dashboard(
        uid="stallscope-compare",
        title="Stallscope / Compare",
        description=(
            "Two to six runs side by side, or two periods of one run: speed, GPU utilisation, losses and energy."
        ),
        variables=(
            variables.datasource(),
            choices.cluster(),
            choices.namespace(hide=True),  # links from a run set it
            choices.run(everything=False),
            _base_choice(),
            variables.choice(
                "shift",
                ("1h", "15m", "30m", "3h", "6h", "12h", "1d", "2d", "7d"),
                title="earlier by",
                description="Offset of the earlier period from the time range.",
            ),
        ),
        rows=(
            Row(
                "",
                (
                    _how(),
                    _speed(),
                    _cost(),
                ),
            ),
            Row("Time series", tuple(_curves())),
            Row("Time by phase and cause", (_phases(), _lost_by_cause())),
            Row("Comparison of two periods", tuple(_periods()), collapsed=True),
        ),
        since="now-6h",
    )
