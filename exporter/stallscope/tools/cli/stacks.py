"""Show where each rank of a job is in its code, which ranks differ, and which lines take the most time."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stallscope.common.address import Address, parse_address
from stallscope.common.formatting import ago, percent, readable, several, without_password
from stallscope.model.clients.address import default_exporter
from stallscope.model.hangs import collective_counts, flight_recorder, nccl_ras, rank_files
from stallscope.model.hangs.collective_counts import Evidence
from stallscope.model.hangs.conclusion import Conclusion, by_stacks
from stallscope.model.view.line_groups import LineGroup, PhaseLines, grouped_lines
from stallscope.model.view.stack_groups import Grouping, grouped, sentence
from stallscope.tools.cli import _requests, _stack_files
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._progress import add_flag, each_shown, progress
from stallscope.tools.cli._py_spy import Unreadable, threads_of
from stallscope.training.protocol import rank_stacks
from stallscope.training.protocol.rank_stacks import RankStacks
from stallscope.training.protocol.stack_request import MAX_INTERVAL
from stallscope.training.protocol.stacks import MAX_SAMPLES, Stack, is_shim
from stallscope.training.protocol.vocabulary import MAX_CODE_LINES

_PATH = "/api/v1/stacks"
_POLL_SECONDS = 0.5
_SAMPLES = 5
_INTERVAL = 1.0
_EXTRA_SECONDS = 5.0
"""Seconds to wait beyond the time that the exporters estimate."""
_MAX_FRAMES = 8
"""Frames of a group that are printed."""
_MIN_DIFFERENCE = 0.1
"""Smallest difference between the shares of two ranks that is shown."""
_TEXT_LENGTH = 200
_ON, _OFF = "on", "off"
_NO_EXPORTER = "not a Stallscope exporter"


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "stacks",
        usage="stallscope stacks RUN [flags]\n       stallscope stacks --pid PID [--json]\n       "
        "stallscope stacks --flight-recorder FOLDER [--json]\n       "
        "stallscope stacks --stack-files FOLDER [--json]",
        description="Group the ranks of a run by their Python stacks, and name the ranks that differ from the others. "
        "A rank at a standstill has stored its stack already. A running rank takes samples on request, within about "
        "ten seconds. With several samples, ranks that differ in most of them are named. With --lines, each running "
        "rank samples its stack for ten seconds, 20 times a second, and the lines of code that take the most time of "
        "each phase are shown. Only file names, line numbers and function names leave the training. On this node, "
        "users can see the stacks of their own runs; root, the exporter's user and members of its "
        "--web.control-group can see those of every run. Requests from another node need --web.allow-remote-reports "
        "and a user or client certificate in the exporter's --web.config.file. Ranks must report through the "
        "exporter's UNIX socket. With --pid, py-spy reads the stacks of one process, which needs no shim, but the "
        "permission to attach to it. Without a RUN, files that a hung job left are read, on any machine: dumps of "
        "PyTorch's flight recorder, and stacks that py-spy or faulthandler wrote. The output begins with the ranks "
        "that the others wait for.",
        examples={
            "stallscope stacks resnet50": "a run on this node",
            "stallscope stacks llama --exporter.url node1:19400 --exporter.url node2:19400": "a run on two nodes",
            "stallscope stacks resnet50 --samples 5 --interval 10": "a rank that is slow now and then",
            "stallscope stacks resnet50 --lines": "the lines of code that take the most time of each phase",
            "stallscope stacks llama --flight-recorder /dumps": "also the dumps of PyTorch's flight recorder",
            "stallscope stacks --flight-recorder /dumps": "after the hang, without the run",
            "stallscope stacks --stack-files /stacks": "files of py-spy or faulthandler, one for each rank",
            "stallscope stacks --pid 4242": "a process without the shim; needs py-spy",
        },
        notes="A rank with STALLSCOPE_STACKS=0 in its environment takes no samples.\n\nExit status: 0 if stacks or "
        "lines are shown, 1 if an exporter refused or no rank has any, 2 for an invalid command line. Without a RUN: 0 "
        "if ranks stand out, 1 if none does or files can't be read.",
    )
    made.add_argument("run", metavar="RUN", nargs="?", help="the run's name, as in the label run of its metrics")
    made.add_argument("--pid", type=_pid, metavar="PID", help="read this process with py-spy instead of a run")
    made.add_argument(
        "--samples",
        type=_samples,
        metavar="NUMBER",
        help=f"stacks that each running rank takes, 0 to {MAX_SAMPLES}; 0 shows only stacks that are stored already "
        f"(default: {_SAMPLES})",
    )
    made.add_argument(
        "--interval",
        type=_interval,
        metavar="SECONDS",
        help=f"mean seconds between two samples (default: {_INTERVAL:g})",
    )
    made.add_argument(
        "--lines",
        action="store_true",
        help=f"show up to {MAX_CODE_LINES} lines of code of each phase, with their share of its time",
    )
    made.add_argument(
        "--nccl",
        type=_service,
        default=_OFF,
        metavar="HOST:PORT",
        help="address of NCCL's RAS service, which counts the operations of each rank; on: the address in "
        f"{nccl_ras.VARIABLE}, or {nccl_ras.DEFAULT}, if a rank is at a standstill (default: off, because a query "
        "has crashed training with some versions of NCCL)",
    )
    made.add_argument(
        "--flight-recorder",
        type=Path,
        metavar="FOLDER",
        help="folder of the dumps of PyTorch's flight recorder, or the prefix of their paths; with or without a RUN",
    )
    made.add_argument(
        "--stack-files",
        type=Path,
        metavar="FOLDER",
        help="folder of files with the stack of each rank, as text or JSON of py-spy dump or as text of faulthandler; "
        "the name of a file contains the rank, as in rank_3.txt",
    )
    add_flag(made)
    _requests.add_flags(made, "show")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
    made = parser()
    parsed = made.parse_args(arguments)
    has_files = parsed.flight_recorder is not None or parsed.stack_files is not None
    if (parsed.run is not None and parsed.pid is not None) or (parsed.run is parsed.pid is None and not has_files):
        made.error("expected a RUN, --pid, --flight-recorder or --stack-files")
    if parsed.stack_files is not None and parsed.run is not None:
        made.error("--stack-files: takes no RUN; omit one of them")
    if parsed.pid is not None and has_files:
        made.error("--pid: takes none of --flight-recorder and --stack-files; omit them")
    if parsed.lines and not (parsed.pid is parsed.samples is parsed.interval is None):
        made.error("--lines: takes none of --pid, --samples and --interval; omit them")
    if parsed.pid is not None:
        return _show_process(parsed.pid, as_json=parsed.json)
    if parsed.run is None:
        of_run = {
            "--samples": parsed.samples is not None,
            "--interval": parsed.interval is not None,
            "--lines": parsed.lines,
            "--nccl": parsed.nccl != _OFF,
            "--rank": parsed.rank,
            "--exporter.url": parsed.exporter,
        }
        if given := [flag for flag, is_given in of_run.items() if is_given]:
            made.error(f"{given[0]}: expected a RUN; name it or omit the flag")
        return _show_files(parsed)
    nodes = [_Node(address, parsed) for address in parsed.exporter or [default_exporter()]]
    for node in nodes:
        node.begin()
    _wait(nodes, "lines of code" if parsed.lines else "stacks", parsed.quiet)
    is_shown = (_show_lines if parsed.lines else _show_stacks)(parsed, nodes)
    for node in nodes:
        if node.problem:
            print(f"stallscope stacks: {node.shown}: {node.problem}", file=sys.stderr)
    return int(not is_shown or any(node.problem for node in nodes))


def _show_stacks(parsed: argparse.Namespace, nodes: Sequence[_Node]) -> bool:
    """Print the groups of ranks; return whether there are any."""
    ranks = {rank.rank: rank for node in nodes for rank in node.ranks}
    found = grouped({number: rank.samples for number, rank in ranks.items()})
    evidence, problems = _evidence(parsed, ranks)
    if parsed.json:
        print(json.dumps(_document(parsed.run, found, nodes, evidence), indent=2))
    else:
        now = max([node.time for node in nodes])
        print("\n".join(_group_lines(found, ranks, now, parsed.samples != 0)) if ranks else "no rank is known")
        if summary := sentence(found):
            print(f"\n{readable(summary, 10 * _TEXT_LENGTH)}")
        for each in evidence:
            print("\n".join(["", *_evidence_lines(each, found.odd)]))
    _print_problems(problems)
    return bool(found.groups)


def _show_files(parsed: argparse.Namespace) -> int:
    """Print the ranks that the others wait for, from the files that a job left; return the exit status."""
    evidence, problems = _evidence(parsed, {})
    found = Grouping((), None, ())
    try:
        if parsed.stack_files is not None:
            files = _stack_files.read(parsed.stack_files)
            found = grouped({rank: [stack] for rank, stack in files.stacks.items()})
            problems += [f"--stack-files: {problem}" for problem in files.problems]
    except rank_files.Unreadable as problem:
        problems.append(f"--stack-files: {problem}")
    conclusions = [collective_counts.concluded(each) for each in evidence] + [by_stacks(found)]
    # The conclusion that names fewer ranks comes first: a rank that waits for another one is behind as well.
    shown = sorted(filter(None, conclusions), key=lambda each: (not each.kind, len(each.ranks)))
    if parsed.json:
        document = _document("", found, [], evidence)
        del document["run"], document["exporters"]
        print(json.dumps({"conclusion": shown[0].document() if shown else None, **document}, indent=2))
    else:
        for conclusion in shown:
            print("\n".join(_conclusion_lines(conclusion)))
        for each in evidence:
            print("\n".join(["", *collective_counts.lines(each, found.odd)]))
        if found.groups:
            print("\n".join(["", *_stack_lines(found)]))
    _print_problems(problems)
    return int(not shown or not shown[0].kind)


def _evidence_lines(evidence: Evidence, odd: Sequence[int]) -> Iterator[str]:
    conclusion = collective_counts.concluded(evidence)
    if conclusion is not None:
        yield from _conclusion_lines(conclusion)
    yield from collective_counts.lines(evidence, odd)


def _conclusion_lines(conclusion: Conclusion) -> Iterator[str]:
    yield readable(conclusion.sentence, 10 * _TEXT_LENGTH)
    for reason in conclusion.reasons:
        yield f"  {readable(reason, 10 * _TEXT_LENGTH)}"


def _print_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        print(f"stallscope stacks: {readable(problem, 10 * _TEXT_LENGTH)}", file=sys.stderr)


def _show_lines(parsed: argparse.Namespace, nodes: Sequence[_Node]) -> bool:
    """Print the lines of each phase; return whether there are any."""
    answered = {rank.rank: rank for node in nodes for rank in node.ranks if node.has_answered(rank)}
    found = grouped_lines({number: rank.lines or {} for number, rank in answered.items()})
    silent = {rank.rank: rank for node in nodes for rank in node.ranks if rank.rank not in answered}
    if parsed.json:
        phases = [{**phase._asdict(), "groups": [_group_document(group) for group in phase.groups]} for phase in found]
        print(json.dumps({"run": parsed.run, "phases": phases, "exporters": _exporters(nodes)}, indent=2))
        return bool(found)
    texts = [line for phase in found for line in _phase_lines(phase)]
    if answered and not found:
        texts.append(f"{_rank_ranges(sorted(answered))}: no line of the program was sampled")
    texts += _reasons(silent, "lines of code")
    print("\n".join(texts) if texts else "no rank is known")
    return bool(found)


def _evidence(parsed: argparse.Namespace, ranks: dict[int, RankStacks]) -> tuple[list[Evidence], list[str]]:
    """Return the evidence of NCCL and PyTorch about collective operations, and the problems with reading it."""
    found, problems = [], []
    try:
        if parsed.nccl != _OFF:
            found.append(_nccl(parsed.nccl, ranks))
    except nccl_ras.Unreadable as problem:
        problems.append(f"--nccl: {problem}")
    try:
        if parsed.flight_recorder is not None:
            dumps = flight_recorder.read(
                parsed.flight_recorder, shown=lambda files: each_shown(files, "Reading dumps", quiet=parsed.quiet)
            )
            found.append(dumps)
            problems += [f"--flight-recorder: {problem}" for problem in dumps.problems]
    except rank_files.Unreadable as problem:
        problems.append(f"--flight-recorder: {problem}")
    return found, problems


def _nccl(service: Address | str, ranks: dict[int, RankStacks]) -> Evidence:
    """Return NCCL's evidence; from the default address only at a standstill, and only if it belongs to the run.

    With some versions of NCCL, a query has crashed training processes that were creating a communicator.

    Raises:
        nccl_ras.Unreadable: there is no evidence.
    """
    by_default = isinstance(service, str)
    address = _default_service() if isinstance(service, str) else service
    if by_default and not any(rank.standstill for rank in ranks.values()):
        raise nccl_ras.Unreadable(f"not queried while no rank is at a standstill; to query it, set --nccl={address}")
    evidence = nccl_ras.read(address)
    sizes = {rank.world_size for rank in ranks.values()}
    pids = {number: rank.pid for number, rank in ranks.items() if rank.pid is not None}
    of_run = collective_counts.of_run(evidence, sizes.pop(), pids) if len(sizes) == 1 else None
    if of_run is None and by_default:
        raise nccl_ras.Unreadable(f"the job at {address} is not known to be this run; to show it, set --nccl={address}")
    return of_run or evidence


def _default_service() -> Address:
    text = os.environ.get(nccl_ras.VARIABLE) or nccl_ras.DEFAULT
    try:
        return parse_address(text)
    except ValueError as expected:
        raise nccl_ras.Unreadable(f"{nccl_ras.VARIABLE}: expected {expected}, got {text!r}") from None


def _show_process(pid: int, *, as_json: bool) -> int:
    try:
        threads = threads_of(pid)
    except Unreadable as problem:
        print(f"stallscope stacks: {problem}", file=sys.stderr)
        return 1
    if as_json:
        documents = [{**thread._asdict(), "stack": [frame._asdict() for frame in thread.stack]} for thread in threads]
        print(json.dumps({"pid": pid, "threads": documents}, indent=2))
        return 0
    for thread in threads:
        states = ["runs" if thread.is_active else "waits", *(["has the GIL"] if thread.has_gil else [])]
        print(f"{readable(thread.name, _TEXT_LENGTH)} ({', '.join(states)}):")
        for line in _frame_lines(thread.stack):
            print(line)
    return 0


class _Node:
    """An exporter, and the ranks that report to it."""

    def __init__(self, address: str, parsed: argparse.Namespace) -> None:
        self.shown = without_password(address)
        self.problem = ""
        self.ranks: list[RankStacks] = []
        self.time = 0.0
        self.deadline = 0.0
        self._address = address
        self._certificate = parsed.certificate
        self._lines = parsed.lines
        self._samples = _SAMPLES if parsed.samples is None else parsed.samples
        self._request = {
            "run": parsed.run,
            "ranks": parsed.rank,
            "interval": parsed.interval or _INTERVAL,
            "lines": parsed.lines,
        }
        self._requested_at = 0.0

    def begin(self) -> None:
        """Read the stored stacks, and request new ones from ranks that are not at a standstill."""
        try:
            self.read()
            if self._lines and not all(rank.has_lines for rank in self.ranks):
                raise _requests.Refused("this exporter can't request lines of code; update it")
            if self._samples and any(rank.takes_requests for rank in self.ranks):
                answer = self._post(self._samples)
                self._requested_at = _number(answer, "time")
                self.problem = readable(str(answer.get("problem", "")), _TEXT_LENGTH)
                self.deadline = time.monotonic() + min(_number(answer, "seconds"), 3600.0) + _EXTRA_SECONDS
        except _requests.Refused as refused:
            self.problem = str(refused)

    def read(self) -> None:
        """Read the stored stacks."""
        answer = self._post(0)
        ranks = answer.get("ranks")
        if not isinstance(ranks, list):
            raise _requests.Refused(_NO_EXPORTER)
        try:
            self.ranks = [rank_stacks.parse(rank) for rank in ranks]
        except ValueError:
            raise _requests.Refused(_NO_EXPORTER) from None
        self.time = _number(answer, "time")

    def is_waiting(self) -> bool:
        """Read the stacks again; return whether a rank has not yet returned the requested ones."""
        if time.monotonic() >= self.deadline or self.problem:
            return False
        try:
            self.read()
        except _requests.Refused as refused:
            self.problem = str(refused)
        return any(rank.takes_requests and not self.has_answered(rank) for rank in self.ranks)

    def has_answered(self, rank: RankStacks) -> bool:
        """Return whether a rank has returned the requested stacks or lines."""
        if (rank.taken or 0.0) < self._requested_at or not self._requested_at:
            return False
        return rank.lines is not None if self._lines else len(rank.samples) >= self._samples

    def _post(self, samples: int) -> dict[str, Any]:
        return _requests.post(self._address, _PATH, {**self._request, "samples": samples}, self._certificate, "stack")


def _wait(nodes: Iterable[_Node], what: str, quiet: bool) -> None:
    waiting = [node for node in nodes if node.is_waiting()]
    seconds = max([node.deadline - time.monotonic() for node in waiting], default=0.0)
    with progress(f"Waiting up to {seconds:.0f} s for {what}", quiet=quiet) as advance:
        while waiting := [node for node in waiting if node.is_waiting()]:
            time.sleep(_POLL_SECONDS)
            advance()


def _number(answer: dict[str, Any], key: str) -> float:
    value = answer.get(key)
    if not isinstance(value, (int, float)):
        raise _requests.Refused(_NO_EXPORTER)
    return float(value)


def _group_lines(found: Grouping, ranks: dict[int, RankStacks], now: float, requested: bool) -> Iterator[str]:
    shown = {rank for group in found.groups for rank in group.ranks}
    silent = {rank: now - ranks[rank].reported for rank in shown if ranks[rank].standstill}
    yield from _stack_lines(found, silent)
    yield from _reasons({number: rank for number, rank in ranks.items() if number not in shown}, "stack", requested)


def _stack_lines(found: Grouping, silent: Mapping[int, float] = {}) -> Iterator[str]:
    """Return the groups of ranks with their stacks.

    Args:
        found: the groups.
        silent: seconds since the last report of each rank at a standstill.
    """
    for group in found.groups:
        marks = " (differs from the others)" if set(group.ranks) <= set(found.odd) else ""
        yield f"{_rank_ranges(group.ranks)}{marks}:"
        if silent.keys() >= {*group.ranks}:
            yield f"  last report {ago(max(silent[rank] for rank in group.ranks))}"
        yield from _frame_lines(group.stack)


def _reasons(ranks: Mapping[int, RankStacks], what: str, requested: bool = True) -> Iterator[str]:
    """Return the reason why each of these ranks has no stack or line."""
    reasons: dict[str, list[int]] = {}
    for number, rank in sorted(ranks.items()):
        if rank.standstill:
            reason = "at a standstill; omit --lines to see the stack"
        elif not rank.reachable:
            reason = f"no {what}; the rank has STALLSCOPE_STACKS=0, or does not report through the UNIX socket"
        elif not requested:
            reason = f"no {what} yet; request some with --samples"
        else:
            reason = f"no {what} in time; the rank has sent no report since the request, or its shim is too old"
        reasons.setdefault(reason, []).append(number)
    for reason, numbers in reasons.items():
        yield f"{_rank_ranges(numbers)}: {reason}"


def _phase_lines(phase: PhaseLines) -> Iterator[str]:
    yield f"{readable(phase.phase, _TEXT_LENGTH)}:"
    for group in phase.groups:
        most, least = max(group.shares), min(group.shares)
        share = f"{percent(group.share)} of the time"
        if most - least > _MIN_DIFFERENCE:
            share = (
                f"{percent(least)} to {percent(most)} of the time, rank {group.ranks[group.shares.index(most)]} most"
            )
        yield f"  {_rank_ranges(group.ranks)}, {share}:"
        for line in group.lines:
            workers = f", in {several(line.workers, 'worker')}" if line.workers else ""
            place = readable(f"{line.location} {line.function}".rstrip(), 2 * _TEXT_LENGTH)
            yield f"    {percent(line.share):>4}  {place}{workers}"


def _frame_lines(stack: Stack) -> Iterator[str]:
    # A frame of the shim is shown only if it is the innermost frame.
    frames = [frame for position, frame in enumerate(stack) if not position or not is_shim(frame)]
    for frame in frames[:_MAX_FRAMES]:
        yield f"  {readable(frame.function, _TEXT_LENGTH)} at {readable(frame.file, _TEXT_LENGTH)}:{frame.line}"
    if len(frames) > _MAX_FRAMES:
        yield f"  … {len(frames) - _MAX_FRAMES} more"


def _rank_ranges(ranks: Sequence[int]) -> str:
    """Format ranks such as `ranks 0-6, 9`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def _group_document(group: LineGroup) -> dict[str, Any]:
    return {**group._asdict(), "lines": [line._asdict() for line in group.lines]}


