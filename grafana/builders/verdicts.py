"""Texts and colours of causes, from the one table of causes."""

from __future__ import annotations

from collections.abc import Iterable

from grafana.builders import Json
from grafana.builders.field import Override, Text, by_name, patterns, texts
from stallscope.catalogue.causes import CAUSES, CODES, COLOURS, REMAINDER_COLOURS, REMAINDERS
from stallscope.view.verdict_words import ROOT_WORDS, root_words

TITLES: dict[str, str] = {
    **{name: title for name, (title, _remedy) in REMAINDERS.items()},
    **{cause.name: cause.title for cause in CAUSES.values()},
}
REMEDIES: dict[str, str] = {
    **{name: remedy for name, (_title, remedy) in REMAINDERS.items()},
    **{cause.name: cause.remedy for cause in CAUSES.values()},
}

VERDICTS = (*REMAINDERS, *(cause.name for cause in CAUSES.values() if cause.tier))
"""What may be a verdict, or be told of time lost; the others are told by their alerts alone."""


def colour_of(cause: str) -> str:
    """Colour of a cause's kind."""
    return REMAINDER_COLOURS.get(cause) or COLOURS[CAUSES[cause].domain]


def by_code() -> list[Json]:
    """Text and colour of each number that `coded` yields."""
    return texts({str(CODES[name]): Text(TITLES[name], colour_of(name)) for name in VERDICTS})


def by_cause(among: Iterable[str] = tuple(TITLES)) -> list[Json]:
    """Text and colour of values of the label `cause`."""
    return texts({name: Text(TITLES[name], colour_of(name)) for name in among})


def remedy_by_cause(among: Iterable[str] = tuple(REMEDIES)) -> list[Json]:
    """What to change first, for values of the label `cause`."""
    return texts({name: Text(REMEDIES[name]) for name in among})


def runbook_by_cause(among: Iterable[str] = VERDICTS) -> list[Json]:
    """Name of the alert, and so of the runbook's page, for values of the label `cause`; see `links.runbook`."""
    alerts = {name: CAUSES[name].alert for name in among if name in CAUSES}
    return texts({name: Text(alert) for name, alert in alerts.items() if alert})


WITHOUT_RUNBOOK = "|".join(name for name in VERDICTS if name not in CAUSES or not CAUSES[name].alert)
"""Regular expression for the causes that have no page."""


def coded(verdicts: str, *subject: str) -> str:
    """PromQL that turns verdicts into the numbers of their causes, one series a subject however often it changes.

    Args:
        verdicts: a selector of `run:verdict:ratio5m` or its like.
        subject: the labels that tell subjects apart.
    """
    return f"max by ({', '.join(subject)}) (({verdicts} >= bool 0) * on (cause) group_left () stallscope:cause:code)"


def of_gpus(matchers: str) -> str:
    """PromQL for verdicts of GPUs, with the run and the rank that compute there: one of them where several do.

    Args:
        matchers: what narrows both, such as `choices.GPU`.
    """
    gpu = "cluster, job, instance, gpu, uuid, mig"
    return f"""
        gpu:verdict:ratio5m{{{matchers}}}
      * on ({gpu}) group_left (namespace, run, rank)
        topk by ({gpu}) (1, gpu_rank:pair:info{{{matchers}, gpu!="", run!=""}})
    or on ({gpu})
      gpu:verdict:ratio5m{{{matchers}}}
"""


def with_remedy(expression: str) -> str:
    """PromQL that has the cause a second time, in the label `remedy`, for a column of its own."""
    return f'label_replace({expression}, "remedy", "$1", "cause", "(.*)")'


def with_culprit(verdicts: str, matchers: str) -> str:
    """PromQL that adds the culprit of a run's verdict and its root cause, where they are known.

    The label `culprit` is as `rank 3, GPU 1 of node1:9400: thermal_throttle`, for `culprit_column`. The label `root` is
    the root cause.

    Args:
        verdicts: verdicts of runs with the labels `cluster`, `namespace`, `run` and `cause`.
        matchers: what narrows the culprits to these runs.
    """
    place = f'label_join(run:culprit:info{{{matchers}}}, "culprit", ";", "rank", "gpu", "mig", "instance")'
    for pattern, words in (
        ("([^;]*);([^;]+);;(.*)", "rank $1, GPU $2 of $3"),
        ("([^;]*);([^;]+);([^;]+);(.*)", "rank $1, GPU $2 MIG $3 of $4"),
        ("([^;]*);;;(.*)", "rank $1 of $2"),
    ):
        place = f'label_replace({place}, "culprit", "{words}", "culprit", "{pattern}")'
    place = f'label_replace({place}, "root", "$1", "cause", "(.*)")'
    found = (
        f'max by (cluster, namespace, run, culprit, root) (label_join({place}, "culprit", ": ", "culprit", "cause"))'
    )
    return (
        f"{verdicts} * on (cluster, namespace, run) group_left (culprit, root) {found}"
        f" or on (cluster, namespace, run) {verdicts}"
    )


def with_root_remedy(expression: str) -> str:
    """PromQL that has the root cause in the label `remedy`, where `with_culprit` found one, and else the cause."""
    return f'label_replace({with_remedy(expression)}, "remedy", "$1", "root", "(.+)")'


def with_runbook(expression: str) -> str:
    """PromQL that has the cause once more, in the label `runbook`, where there is a page; see `runbook_by_cause`."""
    copied = f'label_replace({expression}, "runbook", "$1", "cause", "(.*)")'
    return f'label_replace({copied}, "runbook", "", "cause", "{WITHOUT_RUNBOOK}")'


def cause_colours() -> list[Override]:
    """Title and colour for series that are called by their cause."""
    return [
        Override(
            ("byName", name),
            {"displayName": TITLES[name], "color": {"mode": "fixed", "fixedColor": colour_of(name)}},
        )
        for name in VERDICTS
    ]


def in_colour() -> dict[str, object]:
    """What makes a column's text take the colour of its mapping, for `by_name`."""
    # The second is what Grafana before 9.5 calls it.
    return {"custom__cellOptions": {"type": "color-text"}, "custom__displayMode": "color-text"}


def title_column(heading: str, among: Iterable[str] = VERDICTS) -> Override:
    """A table's column of causes, each as its title in its colour."""
    return by_name(heading, mappings=by_cause(among), custom__width=210, **in_colour())


def culprit_column(heading: str = "Culprit") -> Override:
    """A table's column of culprits, as `with_culprit` makes them: rank, GPU, node and root cause."""
    causes = [name for name in VERDICTS if name in CAUSES and (name in ROOT_WORDS or CAUSES[name].tier)]
    words = {f"^(.*): {name}$": Text(f"$1: {root_words(name)}", colour_of(name)) for name in causes}
    return by_name(
        heading,
        mappings=patterns(words),
        custom__cellOptions={"type": "color-text", "wrapText": True},
        custom__displayMode="color-text",
        custom__width=260,
    )


def columns(among: Iterable[str] = VERDICTS) -> list[Override]:
    """Title and remedy, for a table's columns `Verdict` and `What to change`."""
    return [
        title_column("Verdict", among),
        by_name("What to change", mappings=remedy_by_cause(among), custom__minWidth=260),
    ]
