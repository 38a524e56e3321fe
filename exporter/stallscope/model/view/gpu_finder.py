"""Find a GPU on a server by its index or its UUID."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Protocol

from stallscope.common.formatting import NAME_LENGTH, gpu_name, listed, readable, utc
from stallscope.model.clients.expressions import any_of, quoted
from stallscope.model.clients.prometheus import Series
from stallscope.model.view.explanation import GpuLabels

_RECORD = "gpu:verdict:ratio5m"
_KNOWN = "stallscope_gpu_up"
_STEP = 120
"""Resolution in seconds of the time at which a GPU had its last verdict."""
_SAME_END = 300.0
"""Seconds within which several GPUs have ended at once, as with their exporter."""
_CHECK = "no other GPU has one either: `stallscope doctor` checks whether GPUs are scraped"
_LONGEST = 2 * NAME_LENGTH
"""Characters of a UUID and the name of its GPU."""


class Server(Protocol):
    """A server with GPUs; `stallscope.model.clients.prometheus.Prometheus` is one."""

    name: str

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """Evaluate an expression at one time."""

    def label_values(
        self, label: str, selector: str, start: float | None = None, end: float | None = None
    ) -> list[str]:
        """Return the values of a label in the selected series."""


class GpuError(Exception):
    """The GPU is unavailable; the message is one line with the problem and what to do."""


class UnknownGpuError(GpuError):
    """There is no such GPU in the time range."""


class AmbiguousGpuError(GpuError):
    """Several GPUs match."""


def find_gpu(
    server: Server, name: str, start: float, end: float, *, instance: str | None = None, cluster: str | None = None
) -> GpuLabels:
    """Find a GPU that had a verdict, or at least an exporter that knew it.

    Args:
        server: the server to query.
        name: index of a GPU, or UUID of a GPU or a MIG instance, or the beginning of a UUID that only one has.
        start: Unix time; exclusive.
        end: Unix time; inclusive.
        instance: instance label of its exporter, with or without the port.
        cluster: its cluster.

    Raises:
        UnknownGpuError: there is none in that time.
        AmbiguousGpuError: there are several; the message lists them.
        PrometheusError: the server gave no valid response.
    """
    node = "" if instance is None else _node(server, instance, start, end, cluster)
    where = ", ".join([*([f"cluster={quoted(cluster)}"] if cluster is not None else []), *([node] if node else [])])
    by_index, by_uuid = f"gpu={quoted(name)}", f'uuid=~{any_of([name])[:-1]}.*"'
    for series in (_RECORD, _KNOWN):
        for matcher in (by_index, by_uuid) if name.isdecimal() else (by_uuid,):
            found = _latest(server, series, ", ".join(filter(None, (matcher, where))), start, end)
            preferred = [gpu for gpu in found if (not gpu.mig if matcher == by_index else gpu.uuid == name)]
            if found:
                return _single(name, preferred or found)
    raise _unknown(server, name, where, start, end)


def _latest(server: Server, series: str, matchers: str, start: float, end: float) -> list[GpuLabels]:
    """Return the GPUs of a series at the end of a time range; without any, those whose samples ended last."""
    by = ", ".join(GpuLabels._fields)
    selector = f"{series}{{{matchers}}}"

    def found(expression: str) -> dict[GpuLabels, float]:
        series = server.query(f"max by ({by}) ({expression})", at=end)
        return {GpuLabels(*(labels.get(field, "") for field in GpuLabels._fields)): value for labels, value in series}

    # The rules judge a GPU for a minute and a half after its exporter had it last, though another one has replaced it.
    for present in (f"{selector} and on ({by}) {_KNOWN}{{{matchers}}}", selector):
        if known := found(f"timestamp({present})"):
            return _without_repeats(known)
    ended = found(f"max_over_time(timestamp({selector})[{max(1.0, end - start):.0f}s:{_STEP}s])")
    last = max(ended.values(), default=0.0)
    return _without_repeats(gpu for gpu, when in ended.items() if last - when <= _SAME_END)


def _without_repeats(found: Iterable[GpuLabels]) -> list[GpuLabels]:
    """Return one of the GPUs that differ in the job alone, as where two jobs scrape one exporter."""
    return list({gpu._replace(job=""): gpu for gpu in sorted(found, reverse=True)}.values())[::-1]


def _single(name: str, found: Sequence[GpuLabels]) -> GpuLabels:
    if len(found) == 1:
        return found[0]
    what = _named(name)
    for field, places in (("cluster", "clusters"), ("instance", "nodes")):
        values = sorted({getattr(gpu, field) for gpu in found})
        if len(values) > 1:
            raise AmbiguousGpuError(
                f"{what}: {len(values)} {places} have one; choose one with --{field}: {_listed(values)}"
            )
    uuids = sorted({f"{gpu.uuid} ({gpu_name(gpu.gpu, gpu.mig)})" for gpu in found})
    raise AmbiguousGpuError(f"{what}: {len(found)} GPUs or MIG instances match; name one by its UUID: {_listed(uuids)}")


def _node(server: Server, name: str, start: float, end: float, cluster: str | None) -> str:
    """Return the matcher of a node's instance label."""
    where = "" if cluster is None else f"cluster={quoted(cluster)}"
    known = server.label_values("instance", f"{_RECORD}{{{where}}}", start, end)
    found = [each for each in known if name in (each, each.rpartition(":")[0])]
    if found:
        return f"instance=~{any_of(found)}"
    hosts = [host for each in known if (host := each.rpartition(":")[0])]
    near = difflib.get_close_matches(name, [*known, *hosts], n=1)
    to_do = f"did you mean {readable(near[0])}?" if near else f"known instances are {_listed(known)}"
    raise UnknownGpuError(
        f"instance {readable(name)}: none of its GPUs had a verdict {_when(start, end)}; {to_do if known else _CHECK}"
    )


def _unknown(server: Server, name: str, where: str, start: float, end: float) -> GpuError:
    """Return the error for a GPU that is not found."""
    label, labels = ("gpu", "indices") if name.isdecimal() else ("uuid", "UUIDs")
    problem = f"{_named(name)}: no verdict {_when(start, end)}"
    own = ", ".join(filter(None, (f"{label}={quoted(name)}", where)))
    if server.label_values("instance", f"{_RECORD}{{{own}}}"):
        return UnknownGpuError(f"{problem}; it had one at another time, which --at selects")
    known = server.label_values(label, f"{_RECORD}{{{where}}}", start, end)
    if not known:
        return UnknownGpuError(f"{problem}; {_CHECK}")
    near = [] if label == "gpu" else difflib.get_close_matches(name, known, n=1)
    if near:
        return UnknownGpuError(f"{problem}; did you mean {readable(near[0])}?")
    known.sort(key=lambda each: (int(each) if each.isdecimal() else 0, each))
    return UnknownGpuError(f"{problem}; known {labels} are {_listed(known)}")


def _named(name: str) -> str:
    return f"GPU {readable(name)}" if name.isdecimal() else readable(name)


def _when(start: float, end: float) -> str:
    return f"between {utc(start)} and {utc(end)}"


def _listed(names: Sequence[str]) -> str:
    return listed(names, _LONGEST)
