"""Values of a rank that a program or an integration describes: its GPUs, and the precision of its arithmetic."""

from __future__ import annotations

from stallscope.training.protocol.vocabulary import MAX_GPUS, MAX_LABEL_LENGTH, PRECISIONS
from stallscope.training.shim.tolerance import complain, label, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def gpu_labels(given: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the GPUs with labels of limited length, without those that have neither index nor UUID."""
    keys = ("gpu", "uuid")
    found = [{key: label(gpu.get(key, ""), MAX_LABEL_LENGTH) for key in keys} for gpu in given]
    return [gpu for gpu in found if gpu["gpu"] or gpu["uuid"]][:MAX_GPUS]


def precision_names(given: str | Sequence[str]) -> list[str]:
    """Return the valid precisions; complain of the others."""
    names = tuple(given) if isinstance(given, (list, tuple, set, frozenset)) else (given,)
    found = [name for name in names if type(name) is str and name in PRECISIONS]
    if len(found) < len(names):
        wrong = next(name for name in names if name not in found)
        complain(f"precision is {shown(wrong)}; expected some of {', '.join(PRECISIONS)}", "precision")
    return found