def _exporters(nodes: Iterable[_Node]) -> list[dict[str, Any]]:
    return [
        {"exporter": node.shown, "problem": node.problem, "ranks": [rank.document() for rank in node.ranks]}
        for node in nodes
    ]


def _document(run: str, found: Grouping, nodes: Iterable[_Node], evidence: Iterable[Evidence]) -> dict[str, Any]:
    return {
        "run": run,
        "summary": sentence(found),
        "odd_ranks": list(found.odd),
        "samples": found.samples,
        "samples_outside": {str(rank): count for rank, (count, _) in found.outside.items()},
        "groups": [
            {
                "ranks": list(group.ranks),
                "waiting": group is found.waiting,
                **group.place._asdict(),
                "frames": [frame._asdict() for frame in group.stack],
            }
            for group in found.groups
        ],
        "collectives": [collective_counts.document(each) for each in evidence],
        "exporters": _exporters(nodes),
    }


def _service(text: str) -> Address | str:
    if text in (_ON, _OFF):
        return text
    try:
        return parse_address(text)
    except ValueError as expected:
        raise argparse.ArgumentTypeError(f"expected on, off, {expected}, got {text!r}") from None


def _pid(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"expected a process number, got {text!r}")
    return int(text)


def _samples(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and int(text) <= MAX_SAMPLES):
        raise argparse.ArgumentTypeError(f"expected an integer from 0 to {MAX_SAMPLES}, got {text!r}")
    return int(text)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= MAX_INTERVAL:
        raise argparse.ArgumentTypeError(f"expected seconds, above 0 and at most {MAX_INTERVAL:g}, got {text!r}")
    return seconds
