"""What stands on the screen: each view as lines, out of what is known of the nodes and what Prometheus says of them.

A view is a function of these alone, so that the live screen, one plain print and a test show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from stallscope.analysis.verdicts import RunName, Verdict, Verdicts
from stallscope.catalogue import OWNER_LABELS
from stallscope.gpu_losses import explained
from stallscope.phase_shares import phase_shares
from stallscope.readable import ago, count, duration, percent, readable, size, size_of
from stallscope.terminal.feed import Seen
from stallscope.terminal.lines import (
    Column,
    Line,
    Span,
    bar,
    fit,
    flow,
    line,
    or_untold,
    phase_bar,
    phase_name,
    plain,
    share,
    table,
    wrapped,
)
from stallscope.terminal.model import Gpu, Host, Node, Owner, Rank, Run, runs_of
from stallscope.verdict_words import words_of

OWNERS_SOURCE = "owners"
MAX_WRONG = 8
"""Troubles that the overview has room for."""
MAX_RANKS = 64
"""Of one run."""
_BAR = 8
_ROLES = {"critical": "bad", "warning": "warn"}
_NAME = 128
"""Characters of a name that are shown where it has a line to itself."""


@dataclass(frozen=True)
class Screen:
    """What there is to show at one moment."""

    seen: tuple[Seen, ...]
    verdicts: Verdicts | None
    """None where no Prometheus is known."""

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Of all nodes together."""
        return runs_of(rank for each in self.seen if each.node is not None for rank in each.node.ranks)

    @property
    def run_names(self) -> list[RunName]:
        """What Prometheus knows them by."""
        return [run.name for run in self.runs]

    @property
    def gpu_names(self) -> list[str]:
        """UUIDs of all GPUs."""
        return [gpu.uuid for each in self.seen if each.node is not None for gpu in each.node.gpus]

    def of(self, owner: str) -> Screen:
        """Only the GPUs and ranks of whoever has this in a name; all for nothing."""
        if not owner:
            return self
        return replace(
            self,
            seen=tuple(
                each if each.node is None else each._replace(node=_of_owner(each.node, owner.casefold()))
                for each in self.seen
            ),
        )

    @cached_property
    def stale_runs(self) -> frozenset[str]:
        """Names of runs that a node tells of whose page is an old one."""
        return frozenset(rank.run for each in self.seen if each.problem and each.node for rank in each.node.ranks)


SORTS = ("number", "activity", "memory", "power", "owner")
"""What GPUs can be sorted by."""


def title(screen: Screen, clock: str) -> Line:
    """All nodes at first sight."""
    nodes = [each.node for each in screen.seen if each.node is not None]
    gpus = [gpu for node in nodes for gpu in node.gpus if not gpu.mig]
    down = sum(gpu.up is False for gpu in gpus)
    runs = screen.runs
    live = sum(not all(rank.ended for rank in run.ranks) for run in runs)
    parts: list[Span | str] = (
        [Span("stallscope top", "title"), f"  {clock}"] if clock else [Span("stallscope top", "title")]
    )
    parts.append(f"  {_several(len(gpus), 'GPU')}")
    if down:
        parts.append(Span(f" ({down} down)", "bad"))
    parts.append(f"  {_several(live, 'run')}")
    if len(screen.seen) > 1:
        parts.append(f"  {len(screen.seen)} nodes")
    return line(*parts)


def overview(screen: Screen, sort: str, width: int) -> list[Line]:
    """All that matters on one page: what is wrong, host, GPUs, runs."""
    lines: list[Line] = []
    for seen in screen.seen:
        lines += _node_head(seen, width)
        if seen.node is None:
            continue
        part = _host_line(seen.node.host, width)
        part += _wrong(seen.node, width, MAX_WRONG)
        part += _gpu_table(_sorted(seen.node.gpus, sort), screen.verdicts, width)
        lines += [*_as_of(seen, part), ()]
    for run in screen.runs:
        block = _run_block(run, screen, width)
        lines += [*(_stale(block) if run.name.run in screen.stale_runs else block), ()]
    # Where there is nothing to judge, nobody was asked.
    return [*lines, *_provenance(screen.verdicts, width)] if screen.run_names or screen.gpu_names else lines


