"""From samples to the bytes of a page, as Prometheus text or OpenMetrics.

Written here and not left to the client library because every round renders the page: about 0.3 ms for a thousand
series against the library's 6 ms (tests/benchmarks). The library's own parsers hold it to the formats in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.catalogue.metrics import FAMILIES, Family, MetricType
from stallscope.node.sampling.reading import Distribution, Sample

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ORDER = {family: position for position, family in enumerate(FAMILIES.values())}


def escape_label(value: str) -> str:
    """Escape a label value as both formats want it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def label_text(family: Family, values: tuple[str, ...], extra: str = "") -> str:
    """Return `{a="b",…}`, or nothing without labels; optional labels only if not empty."""
    pairs = [f'{name}="{escape_label(value)}"' for name, value in zip(family.labels, values, strict=False)]
    for name, value in zip(family.optional_labels, values[len(family.labels) :], strict=False):
        if value:
            pairs.append(f'{name}="{escape_label(value)}"')
    if extra:
        pairs.append(extra)
    return "{" + ",".join(pairs) + "}" if pairs else ""


class Renderer:
    """Renders pages; keeps what does not change between two of them (headers, names with labels)."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[Family, tuple[str, ...]], tuple[str, ...]] = {}
        self._headers = {
            openmetrics: {family: _header(family, openmetrics) for family in FAMILIES.values()}
            for openmetrics in (False, True)
        }
        self._sizes = {family: len(_prefix(family, ())) for family in FAMILIES.values()}

    def lines(self, samples: Iterable[Sample], max_series: int) -> tuple[dict[Family, dict[str, str]], int, int]:
        """Group samples by family into `{name{labels} : value}`.

        Returns:
            The groups, the number of series in them, and how many series over `max_series` were left out. Of two
            samples of one series the first stays.
        """
        groups: dict[Family, dict[str, str]] = {}
        known, prefixes = self._prefixes, {}
        series = dropped = 0
        for family, labels, value in samples:
            size = self._sizes[family]
            if series + size > max_series:
                dropped += size
                continue
            key = (family, labels)
            names = prefixes[key] = known.get(key) or _prefix(family, labels)
            group = groups.get(family)
            if group is None:
                group = groups[family] = {}
            if names[0] in group:
                continue
            series += size
            if isinstance(value, Distribution):
                cumulative = 0
                for name, count in zip(names, value.counts, strict=False):
                    cumulative += count
                    group[name] = str(cumulative)
                group[names[-2]] = repr(float(value.total))
                group[names[-1]] = str(value.count)
            else:
                group[names[0]] = repr(value)
        self._prefixes = prefixes  # only what this page held: names of runs and processes come and go
        return groups, series, dropped

    def render(self, groups: dict[Family, dict[str, str]], *, openmetrics: bool) -> bytes:
        """Return the page, with the families in the catalogue's order."""
        headers = self._headers[openmetrics]
        page: list[bytes] = []
        for family in sorted(groups, key=_ORDER.__getitem__):
            lines = [f"{name} {value}\n" for name, value in groups[family].items()]
            # Encoded by family: as text one wide character makes four bytes of every character of the page.
            # The kernel allows any bytes in a name: invalid characters are replaced, and the page stays valid.
            page.append((headers[family] + "".join(lines)).encode(errors="replace"))
        if openmetrics:
            page.append(b"# EOF\n")
        return b"".join(page)


def _prefix(family: Family, labels: tuple[str, ...]) -> tuple[str, ...]:
    if family.type is MetricType.HISTOGRAM:
        bounds = [repr(float(bound)) for bound in family.buckets] + ["+Inf"]
        buckets = [f"{family.name}_bucket" + label_text(family, labels, f'le="{bound}"') for bound in bounds]
        plain = label_text(family, labels)
        return (*buckets, f"{family.name}_sum{plain}", f"{family.name}_count{plain}")
    plain = label_text(family, labels)
    return tuple(name + plain for name in family.series_names)


def _header(family: Family, openmetrics: bool) -> str:
    help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    if not openmetrics:
        kind = "untyped" if family.type is MetricType.UNKNOWN else family.type.value
        return f"# HELP {family.name} {help_text}\n# TYPE {family.name} {kind}\n"
    name = family.openmetrics_name
    help_text = help_text.replace('"', '\\"')
    # The client library's process_open_fds and the like carry no unit of ours.
    unit = f"# UNIT {name} {family.unit}\n" if family.unit else ""
    return f"# TYPE {name} {family.type.value}\n{unit}# HELP {name} {help_text}\n"
