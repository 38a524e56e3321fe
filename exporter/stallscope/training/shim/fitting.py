"""Shortens a report that does not fit into one datagram."""

from __future__ import annotations

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.vocabulary import MAX_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ESSENTIAL = (
    *("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "other"),
    *("checkpoint", "initialization", "evaluation", "restore", "paused"),
    *("rollout", "reward", "weight_sync"),
)
"""Phases that verdicts read, and those outside of steps, which can't count as a step's rest."""
_ESSENTIAL_GPUS = 8
_MARGIN = 0.95
"""Of the limit, where something must go: numbers grow by a digit now and then, and what went must not come back."""


def fit(document: dict[str, Any], longest: int = MAX_BYTES) -> tuple[bytes, bool]:
    """Write a document as it travels, without what matters least where it is too long.

    Lines of code go first, then the user's own values, then their own phases, whose time is added to `other` so that
    phases still sum to the loop's time, then all but the first GPUs: of each the newest first, so that what is shown
    stays the same from one report to the next. Only names in many bytes make that necessary.

    Returns:
        the bytes, and True if something was left out; payloads that still exceed the limit are dropped.
    """
    payload = _encoded(document)
    if len(payload) <= longest:
        return payload, False
    document = dict(document)
    for key, least in (("code", 0), ("values", 0), ("phases", len(_ESSENTIAL)), ("gpus", _ESSENTIAL_GPUS)):
        while len(document.get(key, ())) > least and len(payload) > longest * _MARGIN:
            document[key] = _shortened(document[key])
            payload = _encoded(document)
    return payload, True


def _shortened(part: Any) -> Any:
    """The part without about an eighth of its entries, the newest that may go."""
    count = max(len(part) // 8, 1)
    if isinstance(part, list):
        return part[:-count]
    names = [name for name in part if name not in _ESSENTIAL][-count:]
    kept = {name: entry for name, entry in part.items() if name not in names}
    if names and isinstance(part[names[0]], dict):
        rest = dict(part.get("other") or {"seconds": 0.0, "occurrences": 0, "max": 0.0})
        for name in names:
            phase = part[name]
            rest["seconds"] = round(rest["seconds"] + phase["seconds"], 6)
            rest["occurrences"] += phase["occurrences"]
            rest["max"] = max(rest["max"], phase["max"])
        kept["other"] = rest
    return kept if names else dict(list(part.items())[:-count])


def _encoded(document: dict[str, Any]) -> bytes:
    with standard_library():
        import json  # costs more than the rest of the shim to import, and few runs come here

    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
