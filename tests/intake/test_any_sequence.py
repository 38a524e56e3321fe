"""Whatever senders report, and in whatever order: a name has one owner, no counter falls, who reports is not lost."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stallscope.node.intake.held import Held
from stallscope.node.intake.journal import Journal
from stallscope.node.intake.processes import Processes
from stallscope.node.intake.quotas import Limits
from stallscope.node.intake.runs import RunRegistry, Transport
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.report import ReportError
from tests.intake.reports import make_report

_SERIES_OF_STEPS = ("stallscope_training_step_seconds", "stallscope_training_phase_seconds_total")
_SMALL = Limits(runs=6, ranks=10, ended_runs=3, ended_runs_per_sender=2)


class Program(NamedTuple):
    """A process that trains one rank, or its predecessor or neighbour with the same names."""

    number: int
    run: str
    rank: int
    world_size: str
    uid: int | None
    """None for a sender on the network, whose process the exporter does not see."""
    start: float

    @property
    def session(self) -> str:
        return f"session{self.number}"

    @property
    def pid(self) -> int | None:
        return None if self.uid is None else 100 + self.number


class Senders(RuleBasedStateMachine):
    """Programs that start, report, get signals, die and are silent, and an exporter that is started again."""

    @initialize(limits=st.sampled_from([Limits(), _SMALL]))
    def begin(self, limits: Limits) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        (self.root / "proc/1").mkdir(parents=True)
        (self.root / "proc/sys/kernel/random").mkdir(parents=True)
        (self.root / "proc/sys/kernel/random/boot_id").write_text("boot\n")
        self.clock = ScriptedClock()
        self.limits = limits
        self.registry = RunRegistry(limits, clock=self.clock, root=self.root)
        self.programs: list[Program] = []
        self.sent: list[tuple[Program, bytes]] = []
        self.steps: dict[Program, int] = {}
        self.counted: dict[tuple[object, ...], float] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule(
        run=st.sampled_from(["bert", "bert", "gpt"]),
        rank=st.integers(0, 1),
        world_size=st.sampled_from(["1", "2"]),
        uid=st.sampled_from([1001, 1001, 1002, None]),
        age=st.sampled_from([0.0, 1.0, 100.0]),
    )
    def start(self, run: str, rank: int, world_size: str, uid: int | None, age: float) -> None:
        number = len(self.programs)
        program = Program(number, run, rank, world_size, uid, self.clock.time() - age)
        if program.pid is not None:
            (self.root / f"proc/{program.pid}").mkdir()
            stat = f"{program.pid} (python) S " + "0 " * 18 + f"{number} 0 0\n"
            (self.root / f"proc/{program.pid}/stat").write_text(stat)
        self.programs.append(program)
        self.steps[program] = 0
        self.report(program)

    def report(self, program: Program, phase_seconds: float = 0.0, **changes: object) -> bool:
        """Send the program's next report; return whether it was taken.

        Args:
            program: the sender.
            phase_seconds: what a phase has more, or less, than a second for each step.
            changes: fields of the report.
        """
        self.steps[program] += 1
        steps = self.steps[program]
        data = make_report(
            run=program.run,
            rank=program.rank,
            session=program.session,
            sequence=steps,
            start=program.start,
            sent=self.clock.time(),
            info={"world_size": program.world_size},
            steps=steps,
            phases={"data_wait": {"seconds": steps + phase_seconds, "occurrences": steps, "max": 1.0}},
            **changes,
        )
        self.sent.append((program, data))
        try:
            report = self.registry.accept(data, "udp" if program.uid is None else "unix", program.pid, uid=program.uid)
        except ReportError:
            return False
        held = self.registry.holding(report)
        assert held is not None, "an accepted report is held, or newer ones of its rank are"
        if "state" not in changes and self.is_alive(program):
            assert held.state == "running", f"{held.state} while it reports"
        return True

    def is_alive(self, program: Program) -> bool:
        return program.pid is None or (self.root / f"proc/{program.pid}/stat").exists()

    @precondition(lambda self: self.programs)
    @rule(data=st.data(), phase_seconds=st.sampled_from([0.0, 0.5, -0.9, -1.5]))
    def go_on(self, data: st.DataObject, phase_seconds: float) -> None:
        program = data.draw(st.sampled_from(self.programs))
        if self.is_alive(program) and self.report(program, max(phase_seconds, -self.steps[program])):
            self.registry.check_processes()
            running = {held.report.session for held in self.registry.alive}
            assert program.session in running, "lost while it reports"

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat_an_old_report(self, data: st.DataObject) -> None:
        program, document = data.draw(st.sampled_from(self.sent))
        with contextlib.suppress(ReportError):
            transport: Transport = "udp" if program.uid is None else "unix"
            self.registry.accept(document, transport, program.pid, uid=program.uid)

    @precondition(lambda self: self.programs)
    @rule(data=st.data(), state=st.sampled_from(["finished", "failed"]))
    def end(self, data: st.DataObject, state: str) -> None:
        self.report(data.draw(st.sampled_from(self.programs)), state=state)

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        program = data.draw(st.sampled_from(self.programs))
        if program.pid is not None:
            (self.root / f"proc/{program.pid}/stat").unlink(missing_ok=True)

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def get_a_signal(self, data: st.DataObject) -> None:
        program = data.draw(st.sampled_from(self.programs))
        self.registry.terminate((program.session,), program.pid, program.uid)

    @rule(seconds=st.sampled_from([1.0, 30.0, 120.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.registry.check_processes()

    @rule()
    def start_the_exporter_again(self) -> None:
        journal = Journal(self.root / "state", clock=self.clock, root=self.root)
        assert journal.save(self.registry.held)
        self.registry = RunRegistry(self.limits, clock=self.clock, root=self.root)
        self.registry.restore(journal.load())

    @invariant()
    def a_name_has_one_owner(self) -> None:
        processes = Processes(self.root)
        owners: dict[str, set[int | None]] = {}
        for held in self.registry.held:
            if _is_local(held, processes):
                owners.setdefault(held.report.run, set()).add(held.uid)
        assert all(len(users) == 1 for users in owners.values()), owners

    @invariant()
    def a_session_is_held_once(self) -> None:
        sessions = [held.report.session for held in self.registry.held]
        assert len(sessions) == len(set(sessions))

    @invariant()
    def no_counter_of_a_session_falls(self) -> None:
        sessions = {(held.report.run, str(held.report.rank)): held.report.session for held in self.registry.held}
        for sample in self.registry.collect():
            if sample.family.name not in _SERIES_OF_STEPS:
                continue
            key = (sample.family.name, sessions[sample.labels[0], sample.labels[1]], *sample.labels)
            number = getattr(sample.value, "count", sample.value)
            assert isinstance(number, int | float)
            assert number >= self.counted.get(key, 0.0), f"{key} fell from {self.counted[key]} to {number}"
            self.counted[key] = number

    @invariant()
    def limits_are_kept(self) -> None:
        held = self.registry.held
        assert len({each.report.run for each in held}) <= self.limits.runs
        assert len(held) <= self.limits.ranks


def _is_local(held: Held, processes: Processes) -> bool:
    return held.ended is None and held.uid is not None and held.process is not None and not processes.gone(held.process)


TestSenders = Senders.TestCase
TestSenders.settings = settings(max_examples=40, stateful_step_count=30)
