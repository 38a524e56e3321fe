"""Fuzzed reports for the whole report path, on a scripted clock: nothing crashes, and memory stays bounded.

    python -m tests.intake.fuzz 1000000 [SEED [PROCESSES]]

sends this many documents: legal ones, ones with a wrong part anywhere, broken text and bytes, signed and replayed
ones, from local users, processes and the network. Between them come notices of signals, requests for traces, expiry,
pages in both formats, and restarts from the state file. The end prints what was seen; the exit status is 1 after a
crash, or where it took more memory than the exporter may.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from stallscope.node.intake.pending import Datagram, newest
from stallscope.node.intake.quotas import Limits
from stallscope.node.intake.runs import Transport
from stallscope.node.intake.series import STEP_SECONDS
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.exposition import Renderer
from stallscope.node.sampling.reading import Distribution, checked
from stallscope.node.sampling.sampler import DEFAULT_MAX_SERIES
from stallscope.training.protocol import signature
from stallscope.training.protocol.measurements import COUNTERS, GAUGES
from stallscope.training.protocol.report import ReportError
from stallscope.training.protocol.step_request import ACTIONS
from stallscope.training.protocol.vocabulary import INFO_KEYS, MAX_BYTES, PRECISIONS, STEP_BUCKET_COUNT
from tests.intake.heavy_reports import SHAPES

CEILING = 160
"""Megabytes of resident memory, as SECURITY.md states for the whole exporter."""
_OWN_SERIES = 100
"""Series of the intake itself."""
_CHECK_EVERY = 5_000
_RESTART_EVERY = 20_000
_PARSE_EVERY = 50_000
_TOKEN = "a token of the fuzzer's own"
_PIDS = range(40, 60)
_TEXTS = ["", "a", "größe", "\ud800", "\U0010ffff" * 20, '"\\\n', "x" * 127, "x" * 129, "../..", "\0", "=1+1", "NaN"]
_NUMBERS = [0, -1, 1, 0.5, 2**53, 2**63, 10**400, -0.0, 1e308, 1e-320, 1_700_000_000.0, float("nan"), float("inf")]
_WORDS = ["running", "finished", "failed", "terminated", "starting", "training", "evaluation", "lost", "bf16"]
_BROKEN = [b"", b"{", b"[" * 20_000, b'{"version":1,' * 100, b"\xff\xfe", b"null", b"hmac-sha256 ", b"9" * 5_000]


class Result(NamedTuple):
    """Counts of one process."""

    outcomes: Counter[str]
    crash: str
    memory: float
    series: int


class Fuzzer:
    """One intake, and the documents that it is given."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._clock = ScriptedClock()
        self._root = folder / "root"
        self._folder = folder
        (self._root / "proc/1").mkdir(parents=True)
        (self._root / "proc/sys/kernel/random").mkdir(parents=True)
        (self._root / "proc/sys/kernel/random/boot_id").write_text("boot\n")
        for pid in _PIDS:
            (self._root / f"proc/{pid}").mkdir()
            self._set_process(pid)
        (folder / "tokens").touch(0o600)
        (folder / "tokens").write_text(_TOKEN)
        self._renderer = Renderer()
        self._steps: dict[tuple[str, ...], tuple[tuple[object, ...], Distribution]] = {}
        self._before: list[bytes] = [b"{}"]
        self.outcomes: Counter[str] = Counter()
        self.highest_memory = 0.0
        self.most_series = 0
        self.intake = self._start()

    def run(self, documents: int) -> None:
        """Send this many documents."""
        for number in range(1, documents + 1):
            self._deliver(self._document())
            if number % _CHECK_EVERY == 0:
                self._check(parse=number % _PARSE_EVERY == 0)
            if number % _RESTART_EVERY == 0:
                self.intake._save()
                self.intake = self._start()
                self._steps = {}
        self._check(parse=True)

    def _start(self) -> Intake:
        intake = Intake(
            IntakeSettings(
                socket=None,
                udp=None,
                state_file=self._folder / "state",
                token_file=self._folder / "tokens" if self._random.random() < 0.2 else None,
                requests=ACTIONS,
            ),
            clock=self._clock,
            root=self._root,
        )
        assert intake._journal is not None
        intake.registry.restore(intake._journal.load())
        return intake

    def _set_process(self, pid: int) -> None:
        state = self._random.choice("SSSSZ")
        start = self._random.choice((5000, 5000, 6000))
        (self._root / f"proc/{pid}/stat").write_text(f"{pid} (py) {state} " + "0 " * 18 + f"{start} 0 0\n")

    def _deliver(self, data: bytes) -> None:
        chosen = self._random.random
        transport: Transport = self._random.choice(("unix", "unix", "udp", "http"))
        pid = self._random.choice((*_PIDS, 999, None)) if transport == "unix" else None
        uid = (
            None
            if pid is None
            else 1001 + self._random.choice((0, 0, 0, 0, 0, 0, 1, 1, 2, self._random.randrange(2000)))
        )
        newest([Datagram(data, pid, "", pid, (), uid), Datagram(self._random.choice(self._before), pid, "", pid)])
        try:
            if transport == "http":
                status, _answer = self.intake.post(data, "192.0.2.7")
                self.outcomes[str(status)] += 1
            else:
                report = self.intake._accept(data, transport, pid, uid)
                self.outcomes["taken"] += 1
                if chosen() < 0.02:
                    self.intake._terminate((report.session,), pid, uid)
        except ReportError as error:
            self.outcomes[error.reason] += 1
        if chosen() < 0.001:
            action = self._random.choice(ACTIONS)
            status, _answer = self.intake.step_requests.post(action, data, self._random.choice((None, 1001)))
            self.outcomes[f"{action} {status}"] += 1
        self._clock.advance(self._random.choice((0.0, 0.01, 0.1, 0.5)))
        if chosen() < 0.002:
            self.intake.run_housekeeping()
        if chosen() < 0.001:
            self._set_process(self._random.choice(_PIDS))
        if chosen() < 0.05:
            self._before[self._random.randrange(len(self._before))] = data
            if len(self._before) < 100:
                self._before.append(data)

    def _check(self, *, parse: bool) -> None:
        """Hold memory, the number of series and the steps of every session to what is promised."""
        samples = checked(self.intake.collect())
        limits = Limits()
        held = self.intake.registry.held
        assert len({each.report.run for each in held}) <= limits.runs
        assert len(held) <= limits.ranks
        groups, series, _dropped = self._renderer.lines(samples, DEFAULT_MAX_SERIES)
        self.most_series = max(self.most_series, series)
        assert series <= limits.series + _OWN_SERIES
        sessions: dict[tuple[str, str], tuple[object, ...]] = {
            (each.report.run, str(each.report.rank)): (each.report.session, each.admitted, each.former) for each in held
        }
        steps = {}
        for rank, value in ((each.labels, each.value) for each in samples if each.family is STEP_SECONDS):
            assert isinstance(value, Distribution)
            session = sessions[rank[0], rank[1]]
            steps[rank] = session, value
            before = self._steps.get(rank)
            if before is not None and before[0] == session:
                assert value.count >= before[1].count, f"{rank} fell from {before[1]} to {value}"
                assert value.total >= before[1].total, f"{rank} fell from {before[1]} to {value}"
        self._steps = steps
        pages = [self._renderer.render(groups, openmetrics=openmetrics) for openmetrics in (False, True)]
        if parse:
            for _family in text_string_to_metric_families(pages[0].decode()):
                pass
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
        self.highest_memory = max(self.highest_memory, memory)

    def _document(self) -> bytes:
        kind = self._random.random()
        if kind < 0.02:
            return self._random.choice(self._before)
        if kind < 0.04:
            return self._random.choice(_BROKEN) + self._random.randbytes(self._random.randrange(40))
        if kind < 0.045:
            heavy: Callable[[str, int, int], bytes] = self._random.choice(SHAPES)
            return heavy(f"heavy{self._random.randrange(9)}", self._random.randrange(64), self._random.randrange(1000))
        document = self._legal()
        if kind < 0.45:
            for _ in range(self._random.choice((1, 1, 2, 5))):
                self._spoil(document)
        data = json.dumps(document, separators=(",", ":")).encode("utf-8", "surrogatepass")
        if kind > 0.9:
            data = self._torn(data)
        if self._random.random() < (0.05 if self.intake.authentication is None else 0.8):
            at = self._clock.time() + self._random.choice((0.0, 0.0, 50.0, 500.0))
            data = signature.signed(data, *signature.key(_TOKEN), at)
        return data

    def _legal(self) -> dict[str, Any]:
        chosen = self._random
        now = self._clock.time()
        steps = chosen.randrange(10_000)
        run = chosen.choice((f"run{chosen.randrange(40)}", "run0", "run1", "run1-1002", "run1-network", "run1-41"))
        return {
            "version": 1,
            "run": run,
            "rank": chosen.choice((0, 0, 1, chosen.randrange(300))),
            "session": f"s{chosen.randrange(20)}",
            "sequence": chosen.randrange(1000),
            "pid": chosen.choice(_PIDS),
            "start": now - chosen.uniform(-100, 1000),
            "sent": now,
            "state": chosen.choice(("running", "running", "running", "finished", "failed", "terminated", "starting")),
            "activity": "training",
            "info": {"world_size": chosen.choice(("1", "8"))},
            "gpus": [{"gpu": "0", "uuid": f"GPU-{chosen.randrange(8)}"}],
            "step_seconds": {"counts": [0] * (STEP_BUCKET_COUNT - 1) + [steps], "sum": steps * 0.1, "count": steps},
            "phases": {
                f"phase{chosen.randrange(40)}": {"seconds": steps * 0.05, "occurrences": steps, "max": 0.5}
                for _ in range(chosen.randrange(4))
            },
            "counters": {chosen.choice(COUNTERS): chosen.random() * 1e6},
            "gauges": {chosen.choice(GAUGES): chosen.random()},
            "values": {f"value{chosen.randrange(100)}": chosen.random()},
            "precision": [chosen.choice(PRECISIONS)],
            "dropped": {"queue_full": chosen.randrange(9)},
        }

    def _spoil(self, document: dict[str, Any]) -> None:
        """Replace, add or remove one part, at any depth."""
        place: Any = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                return
            key = self._random.choice(keys)
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or self._random.random() < 0.5:
                break
            place = inner
        way = self._random.random()
        if way < 0.1:
            del place[key]
        elif way < 0.3 and isinstance(place, dict):
            place[self._text()] = copy.deepcopy(inner)
        else:
            place[key] = self._anything(3)

    def _anything(self, depth: int) -> Any:
        kind = self._random.random()
        if kind < 0.3:
            return self._random.choice(_NUMBERS)
        if kind < 0.6:
            return self._text()
        if kind < 0.75 or not depth:
            return self._random.choice((None, True, False))
        if kind < 0.85:
            return [self._anything(depth - 1) for _ in range(self._random.choice((0, 1, 3, 200 if depth == 3 else 3)))]
        return {self._text(): self._anything(depth - 1) for _ in range(self._random.choice((0, 1, 3)))}

    def _text(self) -> str:
        return self._random.choice((*_TEXTS, *_WORDS, *INFO_KEYS, *COUNTERS, f"text{self._random.randrange(1000)}"))

    def _torn(self, data: bytes) -> bytes:
        begin, end = sorted((self._random.randrange(len(data) + 1), self._random.randrange(len(data) + 1)))
        way = self._random.randrange(4)
        if way == 0:
            return data[:begin]
        if way == 1:
            return data[:begin] + data[end:]
        if way == 2:
            return data[:begin] + self._random.randbytes(self._random.randrange(8)) + data[begin:]
        return (data[:end] + data[begin:] * 4)[: MAX_BYTES + 10]


