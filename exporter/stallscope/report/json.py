"""A report as JSON, with every number unformatted and its kind next to it."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

from stallscope.report.document import Block, Document, Plot

_TYPED = (Block, Plot)


def write(document: Document) -> str:
    """Return the document's fields as JSON; `type` names the class of blocks and plots, and times are Unix times."""
    return json.dumps(_data(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _data(value: Any) -> Any:
    if is_dataclass(value):
        own = {field.name: _data(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **own} if isinstance(value, _TYPED) else own
    if isinstance(value, tuple):
        return [_data(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
