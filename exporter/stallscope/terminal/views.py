"""What stands on the screen: each view as lines, out of what is known of the nodes and what Prometheus says of them.

A view is a function of these alone, so that the live screen, one plain print and a test show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stallscope.common.formatting import readable, several
from stallscope.terminal.gpu_lines import gpu_block, gpu_table, sorted_gpus
from stallscope.terminal.lines import Line, Span, line, wrapped
from stallscope.terminal.node_lines import host_block, host_line, node_head, source_table, stale, what_is_wrong
from stallscope.terminal.owner_lines import owner_name, owner_table
from stallscope.terminal.run_lines import rank_table, run_block
from stallscope.terminal.screen import Screen
from stallscope.terminal.verdict_lines import provenance
from stallscope.view.model import Node, Run

_MAX_OWNERS = 20
"""That are named where the one who is looked for is not there."""


def title(screen: Screen, clock: str) -> Line:
    """All nodes at first sight."""
    nodes = [each.node for each in screen.seen if each.node is not None]
    gpus = [gpu for node in nodes for gpu in node.whole_gpus]
    down = sum(gpu.up is False for gpu in gpus)
    live = sum(not run.ended for run in screen.runs)
    return line(
        Span("stallscope top", "title"),
        f"  {clock}  {several(len(gpus), 'GPU')}",
        Span(f" ({down} down)" if down else "", "bad"),
        f"  {several(live, 'run')}",
        f"  {several(len(screen.seen), 'node')}" if len(screen.seen) > 1 else "",
    )


def overview(screen: Screen, sort: str, width: int) -> list[Line]:
    """All that matters on one page: what is wrong, host, GPUs, runs."""

    def part(node: Node) -> list[Line]:
        gpus = gpu_table(sorted_gpus(node.gpus, sort), screen.verdicts, width) or _no_gpu(screen)
        return [*host_line(node.host, width), *what_is_wrong(node, width), *gpus]

    lines = [*_by_node(screen, width, part), *_by_run(screen, width, lambda _: []), *_nobody(screen, width)]
    # Where there is nothing to judge, nobody was asked.
    return [*lines, *provenance(screen.verdicts, width)] if screen.run_names or screen.gpu_names else lines


def gpus(screen: Screen, sort: str, width: int) -> list[Line]:
    """Everything about each GPU."""

    def part(node: Node) -> list[Line]:
        blocks = [gpu_block(gpu, node.time, screen.verdicts, width) for gpu in sorted_gpus(node.gpus, sort)]
        return [each for block in blocks for each in (*block, ())][:-1] or _no_gpu(screen)

    return [*_by_node(screen, width, part), *_nobody(screen, width)]


def runs(screen: Screen, _sort: str, width: int) -> list[Line]:
    """Runs with their ranks."""
    lines = _by_run(screen, width, lambda run: rank_table(run, screen.now, width))
    none = "No training run of that owner." if screen.owner else "No training run has reported."
    return [*(lines or wrapped(none, width, "quiet")), *_nobody(screen, width)]


def owners(screen: Screen, _sort: str, width: int) -> list[Line]:
    """Who holds which GPUs, and how much of them is at work."""
    lines = _by_node(screen, width, lambda node: owner_table(node, width) or _no_gpu(screen))
    return [*lines, *_nobody(screen, width)]


def nodes(screen: Screen, _sort: str, width: int) -> list[Line]:
    """The machines and their exporters' sources."""
    return _by_node(screen, width, lambda node: [*host_block(node, width), (), *source_table(node, width)])


def _no_gpu(screen: Screen) -> list[Line]:
    return [line(Span("No GPU of that owner." if screen.owner else "No GPU.", "quiet"))]


def _nobody(screen: Screen, width: int) -> list[Line]:
    """Where nobody is found who is looked for: who there is instead."""
    if screen.whole is None or screen.owners or not any(each.node for each in screen.seen):
        return []
    names = sorted({owner_name(owner) for owner in screen.whole.owners})
    more = len(names) - _MAX_OWNERS
    known = "; ".join(names[:_MAX_OWNERS]) + (f"; and {more} more" if more > 0 else "")
    said = f"GPUs and runs are of {known}." if known else "The exporters tell no owner."
    return wrapped(f"Nobody here has '{readable(screen.owner)}' in a name. {said}", width, "warn")


def _by_node(screen: Screen, width: int, part: Callable[[Node], list[Line]]) -> list[Line]:
    lines: list[Line] = []
    for seen in screen.seen:
        lines += node_head(seen, width)
        if seen.node is not None:
            told = part(seen.node)
            lines += [*(stale(told) if seen.problem else told), ()]
    return lines


def _by_run(screen: Screen, width: int, part: Callable[[Run], list[Line]]) -> list[Line]:
    lines: list[Line] = []
    for run in screen.runs:
        told = [*run_block(run, screen.now, screen.verdicts, width), *part(run)]
        lines += [*(stale(told) if run.name.run in screen.stale_runs else told), ()]
    return lines


View = Callable[[Screen, str, int], list[Line]]
VIEWS: Mapping[str, View] = {"Overview": overview, "GPUs": gpus, "Runs": runs, "Owners": owners, "Nodes": nodes}
"""By their names, in their order."""
HELP: list[Line] = [
    line(Span("Keys", "title")),
    line("  left, right, tab   another view"),
    line("  up, down, page     scroll; so do j, k, home and end"),
    line("  s                  sort GPUs by number, activity, memory, power, owner"),
    line("  f, /               only one owner's: part of a user, pod, namespace or job"),
    line("  p, space           pause, and go on"),
    line("  ?, Escape          this help, and back"),
    line("  q                  quit"),
    (),
    line(Span("What is shown", "title")),
    line("  Activity   share of the time with a kernel on the GPU, since the last look"),
    line("  Slowed     share of the last seconds in which clocks were held down: see GPUs"),
    line("  Proc       how many processes have the GPU open; Owners tells whose they are"),
    line("  Owners     their own processes' activity, where the driver tells it"),
    line("  Phases     where training spends its time, in the last quarter to half minute"),
    line("  Verdict    what Prometheus finds costs most, and what to change first"),
    line("  Grey       the exporter does not answer; how old it is stands above"),
    line("  -          not told by this GPU, driver or exporter"),
    line("  3 more     lines are below: scroll"),
]
