"""Limits on series and memory, and shares of senders: no sender takes the memory, the page or the place of another."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from stallscope.node.intake.held import Held
from stallscope.node.intake.journal import Journal
from stallscope.node.intake.processes import Process
from stallscope.node.intake.quotas import Limits, Totals, Usage, has_new_names, names_of, usage_of, without_new_names
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.exposition import Renderer
from stallscope.node.sampling.sampler import DEFAULT_MAX_SERIES, Sampler
from stallscope.training.protocol.report import ReportError, parse
from tests.intake.conftest import SetProcess
from tests.intake.heavy_reports import SHAPES, many_series, wide_everywhere
from tests.intake.reports import make_report

HeavyReport = Callable[..., bytes]
ATTACKER, HONEST = 1001, 1002
DROPPED = "stallscope_exporter_series_dropped_total"


@pytest.fixture(
    params=[
        shape if shape in (many_series, wide_everywhere) else pytest.param(shape, marks=pytest.mark.nightly)
        for shape in SHAPES
    ],
    ids=lambda shape: shape.__name__,
)
def heavy_report(request: pytest.FixtureRequest) -> HeavyReport:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


def send(registry: RunRegistry, data: bytes, uid: int | None = None) -> str:
    """Send a report through the UNIX socket, or over UDP without a uid; return the reason of the refusal or ''."""
    try:
        registry.accept(data, "udp" if uid is None else "unix", uid=uid)
    except ReportError as error:
        return error.reason
    return ""


def runs(registry: RunRegistry) -> Counter[int | None]:
    """Runs held by sender."""
    return Counter(uid for _run, uid in {(held.report.run, held.uid) for held in registry.held})


def counted(registry: RunRegistry, name: str, label: str) -> object:
    return next(each.value for each in registry.collect() if (each.family.name, each.labels) == (name, (label,)))


def taken(registry: RunRegistry) -> Usage:
    """Return the estimated usage of everything that is held."""
    total = Usage(runs=len({held.report.run for held in registry.held}))
    for held in registry.held:
        total = total.plus(usage_of(held.report))
    return total


STACK_SERIES = 1
"""The series of a rank that does not come from its reports, but from the stack that it leaves."""


class TestUsage:
    def test_the_series_of_a_report_are_at_most_those_counted(self, heavy_report: HeavyReport) -> None:
        registry = RunRegistry()
        data = heavy_report("run")
        own = Renderer().lines(registry.collect(), DEFAULT_MAX_SERIES)[1]
        registry.accept(data, "unix")
        groups, series, _dropped = Renderer().lines(registry.collect(), DEFAULT_MAX_SERIES)
        assert series - own + STACK_SERIES == usage_of(parse(data)).series
        assert sum(map(len, groups.values())) == series

    def test_memory_is_estimated_from_above(self, heavy_report: HeavyReport) -> None:
        """With every table and page that holds the series, while two pages of both formats exist."""
        registry = RunRegistry()
        sampler = Sampler()
        sampler.add_collector("reports", registry.collect)
        for openmetrics in (False, True):
            sampler.page(openmetrics=openmetrics, gzip=True)
        sampler.publish()
        tracemalloc.start()
        try:
            for sequence in (1, 2):
                for rank in range(16):
                    registry.accept(heavy_report("run", rank, sequence), "unix")
                sampler.publish()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= taken(registry).memory

    def test_an_everyday_rank_is_not_taken_for_a_heavy_one(self) -> None:
        assert usage_of(parse(make_report())).memory * 256 < Limits().memory_per_run / 1.5

    def test_totals_are_those_of_what_was_entered_and_not_removed(self) -> None:
        totals = Totals()
        totals.set(("a", 0), 1, Usage(0, 1, 10, 100))
        totals.set(("a", 1), None, Usage(0, 1, 20, 200))
        totals.set(("b", 0), 1, Usage(0, 1, 30, 300))
        totals.set(("a", 0), 1, Usage(0, 1, 11, 110))
        assert totals.all == Usage(2, 3, 61, 610)
        assert (totals.sender(1), totals.sender(None)) == (Usage(2, 2, 41, 410), Usage(1, 1, 20, 200))
        assert totals.run("a") == Usage(0, 2, 31, 310)
        totals.remove(("a", 0))
        totals.remove(("a", 0))
        totals.set(("b", 0), None, Usage(0, 1, 30, 300))
        assert (totals.all, totals.sender(1), totals.sender(None)) == (Usage(2, 2, 50, 500), Usage(), totals.all)
        totals.remove(("a", 1))
        totals.remove(("b", 0))
        assert totals.all == totals.run("a") == totals.sender(None) == Usage()

    def test_names_are_new_where_the_report_before_lacks_them(self) -> None:
        before = parse(make_report())
        for change in (
            {"phases": {"other": {"seconds": 1, "occurrences": 1, "max": 1}}},
            {"values": {"accuracy": 1, "other": 1}},
            {"dropped": {"other": 1}},
            {"info": {"world_size": "8", "user": "other"}},
            {"gpus": [{"gpu": "1", "uuid": "GPU-1"}]},
        ):
            after = parse(make_report(**change))
            assert has_new_names(before, after)
            assert names_of(after).keys() - names_of(before).keys()
            assert names_of(without_new_names(before, after)).keys() <= names_of(before).keys()
        fewer = parse(make_report(values={}, phases={}, dropped={}, counters={"tokens": 1.0}))
        assert not has_new_names(before, fewer)
        assert without_new_names(before, fewer) == fewer


class TestLimits:
    def test_a_thousand_of_the_heaviest_reports_stay_within_the_limits(self, heavy_report: HeavyReport) -> None:
        registry = RunRegistry()
        refusals = Counter(send(registry, heavy_report(f"run{n // 16}", n % 16), ATTACKER) for n in range(1024))
        limits, total = registry.limits, taken(registry)
        assert total.series <= limits.series
        assert total.memory <= limits.memory
        assert refusals[""] == total.ranks > 16
        assert refusals["series_limit"] + refusals["memory_limit"] == 1024 - total.ranks
        for reason in ("series_limit", "memory_limit"):
            assert counted(registry, "stallscope_exporter_reports_rejected_total", reason) == refusals[reason]

    def test_everyday_ranks_are_admitted_up_to_the_limit_of_a_run(self) -> None:
        registry = RunRegistry()
        assert {send(registry, make_report(rank=rank), HONEST) for rank in range(256)} == {""}
        assert send(registry, make_report(rank=256), HONEST) == "rank_limit"

    @pytest.mark.parametrize(
        ("limits", "reason"),
        [(Limits(series_per_run=400), "series_limit"), (Limits(memory_per_run=1 << 20), "memory_limit")],
        ids=["series", "memory"],
    )
    def test_one_run_does_not_take_what_is_for_several(self, limits: Limits, reason: str) -> None:
        registry = RunRegistry(limits)
        assert [send(registry, many_series("greedy", rank), HONEST) for rank in range(2)] == ["", reason]
        assert send(registry, many_series("modest"), HONEST) == ""

    def test_new_names_beyond_a_limit_are_left_out_and_the_rank_goes_on(self) -> None:
        data = make_report()
        registry = RunRegistry(Limits(series=usage_of(parse(data)).series))
        assert send(registry, data, HONEST) == ""
        phases = {name: {"seconds": 9.0, "occurrences": 9, "max": 1.0} for name in ("data_wait", "new")}
        changes = {"phases": phases, "values": {"accuracy": 1.0, "new": 1.0}, "state": "finished", "sequence": 2}
        assert send(registry, make_report(**changes), HONEST) == ""
        (held,) = registry.held
        assert (held.state, list(held.report.phases), list(held.report.values)) == (
            "finished",
            ["data_wait"],
            ["accuracy"],
        )
        assert held.report.phases["data_wait"].seconds == 9.0
        assert counted(registry, DROPPED, "series_quota") == 5

    def test_within_the_limits_new_names_are_shown(self, registry: RunRegistry) -> None:
        send(registry, make_report(), HONEST)
        send(registry, make_report(sequence=2, values={"new": 1.0}), HONEST)
        assert [held.report.values for held in registry.held] == [{"new": 1.0}]
        assert counted(registry, DROPPED, "series_quota") == 0


class TestNamesWithoutEnd:
    """One client, ever new names: what it makes Prometheus store in an expiry time is limited as well."""

    @pytest.fixture
    def registry(self, clock: ScriptedClock) -> RunRegistry:
        return RunRegistry(Limits(series=1000), clock=clock)

    @pytest.fixture(params=["phases", "values", "sessions", "info"])
    def ever_new(self, request: pytest.FixtureRequest) -> Iterator[bytes]:
        def reports() -> Iterator[bytes]:
            for number in range(1, 2000):
                changes: dict[str, dict[str, object]] = {
                    "phases": {"phases": {f"n{number}": {"seconds": 1, "occurrences": 1, "max": 1}}},
                    "values": {
                        "session": f"s{number}",
                        "start": 1.6e9 + number,
                        "values": {f"n{number}-{each}": 1 for each in range(32)},
                    },
                    "sessions": {"session": f"s{number}", "start": 1.6e9 + number, "dropped": {f"n{number}": 1}},
                    "info": {"info": {"user": f"n{number}"}},
                }
                yield make_report(sequence=number, **changes[request.param])

        return reports()

    def test_a_rank_with_ever_new_names_creates_no_more_series_than_the_exporter_may_hold(
        self, registry: RunRegistry, ever_new: Iterator[bytes]
    ) -> None:
        seen = set()
        for data in ever_new:
            assert send(registry, data, ATTACKER) == ""
            seen |= {(each.family.name, each.labels) for each in registry.collect() if each.labels[:1] == ("resnet50",)}
        assert 500 < len(seen) <= 1000
        assert len(registry._run_names._own) + len(registry._series_names._of_rank) < 10
        assert counted(registry, DROPPED, "series_quota") != 0

    def test_only_the_sender_of_them_has_to_wait(
        self, registry: RunRegistry, ever_new: Iterator[bytes], clock: ScriptedClock
    ) -> None:
        for data in ever_new:
            send(registry, data, ATTACKER)
        assert send(registry, make_report(run="attacker's"), ATTACKER) == "series_limit"
        assert send(registry, make_report(run="honest"), HONEST) == ""
        clock.advance(registry.expiry)
        assert send(registry, make_report(run="attacker's"), ATTACKER) == ""

    def test_a_rank_that_restarts_again_and_again_creates_its_series_once(self, registry: RunRegistry) -> None:
        for number in range(100):
            session = {"session": f"s{number}", "start": 1.6e9 + number}
            assert send(registry, make_report(**session, phases={}, values={}), HONEST) == ""
            assert send(registry, make_report(**session, sequence=2), HONEST) == ""
        assert [held.report.phases.keys() for held in registry.held] == [{"data_wait"}]
        assert counted(registry, DROPPED, "series_quota") == 0

    def test_sessions_under_a_name_of_their_own_are_forgotten(
        self, registry: RunRegistry, set_process: SetProcess, root: Path
    ) -> None:
        registry = RunRegistry(root=root)
        set_process(41)
        registry.accept(make_report(), "unix", 41, uid=HONEST)
        for number in range(100):
            set_process(51)
            registry.accept(make_report(session=f"s{number}", start=1.7e9 + number), "unix", 51, uid=ATTACKER)
        assert len(registry.held) == 2
        assert len(registry._run_names._own) < 10


class TestShares:
    clock: ScriptedClock

    @pytest.fixture
    def registry(self, clock: ScriptedClock) -> RunRegistry:
        self.clock = clock
        return RunRegistry(Limits(runs=8, ranks_per_run=2), clock=clock)

    def squat(self, registry: RunRegistry, uid: int | None, number: int = 8) -> None:
        for each in range(number):
            self.clock.advance(1)
            assert send(registry, make_report(run=f"squatted{each}"), uid) == ""

    @pytest.mark.parametrize("squatter", [ATTACKER, None], ids=["user", "network"])
    def test_squatted_names_do_not_keep_a_local_run_out(self, registry: RunRegistry, squatter: int | None) -> None:
        self.squat(registry, squatter)
        assert [send(registry, make_report(run=f"mine{each}"), HONEST) for each in range(5)] == [""] * 4 + ["run_limit"]
        assert runs(registry) == {squatter: 4, HONEST: 4}
        assert send(registry, make_report(run="more"), squatter) == "run_limit"

    def test_a_local_user_within_their_share_is_not_displaced(self, registry: RunRegistry) -> None:
        self.squat(registry, HONEST, 4)
        for each in range(20):
            send(registry, make_report(run=f"evil{each}"), ATTACKER)
            send(registry, make_report(run=f"evil{each}"))
        assert runs(registry)[HONEST] == 4

    def test_a_lone_user_takes_all_and_many_users_share_it(self, registry: RunRegistry) -> None:
        self.squat(registry, 1)
        for user in (2, 3, 4):
            for each in range(8):
                send(registry, make_report(run=f"{user}-{each}"), user)
        assert runs(registry) == {1: 2, 2: 2, 3: 2, 4: 2}

    @pytest.mark.parametrize(
        "limits",
        [Limits(ranks=8), Limits(series=8 * 315, series_per_run=8 * 315), Limits(memory=4 << 20)],
        ids=["ranks", "series", "memory"],
    )
    def test_ranks_series_and_memory_are_shared_as_well(self, limits: Limits) -> None:
        registry = RunRegistry(limits)
        for rank in range(8):
            send(registry, many_series("squatted", rank), ATTACKER)
        full = len(registry.held)
        assert send(registry, many_series("squatted", 8), ATTACKER) != ""
        assert send(registry, many_series("mine"), HONEST) == ""
        assert Counter(held.uid for held in registry.held) == {ATTACKER: full - 1, HONEST: 1}

    def test_a_refused_rank_displaces_no_other(self) -> None:
        small = usage_of(parse(make_report())).memory
        registry = RunRegistry(Limits(ranks=4, memory=5 * small))
        for rank in range(4):
            send(registry, make_report(rank=rank), ATTACKER)
        before = registry.held
        assert send(registry, many_series("mine"), HONEST) == "memory_limit"
        assert registry.held == before

    def test_what_has_ended_goes_first_and_then_the_newest(self, registry: RunRegistry, clock: ScriptedClock) -> None:
        for each in range(8):
            clock.advance(1)
            send(registry, make_report(run=f"r{each}", state="finished" if each in (3, 5) else "running"), ATTACKER)
        displaced = []
        for each in range(4):
            before = {held.report.run for held in registry.held}
            assert send(registry, make_report(run=f"mine{each}"), HONEST) == ""
            displaced += sorted(before - {held.report.run for held in registry.held})
        assert displaced == ["r3", "r5", "r7", "r6"]

    def test_the_network_displaces_no_local_run(self, registry: RunRegistry) -> None:
        self.squat(registry, HONEST)
        assert send(registry, make_report(run="remote")) == "run_limit"
        assert runs(registry) == {HONEST: 8}

    def test_on_the_network_the_oldest_rank_reported_only_once_makes_room(
        self, registry: RunRegistry, clock: ScriptedClock
    ) -> None:
        for each in range(8):
            clock.advance(1)
            send(registry, make_report(run=f"r{each}"))
        clock.advance(10)
        send(registry, make_report(run="r0", sequence=2))  # goes on, and is proven
        assert send(registry, make_report(run="new")) == "run_limit"
        clock.advance(50)
        assert send(registry, make_report(run="new")) == ""
        assert {held.report.run for held in registry.held} == {"r0", "new", *(f"r{each}" for each in range(2, 8))}

    def test_a_displaced_run_is_logged(self, registry: RunRegistry, caplog: pytest.LogCaptureFixture) -> None:
        self.squat(registry, ATTACKER)
        send(registry, make_report(run="mine"), HONEST)
        assert "dropped run 'squatted7' rank 0 of user 1001 for run 'mine' of user 1002" in caplog.text


class TestEndedRuns:
    """Ended runs are limited, whatever the limit of runs and the expiry time are."""

    @pytest.fixture
    def registry(self, clock: ScriptedClock) -> RunRegistry:
        return RunRegistry(Limits(runs=10_000, ranks=10_000), clock=clock)

    def finish(self, registry: RunRegistry, names: Iterable[str], uid: int | None, clock: ScriptedClock) -> None:
        for name in names:
            clock.advance(0.002)
            assert send(registry, make_report(run=name), uid) == ""
            assert send(registry, make_report(run=name, state="finished", sequence=2), uid) == ""

    @pytest.mark.parametrize("uid", [HONEST, None], ids=["user", "network"])
    def test_a_series_of_short_runs_leaves_the_newest(
        self, registry: RunRegistry, clock: ScriptedClock, uid: int | None
    ) -> None:
        most = registry.limits.ended_runs_per_sender
        self.finish(registry, (f"r{number:04}" for number in range(120)), uid, clock)
        assert sorted(held.report.run for held in registry.held) == [f"r{n:04}" for n in range(120 - most, 120)]
        assert taken(registry).series == registry._room.totals.all.series

    def test_many_senders_share_the_total_and_the_smallest_keeps_its_own(
        self, registry: RunRegistry, clock: ScriptedClock
    ) -> None:
        self.finish(registry, ["mine"], HONEST, clock)
        for user in range(1, 6):
            self.finish(registry, (f"{user}-{number}" for number in range(40)), 2000 + user, clock)
        found = runs(registry)
        assert found.total() == registry.limits.ended_runs
        assert found[HONEST] == 1
        assert max(found[2000 + user] for user in range(1, 6)) - min(found[2000 + user] for user in range(1, 6)) <= 1

    def test_a_run_with_a_rank_that_goes_on_is_not_dropped(self, registry: RunRegistry, clock: ScriptedClock) -> None:
        assert send(registry, make_report(run="long"), HONEST) == ""
        self.finish(registry, ["long"], HONEST, clock)
        assert send(registry, make_report(run="long", rank=1), HONEST) == ""
        self.finish(registry, (f"r{number}" for number in range(50)), HONEST, clock)
        assert {held.report.rank for held in registry.held if held.report.run == "long"} == {0, 1}

    def test_a_sweep_longer_than_the_limit_of_runs_is_never_refused(self, clock: ScriptedClock) -> None:
        registry = RunRegistry(clock=clock)
        self.finish(registry, (f"trial-{number}" for number in range(200)), HONEST, clock)
        assert not [each for each in registry.collect() if each.family.name.endswith("rejected_total") and each.value]

    def test_runs_that_are_lost_at_once_are_limited_as_well(
        self, clock: ScriptedClock, root: Path, set_process: SetProcess
    ) -> None:
        registry = RunRegistry(Limits(ended_runs_per_sender=3), clock=clock, root=root)
        for number in range(8):
            set_process(100 + number)
            registry.accept(make_report(run=f"r{number}"), "unix", pid_seen=100 + number, uid=HONEST)
        for number in range(8):
            set_process(100 + number, None)
        registry.check_processes()
        assert len(registry.held) == 3


class TestRestore:
    def test_a_state_file_with_too_much_is_read_within_the_limits(
        self, heavy_report: HeavyReport, clock: ScriptedClock, root: Path, tmp_path: Path
    ) -> None:
        journal = Journal(tmp_path / "runs", clock=clock, root=root)
        heavy = (parse(heavy_report(f"run{n // 16}", n % 16)) for n in range(256))
        assert journal.save(Held(each, clock.time(), clock.monotonic()) for each in heavy)
        registry = RunRegistry(Limits(series=10_000, memory=24 << 20), clock=clock, root=root)
        tracemalloc.start()
        try:
            registry.restore(journal.load())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        total = taken(registry)
        assert 4 < total.ranks < 256
        assert peak < total.memory <= registry.limits.memory
        assert total.series <= registry.limits.series
        assert sum(registry._rejected.values()) == 256 - total.ranks

    @pytest.fixture
    def restarted(
        self, clock: ScriptedClock, root: Path, tmp_path: Path
    ) -> Callable[[RunRegistry, float], RunRegistry]:
        """Save, wait for seconds, and restore in the next life of the exporter."""

        def restart(registry: RunRegistry, seconds: float) -> RunRegistry:
            journal = Journal(tmp_path / "runs", clock=clock, root=root)
            journal.save(registry.held)
            clock.advance(seconds)
            again = RunRegistry(clock=clock, root=root)
            again.restore(journal.load())
            return again

        return restart

    @pytest.mark.parametrize(("lives", "restored"), [(119, True), (120, False)])
    def test_silence_goes_on_over_restarts(
        self, restarted: Callable[[RunRegistry, float], RunRegistry], registry: RunRegistry, lives: int, restored: bool
    ) -> None:
        """An exporter that is killed every 15 seconds."""
        registry.accept(make_report(), "udp")
        for _ in range(lives):
            registry = restarted(registry, 15)
            registry.check_processes()
        assert [held.state for held in registry.held] == ["running"] * restored

    @pytest.mark.parametrize(("away", "minutes"), [(60, 14), (890, 1), (1790, 1)])
    def test_a_restored_rank_has_time_to_report_before_it_is_lost(
        self,
        restarted: Callable[[RunRegistry, float], RunRegistry],
        registry: RunRegistry,
        clock: ScriptedClock,
        away: float,
        minutes: int,
    ) -> None:
        registry.accept(make_report(), "udp")
        registry = restarted(registry, away)
        for state, seconds in (("running", 60 * minutes - 1), ("lost", 1)):
            clock.advance(seconds)
            registry.check_processes()
            assert [held.state for held in registry.held] == [state]
        registry.accept(make_report(sequence=2), "udp")
        assert [held.state for held in registry.held] == ["running"]

    def test_a_rank_whose_process_is_seen_is_restored_however_long_it_was_silent(
        self, clock: ScriptedClock, root: Path, set_process: SetProcess
    ) -> None:
        set_process(7)
        registry = RunRegistry(clock=clock, root=root)
        clock.advance(5000)
        registry.restore([Held(parse(make_report()), clock.time(), 0.0, process=Process(7, 5000))])
        registry.check_processes()
        assert [held.state for held in registry.held] == ["running"]

    def test_shares_hold_for_what_was_restored(self, clock: ScriptedClock, root: Path, tmp_path: Path) -> None:
        limits = Limits(runs=4)
        first = RunRegistry(limits, clock=clock, root=root)
        for each in range(4):
            send(first, make_report(run=f"squatted{each}"), ATTACKER)
        journal = Journal(tmp_path / "runs", clock=clock, root=root)
        journal.save(first.held)
        second = RunRegistry(limits, clock=clock, root=root)
        second.restore(journal.load())
        assert send(second, make_report(run="mine"), HONEST) == ""
        assert runs(second) == {ATTACKER: 3, HONEST: 1}