def main(documents: int, seed: int, processes: int) -> int:
    """Fuzz in several processes, and print what was seen."""
    began = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        results = list(pool.map(_fuzzed, [documents // processes] * processes, range(seed, seed + processes)))
    outcomes: Counter[str] = sum((each.outcomes for each in results), Counter())
    crashes = [each.crash for each in results if each.crash]
    memory, series = max(each.memory for each in results), max(each.series for each in results)
    print("\n".join(crashes), end="", file=sys.stderr)
    print(
        f"seeds {seed} to {seed + processes - 1}: {outcomes.total()} documents and requests in "
        f"{time.monotonic() - began:.0f} s, {len(crashes)} crashes, at most {memory:.0f} MB of memory and "
        f"{series} series in a process"
    )
    print(", ".join(f"{outcome}: {number}" for outcome, number in outcomes.most_common()))
    return int(bool(crashes) or memory > CEILING)


def _fuzzed(documents: int, seed: int) -> Result:
    logging.disable(logging.CRITICAL)
    crash = ""
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), seed)
        try:
            fuzzer.run(documents)
        except Exception:
            crash = f"seed {seed}: {traceback.format_exc()}"
    return Result(fuzzer.outcomes, crash, fuzzer.highest_memory, fuzzer.most_series)


if __name__ == "__main__":
    arguments = dict(enumerate(int(each) for each in sys.argv[1:]))
    sys.exit(
        main(
            arguments.get(0, 10_000), arguments.get(1, random.randrange(10_000)), arguments.get(2, os.cpu_count() or 1)
        )
    )