def gpus(screen: Screen, sort: str, width: int) -> list[Line]:
    """Everything about each GPU."""
    lines: list[Line] = []
    for seen in screen.seen:
        lines += _node_head(seen, width)
        if seen.node is None:
            continue
        now = seen.node.time or 0.0
        blocks = [_gpu_block(gpu, now, screen.verdicts, width) for gpu in _sorted(seen.node.gpus, sort)]
        part = [each for block in blocks for each in (*block, ())]
        lines += _as_of(seen, part or [line(Span("No GPU.", "quiet")), ()])
    return lines


def runs(screen: Screen, _sort: str, width: int) -> list[Line]:
    """Runs with their ranks."""
    lines: list[Line] = []
    for run in screen.runs:
        block = [*_run_block(run, screen, width), *_rank_table(run, _now(screen), width)]
        lines += [*(_stale(block) if run.name.run in screen.stale_runs else block), ()]
    return lines or [line(Span("No training run has reported.", "quiet"))]


def owners(screen: Screen, sort: str, width: int) -> list[Line]:
    """Who holds which GPUs, and how much of them is at work."""
    lines: list[Line] = []
    for seen in screen.seen:
        lines += _node_head(seen, width)
        if seen.node is None:
            continue
        split = {gpu.index for gpu in seen.node.gpus if gpu.mig}
        told = any(source.name == OWNERS_SOURCE and source.up for source in seen.node.sources)
        held: dict[str, list[tuple[Gpu, Owner | None]]] = {}
        for gpu in _sorted(seen.node.gpus, sort):
            if gpu.mig or gpu.index not in split:  # else its instances are held, not it
                for owner in gpu.owners or (None,):
                    held.setdefault(owner_name(owner) if owner else "", []).append((gpu, owner))
        rows = [
            _owner_row(name or ("nobody" if told else "not told"), each)
            for name, each in sorted(held.items(), key=lambda item: (not item[0], item[0]))
        ]
        columns = (
            Column("Owner", least=12),
            Column("GPUs", right=True),
            Column("Which", least=6, dispensable=1),
            Column("Activity"),
            Column("Memory", right=True),
        )
        lines += _as_of(seen, [*(table(columns, rows, width) if rows else [line(Span("No GPU.", "quiet"))]), ()])
    return lines


def nodes(screen: Screen, _sort: str, width: int) -> list[Line]:
    """The machines and their exporters' sources."""
    lines: list[Line] = []
    for seen in screen.seen:
        lines += _node_head(seen, width)
        if seen.node is not None:
            lines += _as_of(seen, [*_host_block(seen.node, width), (), *_source_table(seen.node, width), ()])
    return lines


View = Callable[[Screen, str, int], list[Line]]
VIEWS: Mapping[str, View] = {"Overview": overview, "GPUs": gpus, "Runs": runs, "Owners": owners, "Nodes": nodes}
"""By their names, in their order."""


HELP: list[Line] = [
    line(Span("Keys", "title")),
    line("  left, right, tab   another view"),
    line("  up, down, page     scroll"),
    line("  s                  sort GPUs by number, activity, memory, power, owner"),
    line("  f                  only what belongs to an owner: part of a user, pod, namespace or job"),
    line("  p                  pause, and go on"),
    line("  q                  quit"),
    (),
    line(Span("What is shown", "title")),
    line("  Activity   share of the time with a kernel on the GPU, since the last look"),
    line("  Slowed     share of the last seconds in which clocks were held down: see GPUs"),
    line("  Proc       processes that have the GPU open"),
    line("  Phases     where training spends its time, in the last quarter to half minute"),
    line("  Verdict    what Prometheus finds costs most, and what to change first"),
    line("  Grey       the exporter does not answer; how old it is stands above"),
    line("  -          not told by this GPU, driver or exporter"),
]


