"""A report as JSON: values by name, without layout. `exporter/REPORT.md` describes every name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

from stallscope.tools.report.document import Block, Document, Fact, Facts, Plot, Recommendation, Table

SCHEMA_VERSION = 1
"""Increased when a name is removed or changes its meaning. New names do not increase it."""
_TYPED = (Block, Plot)


def write(document: Document) -> str:
    """Return the report's values as JSON, with the deprecated `sections` and `highlights`; times are Unix times."""
    content = {"schema_version": SCHEMA_VERSION, **values(document), **_data(document)}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def values(document: Document) -> dict[str, Any]:
    """Return the values of a report by name. A name of a part that is unavailable is absent; None is unknown."""
    found = _facts(document.highlights)
    advised = []
    for block in document.blocks:
        if isinstance(block, Facts):
            found |= _facts(block.facts)
        elif isinstance(block, Table) and block.key:
            found[block.key] = _rows(block)
        elif isinstance(block, Recommendation):
            advice = {"cause": block.cause, "advice": block.advice, "evidence": block.evidence}
            advised.append({"rank": block.rank, **advice, **_facts(block.gain)})
    # Without a loss there is no table.
    return {"causes": [], "recommendations": advised, **found} if "lost_ratio" in found else found


def _facts(facts: Sequence[Fact]) -> dict[str, Any]:
    return {fact.key: _data(fact.value) for fact in facts if fact.key}


def _rows(table: Table) -> list[dict[str, Any]]:
    return [
        {column.key: _data(value) for column, value in zip(table.columns, row, strict=True) if column.key}
        for row in table.rows
    ]


def _data(value: Any) -> Any:
    if is_dataclass(value):
        own = {field.name: _data(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **own} if isinstance(value, _TYPED) else own
    if isinstance(value, tuple):
        return [_data(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
