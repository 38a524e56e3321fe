"""Why a run has its verdict: values beside thresholds, and other causes, as `stallscope why` words them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.common.formatting import capitalised
from stallscope.node.web.status.markup import attribute, entry, foreign

if TYPE_CHECKING:
    from stallscope.model.view.explanation import Explanation
    from stallscope.model.view.explanation_watch import Explanations
    from stallscope.model.view.verdicts import RunName

_LENGTH = 300
"""Characters of a note."""


def explained(name: RunName, explanations: Explanations) -> str:
    """Return the explanation of a run's verdict, or why there is none yet."""
    found = explanations.runs.get(name)
    if found is not None:
        return _explained(found)
    command = f"<code>stallscope why {attribute(name.run)}</code>"
    if explanations.problem:
        return f'<p class="quiet">No explanation: {foreign(explanations.problem, _LENGTH)}. {command} may have it.</p>'
    if explanations.age is None:
        return '<p class="quiet">Querying the reasons of the verdict.</p>'
    why = "the run does not report, or several clusters have a run of this name"
    return f'<p class="quiet">No explanation: {why}; try {command}.</p>'


def _explained(found: Explanation) -> str:
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
    return (
        f'<p class="quiet">Why: {foreign(words.heading(found), _LENGTH)}.</p>{table if rows else ""}'
        f'<dl class="facts">{notes}</dl>'
    )