def owner_name(owner: Owner) -> str:
    """Who somebody is, in short."""
    if owner.pod:
        name = f"{owner.namespace}/{owner.pod}" if owner.namespace else owner.pod
    elif owner.slurm_job:
        name = f"{owner.user}, job {owner.slurm_job}" if owner.user else f"job {owner.slurm_job}"
    elif owner.container:
        name = f"{owner.user}, container {owner.container[:12]}" if owner.user else f"container {owner.container[:12]}"
    else:
        name = owner.user or "somebody unknown"
    return readable(name)


# Choosing


def _of_owner(node: Node, wanted: str) -> Node:
    def owned(names: Iterable[str]) -> bool:
        return any(wanted in name.casefold() for name in names)

    return replace(
        node,
        gpus=tuple(gpu for gpu in node.gpus if any(owned(owner.names) for owner in gpu.owners)),
        ranks=tuple(rank for rank in node.ranks if owned(rank.info.get(name, "") for name in OWNER_LABELS)),
    )


def _sorted(gpus: Sequence[Gpu], by: str) -> Sequence[Gpu]:
    if by == "owner":
        return sorted(gpus, key=lambda gpu: (not gpu.owners, [owner_name(owner) for owner in gpu.owners]))
    value = _SORTED_BY.get(by)
    return sorted(gpus, key=value, reverse=True) if value else gpus


def _known(number: float | None) -> float:
    """Where there is no number, less than any."""
    return -1.0 if number is None else number


_SORTED_BY: Mapping[str, Callable[[Gpu], float]] = {
    "activity": lambda gpu: _known(gpu.utilization),
    "memory": lambda gpu: _known(gpu.memory_used),
    "power": lambda gpu: _known(gpu.power),
}


# Nodes


def _node_head(seen: Seen, width: int) -> list[Line]:
    if not seen.problem:
        state = Span("" if seen.node is not None else "asking", "quiet")
        return [line(Span(readable(seen.name), "title"), "  ", state)]
    age = "" if seen.age is None else f" What is shown is {_whole(seen.age)} old."
    return wrapped(f"{readable(seen.name)}: {readable(seen.problem, 300)}.{age}", width, "bad")


def _as_of(seen: Seen, lines: list[Line]) -> list[Line]:
    return _stale(lines) if seen.problem else lines


def _stale(lines: Iterable[Line]) -> list[Line]:
    """The same, as what is no longer known."""
    return [tuple(Span(span.text, "stale") for span in each) for each in lines]


def _host_line(host: Host, width: int) -> list[Line]:
    items = []
    if host.cpu is not None:
        busiest = "" if host.busiest_cpu is None else f", busiest {share(host.busiest_cpu).strip()}"
        items.append(line("CPU ", *bar(host.cpu, _BAR), f" {share(host.cpu)}{busiest}"))
    if host.memory_used is not None and host.memory_total:
        used = host.memory_used / host.memory_total
        items.append(line(f"memory {share(used).strip()} of {size(host.memory_total)}"))
    if host.pressure:
        waits = ", ".join(
            f"{_RESOURCES.get(name, readable(name))} {share(each).strip()}" for name, each in host.pressure.items()
        )
        items.append(line(f"waiting for {waits}"))
    return flow(items, width)


_RESOURCES = {"cpu": "CPU", "io": "I/O"}


def _host_block(node: Node, width: int) -> list[Line]:
    host = node.host
    items = []
    if host.cpus is not None:
        items.append(line(f"{_several(int(host.cpus), 'processor')}"))
    if host.iowait is not None:
        items.append(line(f"idle for I/O {share(host.iowait).strip()}"))
    if host.shared_memory_used is not None and host.shared_memory_total:
        items.append(line(f"shared memory {_of(host.shared_memory_used, host.shared_memory_total)}"))
    if host.read is not None and host.written is not None:
        items.append(line(f"disks read {size(host.read)}/s, write {size(host.written)}/s"))
    if host.received is not None and host.sent is not None:
        items.append(line(f"network in {size(host.received)}/s, out {size(host.sent)}/s"))
    items += [line(f"{readable(name, 24)} busy {share(busy).strip()}") for name, busy in sorted(host.disks.items())]
    if node.version:
        items.append(line(Span(f"Stallscope {readable(node.version)}", "quiet")))
    return [*_host_line(host, width), *flow(items, width)]


