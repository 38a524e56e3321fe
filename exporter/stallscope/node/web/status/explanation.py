"""Why a run has its verdict: values beside thresholds, and other causes, as `stallscope why` words them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.common.formatting import ago, capitalised
from stallscope.node.web.status.markup import attribute, entry, foreign

if TYPE_CHECKING:
    from stallscope.model.view.explanation import Explanation
    from stallscope.model.view.explanation_watch import Explanations
    from stallscope.model.view.verdicts import RunName

_LENGTH = 300
"""Characters of a note."""


def explained(name: RunName, verdict: str, explanations: Explanations) -> str:
    """Return the explanation of a run's verdict, or why it is not shown.

    Args:
        name: the run.
        verdict: the cause that is shown as its verdict. An older explanation may be that of another verdict.
        explanations: the latest explanations.
    """
    found = explanations.runs.get(name)
    if found is not None and found.verdict is not None and found.verdict.cause == verdict:
        return _explained(found, explanations)
    command = f"<code>stallscope why {attribute(name.run)}</code>"
    if explanations.problem:
        return f'<p class="quiet">No explanation: {foreign(explanations.problem, _LENGTH)}. {command} may have it.</p>'
    if explanations.age is None or found is not None:
        return '<p class="quiet">Querying the reasons of the verdict.</p>'
    why = "the run does not report, or several clusters have a run of this name"
    return f'<p class="quiet">No explanation: {why}; try {command}.</p>'


def _explained(found: Explanation, explanations: Explanations) -> str:
    from stallscope.model.view import explanation_words as words  # saves memory until a reader wants them

    rows = "".join(
        f'<tr><th scope="row">{attribute(row.signal)}</th><td>{attribute(row.value)}</td>'
        f"<td>{'<br>'.join(attribute(each, _LENGTH) for each in row.thresholds)}</td></tr>"
        for row in words.measured_rows(found)
    )
    table = (
        '<table class="small"><thead><tr><th scope="col">Signal</th><th scope="col">Value</th>'
        f'<th scope="col">Threshold</th></tr></thead><tbody>{rows}</tbody></table>'
    )
    notes = "".join(
        entry(capitalised(note.title), "<br>".join(attribute(each, _LENGTH) for each in note.first_entries))
        for note in words.notes(found)
    )
    old = ""
    if explanations.problem and explanations.age is not None:
        old = f" As of {ago(explanations.age)}: {foreign(explanations.problem, _LENGTH)}."
    return (
        f'<p class="quiet">Why: {foreign(words.heading(found), _LENGTH)}.{old}</p>{table if rows else ""}'
        f'<dl class="facts">{notes}</dl>'
    )
