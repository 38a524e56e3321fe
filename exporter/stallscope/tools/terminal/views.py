"""The views of the screen as lines.

A view is a pure function of the screen's content, so that the live screen, plain output and tests show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stallscope.common.formatting import readable, several
from stallscope.model.view.model import Node, Run
from stallscope.tools.terminal.gpu_lines import gpu_block, gpu_table, sorted_gpus
from stallscope.tools.terminal.lines import Line, Span, line, wrapped
from stallscope.tools.terminal.node_lines import host_block, host_line, node_head, problem_lines, source_table, stale
from stallscope.tools.terminal.owner_lines import owner_name, owner_table
from stallscope.tools.terminal.run_lines import rank_table, run_block
from stallscope.tools.terminal.screen import Screen
from stallscope.tools.terminal.verdict_lines import verdict_source

_MAX_OWNERS = 20
"""Maximum number of owners that are suggested if the filter matches none."""


def title(screen: Screen, clock: str) -> Line:
    """Return the title line with totals of all nodes."""
    nodes = [each.node for each in screen.exporters if each.node is not None]
    gpus = [gpu for node in nodes for gpu in node.whole_gpus]
    down = sum(gpu.up is False for gpu in gpus)
    live = sum(not run.ended for run in screen.runs)
    return line(
        Span("stallscope top", "title"),
        f"  {clock}  {several(len(gpus), 'GPU')}",
        Span(f" ({down} down)" if down else "", "bad"),
        f"  {several(live, 'run')}",
        f"  {several(len(screen.exporters), 'node')}" if len(screen.exporters) > 1 else "",
    )


def overview(screen: Screen, sort: str, width: int) -> list[Line]:
    """Return the main values on one page: problems, host, GPUs, runs."""

    def part(node: Node) -> list[Line]:
        gpus = gpu_table(sorted_gpus(node.gpus, sort), screen.verdicts, width) or _no_gpu(screen)
        return [*host_line(node.host, width), *problem_lines(node, width), *gpus]

    lines = [*_by_node(screen, width, part), *_by_run(screen, width, lambda _: []), *_no_match(screen, width)]
    # Without runs and GPUs, no verdicts are queried.
    return [*lines, *verdict_source(screen.verdicts, width)] if screen.run_names or screen.gpu_names else lines


def gpus(screen: Screen, sort: str, width: int) -> list[Line]:
    """Return all values of each GPU."""

    def part(node: Node) -> list[Line]:
        blocks = [gpu_block(gpu, node.time, screen.verdicts, width) for gpu in sorted_gpus(node.gpus, sort)]
        return [each for block in blocks for each in (*block, ())][:-1] or _no_gpu(screen)

    return [*_by_node(screen, width, part), *_no_match(screen, width)]


def runs(screen: Screen, _sort: str, width: int) -> list[Line]:
    """Return runs with their ranks."""
    lines = _by_run(screen, width, lambda run: rank_table(run, screen.now, screen.verdicts, width))
    none = "No training run of that owner." if screen.owner else "No training run has reported yet."
    return [*(lines or wrapped(none, width, "quiet")), *_no_match(screen, width)]


def owners(screen: Screen, _sort: str, width: int) -> list[Line]:
    """Return owners with their GPUs and activity."""
    lines = _by_node(screen, width, lambda node: owner_table(node, width) or _no_gpu(screen))
    return [*lines, *_no_match(screen, width)]


def nodes(screen: Screen, _sort: str, width: int) -> list[Line]:
    """Return the hosts and their exporters' sources."""
    return _by_node(screen, width, lambda node: [*host_block(node, width), (), *source_table(node, width)])


def _no_gpu(screen: Screen) -> list[Line]:
    return [line(Span("No GPU of that owner." if screen.owner else "No GPU.", "quiet"))]


def _no_match(screen: Screen, width: int) -> list[Line]:
    """Return a hint with the known owners if the filter matches none."""
    if screen.unfiltered is None or screen.owners or not any(each.node for each in screen.exporters):
        return []
    names = sorted({owner_name(owner) for owner in screen.unfiltered.owners})
    more = len(names) - _MAX_OWNERS
    known = "; ".join(names[:_MAX_OWNERS]) + (f"; and {more} more" if more > 0 else "")
    hint = f"Known owners: {known}." if known else "The exporters report no owners."
    return wrapped(f"No owner matches '{readable(screen.owner)}'. {hint}", width, "warn")


def _by_node(screen: Screen, width: int, part: Callable[[Node], list[Line]]) -> list[Line]:
    lines: list[Line] = []
    for state in screen.exporters:
        lines += node_head(state, width)
        if state.node is not None:
            content = part(state.node)
            lines += [*(stale(content) if state.problem else content), ()]
    return lines


def _by_run(screen: Screen, width: int, part: Callable[[Run], list[Line]]) -> list[Line]:
    lines: list[Line] = []
    for run in screen.runs:
        content = [*run_block(run, screen.now, screen.verdicts, width), *part(run)]
        lines += [*(stale(content) if run.name.run in screen.stale_runs else content), ()]
    return lines


View = Callable[[Screen, str, int], list[Line]]
VIEWS: Mapping[str, View] = {"Overview": overview, "GPUs": gpus, "Runs": runs, "Owners": owners, "Nodes": nodes}
"""Views by name, in the order of the tabs."""
HELP: list[Line] = [
    line(Span("Keys", "title")),
    line("  left, right, tab   switch view"),
    line("  up, down, page     scroll; also j, k, home, end"),
    line("  s                  sort GPUs by number, activity, memory, power, owner"),
    line("  f, /               filter by part of a user, pod, namespace or job"),
    line("  p, space           pause or continue"),
    line("  ?, Escape          open or close this help"),
    line("  q                  quit"),
    (),
    line(Span("Values", "title")),
    line("  Activity   share of time with a kernel on the GPU, since the last update"),
    line("  Slowed     share of the last seconds in which clocks were throttled; see GPUs"),
    line("  Proc       number of processes that use the GPU; see Owners for their users"),
    line("  Owners     activity of their own processes, if the driver reports it"),
    line("  Phases     training time by phase, over the last quarter to half minute"),
    line("  Verdict    the costliest cause according to Prometheus, and its remedy"),
    line("  Grey       the exporter does not respond; the age is shown above"),
    line("  -          unknown: not reported by this GPU, driver or exporter"),
    line("  3 more     number of lines below: scroll"),
]
