"""Texts and colours of causes, from the table of causes."""

from __future__ import annotations

from collections.abc import Iterable

from grafana.builders import Json
from grafana.builders.bands import OTHER_COLOUR
from grafana.builders.field import DEFAULT_PORT, Override, Text, by_name, fixed_colours, patterns, texts
from stallscope.model.catalogue.causes import CAUSES, CODES, REMAINDERS, colour_of
from stallscope.model.view.verdict_words import ROOT_WORDS, root_words

TITLES: dict[str, str] = {
    **{name: title for name, (title, _remedy) in REMAINDERS.items()},
    **{cause.name: cause.title for cause in CAUSES.values()},
}
REMEDIES: dict[str, str] = {
    **{name: remedy for name, (_title, remedy) in REMAINDERS.items()},
    **{cause.name: cause.remedy for cause in CAUSES.values()},
}

VERDICTS = (*REMAINDERS, *(cause.name for cause in CAUSES.values() if cause.tier))
"""Causes that can be a verdict or have lost time; other causes appear only in alerts."""


def by_code() -> list[Json]:
    """Return text and colour for each number of `coded`."""
    return texts({str(CODES[name]): Text(TITLES[name], colour_of(name)) for name in VERDICTS})


def by_cause(among: Iterable[str] = tuple(TITLES)) -> list[Json]:
    """Return the text for values of the label `cause`: colours of charts are too dim for letters."""
    return texts({name: Text(TITLES[name]) for name in among})


def remedy_by_cause(among: Iterable[str] = tuple(REMEDIES)) -> list[Json]:
    """Return the remedy for values of the label `cause`."""
    return texts({name: Text(REMEDIES[name]) for name in among})


def runbook_by_cause(among: Iterable[str] = VERDICTS) -> list[Json]:
    """Return the name of the alert and of its runbook for values of the label `cause`; see `links.runbook`."""
    alerts = {name: CAUSES[name].alert for name in among if name in CAUSES}
    return texts({name: Text(alert) for name, alert in alerts.items() if alert})


WITHOUT_RUNBOOK = "|".join(name for name in VERDICTS if name not in CAUSES or not CAUSES[name].alert)
"""Regular expression of causes without a runbook."""


def coded(verdicts: str, *subject: str) -> str:
    """Return PromQL that converts verdicts to the numbers of their causes, in one series per subject.

    Args:
        verdicts: a selector of `run:verdict:ratio5m` or its like.
        subject: the labels that identify a subject.
    """
    return f"max by ({', '.join(subject)}) (({verdicts} >= bool 0) * on (cause) group_left () stallscope:cause:code)"


def of_gpus(matchers: str) -> str:
    """Return PromQL for verdicts of GPUs with the run and rank on the GPU (one of them if there are several).

    Args:
        matchers: matchers for both, such as `choices.GPU`.
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
    """Return PromQL that copies the cause to the label `remedy`, for a separate column."""
    return f'label_replace({expression}, "remedy", "$1", "cause", "(.*)")'


def with_culprit(verdicts: str, matchers: str) -> str:
    """Return PromQL that adds the culprit of a run's verdict and its root cause, if they are known.

    The label `culprit` has the form `rank 3, GPU 1 of node1: thermal_throttle`, for `culprit_column`. The label
    `root` is the root cause.

    Args:
        verdicts: verdicts of runs with the labels `cluster`, `namespace`, `run` and `cause`.
        matchers: matchers that select the culprits of these runs.
    """
    place = f'label_join(run:culprit:info{{{matchers}}}, "culprit", ";", "rank", "gpu", "mig", "instance")'
    node = f"(.*?)(?:{DEFAULT_PORT})?"
    for pattern, words in (
        (f"([^;]*);([^;]+);;{node}", "rank $1, GPU $2 of $3"),
        (f"([^;]*);([^;]+);([^;]+);{node}", "rank $1, GPU $2 MIG $3 of $4"),
        (f"([^;]*);;;{node}", "rank $1 of $2"),
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
    """Return PromQL that sets the label `remedy` to the root cause of `with_culprit`, or to the cause without one."""
    return f'label_replace({with_remedy(expression)}, "remedy", "$1", "root", "(.+)")'


def with_runbook(expression: str) -> str:
    """Return PromQL that copies the cause to the label `runbook`, if it has a page; see `runbook_by_cause`."""
    copied = f'label_replace({expression}, "runbook", "$1", "cause", "(.*)")'
    return f'label_replace({copied}, "runbook", "", "cause", "{WITHOUT_RUNBOOK}")'


def cause_colours() -> list[Override]:
    """Return title and colour for series named by their cause, and the colour of all others together."""
    return [
        *fixed_colours(OTHER_COLOUR),
        *(
            Override(
                ("byName", name),
                {"displayName": TITLES[name], "color": {"mode": "fixed", "fixedColor": colour_of(name)}},
            )
            for name in VERDICTS
        ),
    ]


def in_colour() -> dict[str, object]:
    """Return the options that colour a column's text by its mapping, for `by_name`."""
    # The second is the name before Grafana 9.5.
    return {"custom__cellOptions": {"type": "color-text"}, "custom__displayMode": "color-text"}


def title_column(heading: str, among: Iterable[str] = VERDICTS) -> Override:
    """Return the override of a cause column: the title of each cause."""
    return by_name(heading, mappings=by_cause(among), custom__width=270)


def with_reason(expression: str) -> str:
    """Return PromQL that sets the label `reason` to the culprit of `with_culprit`, or to the cause without one."""
    copied = f'label_replace({expression}, "reason", "$1", "cause", "(.*)")'
    return f'label_replace({copied}, "reason", "$1", "culprit", "(.+)")'


def reason_column(heading: str) -> Override:
    """Return the override of a column of `with_reason`: rank, GPU, node and root cause, or the title of the cause."""
    causes = [name for name in VERDICTS if name in CAUSES and (name in ROOT_WORDS or CAUSES[name].tier)]
    words = {f"^(.*): {name}$": Text(f"$1: {root_words(name)}") for name in causes}
    return by_name(heading, mappings=[*patterns(words), *by_cause(VERDICTS)], custom__width=330)


def remedy_column(among: Iterable[str] = REMEDIES) -> Override:
    """Return the override of the column `What to change`, which takes the width that other columns leave."""
    return by_name("What to change", mappings=remedy_by_cause(among), custom__minWidth=300)


def columns(among: Iterable[str] = VERDICTS) -> list[Override]:
    """Return the overrides of the columns `Verdict` and `What to change`."""
    return [title_column("Verdict", among), remedy_column(among)]
