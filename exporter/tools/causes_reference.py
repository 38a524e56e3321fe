"""Write what follows from the table of causes: alerts/CAUSES.md, the page of every cause, and the rule of their codes.

Run by `make generate`; a test fails when a committed file is not what this prints.
"""

from __future__ import annotations

import json
from pathlib import Path

from stallscope.model.catalogue.causes import CAUSES, CODES, REMAINDERS, Cause
from stallscope.model.view.verdict_words import in_sentence, root_words

_TOP = Path(__file__).parents[2]
PAGE = _TOP / "alerts" / "CAUSES.md"
RULES = _TOP / "prometheus" / "rules" / "causes.yml"

_SECTIONS = (
    ("Training runs", "training"),
    ("GPUs", "gpu"),
    ("Hosts", "host"),
)


def _row(cause: Cause) -> str:
    alert = f"[{cause.alert}](runbooks/{cause.alert}.md), {cause.severity}" if cause.alert else ""
    return f"| `{cause.name}` | {cause.title} | {cause.tier or 'never'} | {alert} | {cause.remedy} |"


def page() -> str:
    """Return the whole page as Markdown."""
    lines = [
        "# Causes",
        "",
        (
            "Generated from `stallscope/model/catalogue/causes.py` by `make generate`; do not edit. The third column "
            "is the cause's precedence as a verdict: hardware comes first, then progress, then the performance cause "
            "that "
            "costs most, "
            "then the classes of the device side, then GPU use. A cause that is never a verdict has only its alert. "
            "The severity is the alert's highest; on a run of job class `experiment` it is info."
        ),
    ]
    for title, subject in _SECTIONS:
        lines += ["", f"## {title}", "", "| cause | in a few words | verdict | alert | what to change first |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_row(cause) for cause in CAUSES.values() if cause.subject == subject]
    lines += ["", "## None", "", "| verdict | in a few words | |", "|---|---|---|"]
    lines += [f"| `{name}` | {title} | {remedy} |" for name, (title, remedy) in REMAINDERS.items()]
    return "\n".join(lines) + "\n"


def _words(name: str) -> str:
    """Return the rule that records a cause's words, for sentences that a dashboard builds."""
    cause = CAUSES.get(name)
    title, remedy = (cause.title, cause.remedy) if cause else REMAINDERS[name]
    labels = {
        "cause": name,
        "title": in_sentence(title),
        "words": root_words(name) if cause else in_sentence(title),
        "remedy": remedy,
        "who": "cluster operator" if cause and cause.domain in ("hardware", "host") else "owner of the run",
    }
    lines = "".join(f"          {label}: {json.dumps(value)}\n" for label, value in labels.items())
    return f"      - record: stallscope:cause:info\n        labels:\n{lines}        expr: vector(1)\n"


def rules() -> str:
    """Return the rule file that gives every verdict its number, and every cause its words."""
    rows = " or\n".join(
        f'          label_replace(vector({code}), "cause", "{name}", "", "")'
        for name, code in sorted(CODES.items(), key=lambda item: item[1])
    )
    return f"""# Generated from `stallscope/model/catalogue/causes.py` by `make generate`; do not edit.
groups:
  - name: stallscope-causes
    interval: 1m
    rules:
      # The number of every verdict, by its name in `cause`, for graphs that can only draw numbers: state timelines give
      # it its text and its colour. Nothing is judged by it.
      - record: stallscope:cause:code
        expr: |
{rows}
      # The words of every cause: title as in a sentence, words that follow a rank, first remedy, and who can apply it.
{"".join(_words(name) for name in (*REMAINDERS, *CAUSES))}"""


if __name__ == "__main__":
    RULES.write_text(rules(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
