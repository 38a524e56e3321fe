"""Each lint rule finds its violation, in a sound dashboard with one change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from grafana.builders import choices
from grafana.builders.alerts import firing
from grafana.builders.annotations import alert_marks
from grafana.builders.bands import bands
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import by_name, fixed_colours, limit_line
from grafana.builders.links import to_dashboard
from grafana.builders.panel import Panel, deviation, stat, state_timeline, table, time_series
from grafana.builders.query import Query
from grafana.builders.variables import datasource
from tests.grafana import lint
from tests.known_names import chosen_by

Json = dict[str, Any]
_BUSY = f"rate(stallscope_gpu_busy_seconds_total{{{choices.GPU}}}[$__rate_interval])"


def _busy() -> Panel:
    return time_series("Again", "How busy each is.", [Query(_BUSY, "{{gpu}}")], unit="percentunit")


def _counted() -> Panel:
    return time_series(
        "Busy", "How many are busy.", [Query(f"sum(gpu:busy:ratio5m{{{choices.GPU}}})", "all")], unit="none"
    )


def _sound() -> Json:
    """Return two panels above a closed row with six panels."""
    states = state_timeline(
        "States",
        "What each does.",
        [Query(f"topk(16, stallscope_gpu_up{{{choices.GPU}}})", "{{gpu}}")],
        mappings=[{"type": "value", "options": {}}],
    )
    gpus = f"count(gpu:up:max{{{choices.GPU}}})"
    listed = table(
        "Listed",
        "Each by name.",
        [Query(f"gpu:up:max{{{choices.GPU}}}", table=True)],
        columns={"gpu": "GPU"},
        unit="none",
    )
    link = to_dashboard("stallscope-gpu", "Open GPU", {"gpu": "${__field.labels.gpu}"})
    figure = stat("GPUs", "How many there are.", [Query(gpus)], unit="none", links=[link])
    lost = time_series(
        "Lost",
        "By cause.",
        bands(f"sum by (cause) (cause:gpus_lost:sum5m{{{choices.CLUSTER}}})", "cause"),
        unit="none",
        stacked=True,
        overrides=[*limit_line("limit"), *fixed_colours({"other": "#808080"})],
    )
    differing = deviation("Differing", "How each differs.", [Query(f"topk(16, {_BUSY})", "{{gpu}}")])
    remedies = table(
        "Causes",
        "Each with its remedy.",
        [Query(f"gpu:verdict:ratio5m{{{choices.GPU}}}", table=True)],
        columns={"gpu": "GPU", "cause": "What to change"},
        unit="none",
        overrides=[by_name("GPU", custom__width=60)],
    )
    return Dashboard(
        uid="stallscope-example",
        title="Example",
        description="An example.",
        variables=(datasource(), choices.cluster(), choices.instance(), choices.gpu()),
        rows=(
            Row("", (_counted(), figure)),
            Row("More", (_busy(), states, listed, lost, differing, remedies), collapsed=True),
        ),
        annotations=(alert_marks(firing(choices.HOST), colour="red"),),
    ).json()


def _complaints(page: Json) -> list[str]:
    found = [complaint for rule in lint.RULES for complaint in rule(page)]
    found += lint.units(page, frozenset({"percentunit", "none", "string"}))
    return [*found, *(f"{where} wide by {label}" for where, _metric, label in lint.narrowing(page, chosen_by))]


def _first(page: Json) -> Json:
    panel: Json = page["panels"][0]
    return panel


def _closed(page: Json) -> Json:
    """Return a panel in the closed row."""
    panel: Json = page["panels"][-1]["panels"][0]
    return panel


def _in_row(page: Json, place: int) -> Json:
    """Return a panel in the closed row."""
    panel: Json = page["panels"][-1]["panels"][place]
    return panel


def _annotation(page: Json) -> Json:
    found: Json = page["annotations"]["list"][1]
    return found


def _colour(panel: Json, name: str, colour: str) -> None:
    """Set the colour of the series of this name."""
    (override,) = (each for each in panel["fieldConfig"]["overrides"] if each["matcher"]["options"] == name)
    (found,) = (each for each in override["properties"] if each["id"] == "color")
    found["value"]["fixedColor"] = colour


def _custom(page: Json) -> Json:
    """Return the drawing options of the chart in the closed row."""
    options: Json = _closed(page)["fieldConfig"]["defaults"]["custom"]
    return options


def _listed(page: Json) -> Json:
    """Return the table in the closed row."""
    panel: Json = page["panels"][-1]["panels"][2]
    return panel


def _change_link(page: Json, old: str, new: str) -> None:
    link = page["panels"][1]["fieldConfig"]["defaults"]["links"][0]
    link["url"] = link["url"].replace(old, new)


def _set_query(panel: Json, expression: str) -> None:
    panel["targets"][0]["expr"] = expression


def test_a_sound_dashboard_has_no_findings() -> None:
    assert _complaints(_sound()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda page: page.update(editable=True), "editable"),
        (lambda page: page.update(__inputs=[]), "has __inputs"),
        (lambda page: page.update(spec={}), "has spec"),
        (lambda page: page.update(uid="node"), "uid node"),
        (lambda page: page.update(tags=[]), "no tags"),
        (lambda page: _closed(page).update(id=1), "2 panels have the id 1"),
        (lambda page: _first(page)["gridPos"].update(w=25), "is outside the grid"),
        (lambda page: _first(page)["gridPos"].update(w=13), "Busy overlaps GPUs"),
        (lambda page: _closed(page)["gridPos"].update(h=20), "Again overlaps States"),
        (lambda page: _closed(page).update(title=""), "has no title"),
        (lambda page: _closed(page).update(description="busy"), "no description in sentences"),
        (lambda page: _closed(page).update(type="graph"), "of the kind graph"),
        (lambda page: _closed(page).update(targets=[]), "has no query"),
        (lambda page: _closed(page)["targets"].append(_closed(page)["targets"][0]), "two queries of one letter"),
        (lambda page: _closed(page).update(datasource={"uid": "x"}), "another data source"),
        (lambda page: _closed(page)["targets"][0].update(datasource="x"), "Again A uses another data source"),
        (lambda page: page["annotations"]["list"][1].update(datasource={}), "annotation Alerts uses another"),
        (lambda page: page["templating"]["list"].pop(0), "not exactly one variable `datasource`"),
        (lambda page: page["templating"]["list"][0].update(label="Source"), "not exactly one variable `datasource`"),
        (lambda page: page["templating"]["list"][2].update(refresh=1), "does not follow the time"),
        (lambda page: page["templating"]["list"][2].pop("allValue"), "all by a list of its values"),
        (lambda page: page["templating"]["list"][2].update(allValue=".*"), "takes what has no such label"),
        (lambda page: page["templating"]["list"][2].update(multi=False), "all by a list of its values"),
        (lambda page: page["templating"]["list"].reverse(), "is before the variable that narrows it"),
        (lambda page: page["templating"]["list"].pop(3), "uses $gpu"),
        (lambda page: _change_link(page, "&${cluster:queryparam}", ""), "GPUs forgets ${cluster:queryparam}"),
        (lambda page: _change_link(page, ":percentencode", ""), "GPUs leaves var-gpu=${__field.labels.gpu} as it is"),
        (lambda page: _listed(page)["fieldConfig"]["overrides"].pop(1), "Listed takes labels of digits for numbers"),
        (lambda page: _listed(page)["fieldConfig"]["overrides"].pop(0), "Listed fills its cells with words"),
        (lambda page: _set_query(_closed(page), _BUSY.replace("$__rate_interval", "5m")), "_total over 5m"),
        (
            lambda page: _set_query(_closed(page), f"stallscope_gpu_dips_total{{{choices.GPU}}}"),
            "_total without a rate",
        ),
        (lambda page: _set_query(_closed(page), _BUSY.replace(', gpu=~"$gpu"', "")), "Again A wide by gpu"),
        (lambda page: _set_query(_closed(page), "gpu:up:max"), "Again A wide by instance"),
        (lambda page: _set_query(_first(page), _BUSY), "Busy A reads stallscope_gpu_busy_seconds_total"),
        (lambda page: _closed(page)["fieldConfig"]["defaults"].update(unit="percents"), "the unit 'percents'"),
        (lambda page: _closed(page)["fieldConfig"]["defaults"].pop("unit"), "the unit ''"),
        (lambda page: _closed(page)["fieldConfig"]["defaults"]["custom"].update(spanNulls=True), "connects gaps"),
        (lambda page: _closed(page)["fieldConfig"]["defaults"].update(noValue=""), "has no text for missing values"),
        (lambda page: _closed(page)["fieldConfig"]["defaults"].pop("max"), "does not show 0 and 100 %"),
        (lambda page: _closed(page)["fieldConfig"]["defaults"].pop("min"), "does not show 0 and 100 %"),
        (lambda page: _custom(page).update(stacking={"mode": "percent"}), "Again has no range"),
        (lambda page: _custom(page).update(scaleDistribution={"type": "log"}), "Again labels ticks"),
        (lambda page: _first(page)["fieldConfig"]["defaults"]["custom"].pop("axisSoftMax"), "if all counts are zero"),
        (lambda page: _annotation(page).update(expr=firing(choices.HOST)), "Alerts tints charts"),
        (lambda page: _annotation(page).update(hide=False), "Alerts has a switch"),
        (lambda page: page["templating"]["list"].extend(2 * page["templating"]["list"][1:2]), "6 controls"),
        (lambda page: _in_row(page, 3)["targets"].pop(), "Lost may have more than 6 bands"),
        (lambda page: _set_query(_in_row(page, 3), "sum by (cause) (x)"), "Lost may have more than 6 bands"),
        (lambda page: _colour(_in_row(page, 3), "limit", "#E72620"), "Lost draws a limit in the colour of a series"),
        (lambda page: _colour(_in_row(page, 3), "other", "#EEEEEE"), "Lost has the colour #EEEEEE"),
        (lambda page: _colour(_in_row(page, 3), "other", "#222222"), "Lost has the colour #222222"),
        (lambda page: _in_row(page, 5)["gridPos"].update(w=12), "Causes cuts remedies"),
        (lambda page: _in_row(page, 5)["fieldConfig"]["overrides"][-1]["properties"][0].update(value=800), "cuts rem"),
        (lambda page: _set_query(_in_row(page, 1), "gpu:up:max"), "States A may have any number of rows"),
        (lambda page: _set_query(_in_row(page, 4), "topk(40, gpu:up:max)"), "Differing A may have any number of rows"),
        (
            lambda page: _in_row(page, 4)["fieldConfig"]["defaults"].update(color={"mode": "continuous-YlRd"}),
            "Differing has a scale of the data's own",
        ),
        (lambda page: page["panels"][1]["options"].pop("text"), "GPUs has letters as large as the panel"),
        (lambda page: page["panels"][1]["options"].update(textMode="name"), "GPUs shows words as large as numbers"),
        (
            lambda page: page["panels"][-1]["panels"][1]["fieldConfig"]["defaults"].update(mappings=[]),
            "States has states without texts",
        ),
    ],
)
def test_a_violation_is_reported(change: Callable[[Json], object], said: str) -> None:
    page = copy.deepcopy(_sound())
    change(page)
    assert any(said in complaint for complaint in _complaints(page)), _complaints(page)


def test_a_file_that_is_too_large_is_reported() -> None:
    assert list(lint.size("x" * 300_000)) == []
    assert list(lint.size("x" * 300_001)) == ["300001 bytes"]
