"""Texts and colours of causes, from the one table of causes."""

from __future__ import annotations

from grafana.builders import Json
from grafana.builders.field import Override, Text, texts
from stallscope.causes import CAUSES, CODES, COLOURS, REMAINDER_COLOURS, REMAINDERS

TITLES: dict[str, str] = {
    **{name: title for name, (title, _remedy) in REMAINDERS.items()},
    **{cause.name: cause.title for cause in CAUSES.values()},
}
REMEDIES: dict[str, str] = {
    **{name: remedy for name, (_title, remedy) in REMAINDERS.items()},
    **{cause.name: cause.remedy for cause in CAUSES.values()},
}


def colour_of(cause: str) -> str:
    """Colour of a cause's kind."""
    return REMAINDER_COLOURS.get(cause) or COLOURS[CAUSES[cause].domain]


def by_code() -> list[Json]:
    """Text and colour of each number that `coded` yields."""
    return texts({str(code): Text(TITLES[name], colour_of(name)) for name, code in CODES.items()})


def by_cause() -> list[Json]:
    """Text and colour of each value of the label `cause`."""
    return texts({name: Text(title, colour_of(name)) for name, title in TITLES.items()})


def remedy_by_cause() -> list[Json]:
    """What to change first, for each value of the label `cause`."""
    return texts({name: Text(remedy) for name, remedy in REMEDIES.items()})


def coded(verdicts: str, *subject: str) -> str:
    """PromQL that turns verdicts into the numbers of their causes, one series a subject however often it changes.

    Args:
        verdicts: a selector of `run:verdict:ratio5m` or its like.
        subject: the labels that tell subjects apart.
    """
    return f"max by ({', '.join(subject)}) (({verdicts} >= bool 0) * on (cause) group_left () stallscope:cause:code)"


def with_remedy(expression: str) -> str:
    """PromQL that has the cause a second time, in the label `remedy`, for a column of its own."""
    return f'label_replace({expression}, "remedy", "$1", "cause", "(.*)")'


def cause_colours() -> list[Override]:
    """Title and colour for series that are called by their cause."""
    return [
        Override(
            ("byName", name),
            {"displayName": title, "color": {"mode": "fixed", "fixedColor": colour_of(name)}},
        )
        for name, title in TITLES.items()
    ]