def _source_table(node: Node, width: int) -> list[Line]:
    rows = [
        (
            line(readable(source.name)),
            line(Span("up", "good") if source.up else Span("down", "bad")),
            or_untold(_since(node.time, source.last_success)),
            line(count(source.failures)),
        )
        for source in node.sources
    ]
    columns = (Column("Source", least=8), Column("State"), Column("Last reading"), Column("Failures", right=True))
    return table(columns, rows, width)


def _wrong(node: Node, width: int, room: int) -> list[Line]:
    """What is not as it should be, as far as a node itself tells."""
    found = list(_troubles(node))
    lines = [each for trouble in found[:room] for each in wrapped(trouble, width, "bad")]
    return [*lines, line(Span(f"and {len(found) - room} more", "bad"))] if len(found) > room else lines


def _troubles(node: Node) -> Iterator[str]:
    for gpu in node.gpus:
        if gpu.up is False:
            when = _since(node.time, gpu.last_reading)
            last = f" Last reading {when}." if when else ""
            yield f"{_gpu_name(gpu)} is down ({readable(gpu.reason or 'unknown')}). {explained(gpu.reason)}{last}"
    for source in node.sources:
        if not source.up:
            when = _since(node.time, source.last_success)
            yield f"Source {readable(source.name)} is down (last reading {when or 'never'}): see the exporter's log."
    if node.series_dropped:
        yield f"{count(node.series_dropped)} series were left out at the exporter's limits."


# GPUs


_GPU_COLUMNS = (
    Column("GPU"),
    Column("Activity"),
    Column("Memory", right=True),
    Column("Power", right=True, dispensable=3),
    Column("Temp", right=True, dispensable=4),
    Column("MHz", right=True, dispensable=6),
    Column("Slowed", right=True, dispensable=5),
    Column("Proc", right=True, dispensable=7),
    Column("Owner", least=8, dispensable=2),
)
_VERDICT_COLUMN = Column("Verdict", least=20, dispensable=8)


def _gpu_table(gpus: Sequence[Gpu], verdicts: Verdicts | None, width: int) -> list[Line]:
    if not gpus:
        return [line(Span("No GPU.", "quiet"))]
    columns: tuple[Column, ...] = _GPU_COLUMNS
    rows: list[tuple[Line, ...]] = [_gpu_row(gpu) for gpu in gpus]
    if verdicts is not None:
        columns = (*columns, _VERDICT_COLUMN)
        rows = [(*row, _gpu_verdict(gpu, verdicts)) for row, gpu in zip(rows, gpus, strict=True)]
    head, *lines = table(columns, rows, width)
    if verdicts is None or _VERDICT_COLUMN.title in plain(head):
        return [head, *lines]
    shown = [head]
    # No room for what is well; what is wrong with a GPU itself stands beneath it.
    for gpu, row in zip(gpus, lines, strict=True):
        shown.append(row)
        verdict = verdicts.gpus.get(gpu.uuid)
        if verdict is not None and not (words := words_of(verdict)).of_run and words.severity:
            shown += _verdict_lines(verdict, width, "    ")
    return shown


def _gpu_row(gpu: Gpu) -> tuple[Line, ...]:
    name = line(f"{' ' if gpu.mig else ''}{readable(gpu.index, 8)}{f' {readable(gpu.mig, 16)}' if gpu.mig else ''}")
    if gpu.up is not True:
        state = line(Span(f"down {readable(gpu.reason)}", "bad") if gpu.up is False else Span("not read yet", "quiet"))
        return (name, fit(state, _BAR + len(share(1.0)) + 1), *[line("")] * 6, _owner_cell(gpu))
    return (
        name,
        _drawn(gpu.utilization),
        or_untold(_memory(gpu)),
        or_untold(_power(gpu)),
        or_untold(_temperature(gpu)),
        or_untold(None if gpu.clock is None else f"{gpu.clock / 1e6:.0f}"),
        line(Span(share(max(gpu.throttled.values())), "warn")) if gpu.throttled else or_untold(None),
        or_untold(None if gpu.processes is None else str(gpu.processes)),
        _owner_cell(gpu),
    )


def _owner_cell(gpu: Gpu) -> Line:
    return or_untold(", ".join(owner_name(owner) for owner in gpu.owners) or None)


def _memory(gpu: Gpu) -> str | None:
    if gpu.memory_used is None or gpu.memory_total is None:
        return None
    return _of(gpu.memory_used, gpu.memory_total)


def _power(gpu: Gpu) -> str | None:
    if gpu.power is None:
        return None
    if gpu.power_limit is None:
        return f"{gpu.power:.0f} W"
    limit = f"{gpu.power_limit:.0f}"
    return f"{gpu.power:{len(limit)}.0f}/{limit} W"  # as wide at rest as at work, so that no column moves


def _temperature(gpu: Gpu) -> str | None:
    return None if gpu.temperature is None else f"{gpu.temperature:.0f} °C"


def _gpu_verdict(gpu: Gpu, verdicts: Verdicts) -> Line:
    verdict = verdicts.gpus.get(gpu.uuid)
    if verdict is None:
        return or_untold(None)
    words = words_of(verdict)
    cost = f", {percent(verdict.share)}" if words.cost else ""
    return line(Span(f"{readable(words.title)}{cost}", _ROLES.get(words.severity or "", "")))


def _gpu_block(gpu: Gpu, now: float, verdicts: Verdicts | None, width: int) -> list[Line]:
    indent = "    "
    head = [line(Span(_gpu_name(gpu), "title")), line(readable(gpu.model)), line(Span(readable(gpu.uuid), "quiet"))]
    lines = flow(head, width)
    if gpu.up is not True:
        last = _since(now, gpu.last_reading)
        text, role = "Not read yet.", ""
        if gpu.up is False:
            text, role = f"Down: {readable(gpu.reason or 'unknown')}. {explained(gpu.reason)}", "bad"
        lines += wrapped(text + (f" Last reading {last}." if last else ""), width, role, indent)
    else:
        lines += flow(_gpu_activity(gpu), width, indent) + flow(_gpu_state(gpu), width, indent)
    if gpu.owners:
        held = ", ".join(
            owner_name(owner) + (f" ({size(owner.memory)})" if owner.memory is not None else "") for owner in gpu.owners
        )
        lines += wrapped(f"held by {held}", width, indent=indent)
    verdict = verdicts.gpus.get(gpu.uuid) if verdicts is not None else None
    if verdict is not None and (words := words_of(verdict)).of_run:
        # The run says what to change, perhaps on another GPU.
        said = f"Verdict of its run: {readable(words.title)}, {percent(verdict.share)}."
        lines += wrapped(said, width, "quiet", indent)
    elif verdict is not None:
        lines += _verdict_lines(verdict, width, indent)
    return lines


def _gpu_activity(gpu: Gpu) -> list[Line]:
    items = []
    for name, ratio in (
        ("activity", gpu.utilization),
        ("SMs", gpu.sm_active),
        ("memory bandwidth", gpu.memory_bandwidth),
    ):
        if ratio is not None:
            items.append(line(f"{name} ", *bar(ratio, _BAR), f" {share(ratio)}"))
    if gpu.processes is not None:
        items.append(line(_several(gpu.processes, "process", "processes")))
    return items


def _gpu_state(gpu: Gpu) -> list[Line]:
    items = [line(each) for each in (_power(gpu), _temperature(gpu)) if each is not None]
    memory = _memory(gpu)
    if memory is not None:
        items.insert(0, line(f"memory {memory}"))
    if gpu.clock is not None:
        most = "" if gpu.clock_max is None else f" of {gpu.clock_max / 1e6:.0f}"
        items.append(line(f"{gpu.clock / 1e6:.0f}{most} MHz"))
    items += [
        line(Span(f"slowed by {readable(reason)} {share(ratio).strip()} of the time", "warn"))
        for reason, ratio in sorted(gpu.throttled.items())
    ]
    return items


def _owner_row(name: str, held: Sequence[tuple[Gpu, Owner | None]]) -> tuple[Line, ...]:
    told = [gpu.utilization for gpu, _ in held if gpu.utilization is not None]
    memory = [owner.memory for _, owner in held if owner is not None and owner.memory is not None]
    mean = sum(told) / len(told) if told else None
    return (
        line(Span(name, "quiet" if held[0][1] is None else "")),
        line(str(len(held))),
        line(", ".join(readable(gpu.index, 8) + (f" {readable(gpu.mig, 16)}" if gpu.mig else "") for gpu, _ in held)),
        _drawn(mean),
        or_untold(size(sum(memory)) if memory else None),
    )


def _gpu_name(gpu: Gpu) -> str:
    return f"GPU {readable(gpu.index, 8)}" + (f" MIG {readable(gpu.mig, 16)}" if gpu.mig else "")


# Runs


def _run_block(run: Run, screen: Screen, width: int) -> list[Line]:
    indent = "  "
    lines = flow(_run_head(run), width)
    lines += flow(_run_facts(run, _now(screen)), width, indent)
    shares = phase_shares(run.phases)
    if shares:
        drawn, rest = phase_bar(shares, width - len(indent))
        since = "since the start" if run.since is None else f"in the last {_whole(run.since)}"
        lines.append((Span(indent), *drawn))
        lines += wrapped(f"Phases {since}{f'; besides: {rest}' if rest else ''}.", width, "quiet", indent)
    if screen.verdicts is not None:
        lines += _run_verdict(run, screen.verdicts, width, indent)
    return lines


def _run_head(run: Run) -> list[Line]:
    states = ", ".join(
        readable(state, 24) if len(run.states) == 1 else f"{number} {readable(state, 24)}"
        for state, number in sorted(run.states.items())
    )
    bad = bool(run.states.keys() & {"failed", "lost"})
    of = f" of {run.world_size}" if run.world_size > len(run.ranks) else ""
    doing = ", ".join(readable(each, 24) for each in run.activities)
    return [
        line(Span(readable(run.name.run, _NAME), "title")),
        line(Span(states, "bad" if bad else "good" if "running" in run.states else "")),
        line(f"{len(run.ranks)}{of} {'rank' if max(len(run.ranks), run.world_size) == 1 else 'ranks'}"),
        *([line(doing)] if doing else []),
    ]


def _run_facts(run: Run, now: float) -> list[Line]:
    facts = []
    if run.step is not None:
        progress = ""
        if run.steps_planned is not None and run.steps_planned > 0:
            ratio = min(1.0, max(0.0, run.step / run.steps_planned))
            left = run.seconds_left
            to_go = f", {duration(round(max(60.0, left), -1))} left" if left and ratio < 1 else ""
            progress = f" of {count(run.steps_planned)}, {int(100 * ratio)} %{to_go}"
        facts.append(f"step {count(run.step)}{progress}")
    if run.step_seconds is not None:
        facts.append(f"{duration(run.step_seconds)} a step")
    for rate, what in ((run.samples_per_second, "samples"), (run.tokens_per_second, "tokens")):
        if rate is not None:
            facts.append(f"{_rate(rate)} {what}/s")
    if run.epoch is not None:
        facts.append(f"epoch {run.epoch:,.4g}")
    if run.loss is not None:
        facts.append(f"loss {run.loss:.4g}")
    restarts = sum(rank.restarts for rank in run.ranks)
    if restarts:
        facts.append(f"{_several(int(restarts), 'restart')}")
    ages = [f"{what} {ago(now - when)}" for when, what in ((run.last_step, "step"), (run.last_push, "report")) if when]
    if ages:
        facts.append(f"last {', '.join(ages)}")
    return [line(fact) for fact in facts]


def _run_verdict(run: Run, verdicts: Verdicts, width: int, indent: str) -> list[Line]:
    if run.name in verdicts.ambiguous:
        text = "Verdict: unknown. Prometheus knows several runs of this name, and does not judge them alike."
        return wrapped(text, width, indent=indent)
    verdict = verdicts.runs.get(run.name)
    if verdict is not None:
        return _verdict_lines(verdict, width, indent, with_gpus=any(rank.gpus for rank in run.ranks))
    if verdicts.age is None or all(rank.ended for rank in run.ranks):
        return []
    return wrapped("Verdict: none; Prometheus does not know this run, or not for long.", width, "quiet", indent)


def _verdict_lines(verdict: Verdict, width: int, indent: str, *, with_gpus: bool = True) -> list[Line]:
    words = words_of(verdict, with_gpus=with_gpus)
    said = " ".join(each for each in (f"Verdict: {readable(words.title)}.", words.cost, words.remedy) if each)
    healthy = "good" if verdict.cause == "healthy" else ""
    return wrapped(said, width, _ROLES.get(words.severity or "", healthy), indent)


def _rank_table(run: Run, now: float, width: int) -> list[Line]:
    """Its ranks, those in trouble first to be shown."""
    shown = sorted(run.ranks, key=lambda rank: (rank.state not in ("lost", "failed"), rank.number))[:MAX_RANKS]
    rows = [_rank_row(rank, now) for rank in sorted(shown, key=lambda rank: rank.number)]
    columns = (
        Column("Rank", right=True),
        Column("GPU", right=True, dispensable=3),
        Column("State", least=6),
        Column("Step", right=True),
        Column("Step time", right=True, dispensable=1),
        Column("Most time in", dispensable=2),
        Column("Report", right=True, dispensable=4),
    )
    more = len(run.ranks) - len(shown)
    rest = (
        [line(Span(f"  {count(more)} more ranks are not shown; the metrics have them all.", "quiet"))] if more else []
    )
    return [*table(columns, rows, width, "  "), *rest]


def _rank_row(rank: Rank, now: float) -> tuple[Line, ...]:
    shares = phase_shares(rank.recent.phases)
    most = max(shares, key=lambda each: each.share, default=None)
    role = "bad" if rank.state in ("lost", "failed") else ""
    return (
        line(str(rank.number)),
        or_untold(", ".join(readable(each, 8) for each in rank.gpus) or None),
        line(Span(readable(rank.state, 24) or "-", role)),
        or_untold(None if rank.step is None else count(rank.step)),
        or_untold(None if rank.step_seconds is None else duration(rank.step_seconds)),
        or_untold(None) if most is None else (*bar(most.share, _BAR), Span(f" {share(most.share)} {phase_name(most)}")),
        or_untold(_since(now, rank.last_push)),
    )


# Verdicts


def _provenance(verdicts: Verdicts | None, width: int) -> list[Line]:
    """Where verdicts come from and how old they are, or why there are none."""
    if verdicts is None:
        return wrapped("No verdicts: --prometheus.url names a Prometheus with Stallscope's rules.", width, "quiet")
    if verdicts.problem:
        rest = "No verdict is known" if verdicts.age is None else f"The verdicts shown were told {ago(verdicts.age)}"
        return wrapped(f"No newer verdicts: {readable(verdicts.problem, 300)}. {rest}.", width, "bad")
    told = "asked for" if verdicts.age is None else f"told {ago(verdicts.age)}"
    return wrapped(f"Verdicts: {readable(verdicts.server)}, {told}.", width, "quiet")


# Words


def _now(screen: Screen) -> float:
    """The newest time on any page."""
    return max(
        (each.node.time for each in screen.seen if each.node is not None and each.node.time is not None), default=0.0
    )


def _whole(seconds: float) -> str:
    """A time in no more than whole seconds."""
    return duration(round(seconds)) if seconds >= 9.5 else f"{seconds:.0f} s"


def _since(now: float | None, when: float | None) -> str | None:
    return None if now is None or when is None else ago(now - when)


def _of(used: float, total: float) -> str:
    part, whole = size_of(used, total).split(" of ")
    return f"{part:>{whole.index(' ')}}/{whole}"


def _rate(number: float) -> str:
    return count(number) if number >= 100 else f"{number:.3g}"


def _drawn(ratio: float | None) -> Line:
    """A share as a bar and a number."""
    return or_untold(None) if ratio is None else (*bar(ratio, _BAR), Span(f" {share(ratio)}"))


def _several(number: int, what: str, plural: str = "") -> str:
    return f"{number:,} {what if number == 1 else plural or what + 's'}"
