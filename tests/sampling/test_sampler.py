"""Whatever a source does, the page is there, says what is known, and says what is wrong."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stallscope.model.catalogue.metrics import family
from stallscope.node.sampling import sampler as sampler_module
from stallscope.node.sampling.clock import ScriptedClock, SystemClock
from stallscope.node.sampling.reader import CollectorState, NotPresent, Reader, ReaderState
from stallscope.node.sampling.reading import Sample
from stallscope.node.sampling.sampler import Hang, Sampler, until_next_page
from tests.waiting import until

CPUS = family("stallscope_host_cpus")
MEMORY = family("stallscope_host_memory_total_bytes")
UP = family("stallscope_gpu_up")


class ScriptedSource:
    """A source controlled by the test."""

    harmless: tuple[type[Exception], ...] = ()
    longest_interval: float | None = None

    def __init__(
        self, name: str = "scripted", value: float = 4, sample: Callable[[float], Sample] | None = None
    ) -> None:
        self.name = name
        self.value = value
        self.problem: Exception | None = None
        self.closed = False
        self.part_reads: dict[str, Callable[[], Iterable[Sample]]] = {}
        self.parts_problem: Exception | None = None
        self.released: list[float] = []
        self._sample = sample or (lambda value: Sample(CPUS, (), value))

    def read(self) -> Iterable[Sample]:
        if self.problem is not None:
            raise self.problem
        return [self._sample(self.value)]

    def parts(self) -> Mapping[str, Callable[[], Iterable[Sample]]]:
        if self.parts_problem is not None:
            raise self.parts_problem
        return self.part_reads

    def collect(self, state: CollectorState) -> Iterable[Sample]:
        for reader in (state.main, *state.parts.values()):
            if state.fresh(reader) and reader.present:
                yield from reader.samples

    def release(self, seconds: float) -> None:
        self.released.append(seconds)

    def close(self) -> None:
        self.closed = True


class HangingSource(ScriptedSource):
    """A source whose reading blocks until it is released."""

    def __init__(self, name: str = "hanging") -> None:
        super().__init__(name, sample=lambda value: Sample(MEMORY, (), value))
        self.entered = threading.Event()
        self.resume = threading.Event()

    def read(self) -> Iterable[Sample]:
        self.entered.set()
        assert self.resume.wait(60)
        return super().read()


def values(sampler: Sampler) -> dict[str, float]:
    """Every series of the newest page, as a query would write it."""
    text = sampler.page(openmetrics=False, gzip=False).decode()
    return {
        sample.name
        + (
            "{" + ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items())) + "}" if sample.labels else ""
        ): sample.value
        for each in text_string_to_metric_families(text)
        for sample in each.samples
    }


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


@pytest.fixture
def sampler(clock: ScriptedClock) -> Sampler:
    return Sampler(clock=clock, interval=1.0)


def test_a_page_is_there_before_anything_was_read(sampler: Sampler) -> None:
    assert 'stallscope_build_info{python="' in next(iter(values(sampler)))
    assert not sampler.ready


def test_a_reading_is_on_the_page_with_the_sources_own_metrics(sampler: Sampler, clock: ScriptedClock) -> None:
    sampler.add(ScriptedSource())
    sampler.run_round()
    found = values(sampler)
    assert found["stallscope_host_cpus"] == 4
    assert found['stallscope_exporter_source_up{source="scripted"}'] == 1
    assert found['stallscope_exporter_source_failures_total{source="scripted"}'] == 0
    assert found['stallscope_exporter_source_last_success_timestamp_seconds{source="scripted"}'] == clock.time()
    assert sampler.ready


def test_the_series_count_is_the_number_of_lines(sampler: Sampler) -> None:
    sampler.add(ScriptedSource())
    sampler.run_round()
    assert values(sampler)["stallscope_exporter_series"] == len(values(sampler))


def test_a_source_that_raises_is_down_and_the_others_stay(sampler: Sampler, clock: ScriptedClock) -> None:
    broken, well = ScriptedSource("broken"), ScriptedSource("well", 7, lambda value: Sample(MEMORY, (), value))
    sampler.add(broken)
    sampler.add(well)
    sampler.run_round()
    broken.problem = OSError("the disk went away")
    clock.advance(1)
    sampler.run_round()
    found = values(sampler)
    assert found['stallscope_exporter_source_up{source="broken"}'] == 0
    assert found['stallscope_exporter_source_failures_total{source="broken"}'] == 1
    assert found['stallscope_exporter_source_up{source="well"}'] == 1
    assert found["stallscope_host_memory_total_bytes"] == 7
    assert {status.name: status.error for status in sampler.statuses} == {
        "broken": "OSError: the disk went away",
        "well": "",
    }


def test_a_failing_sources_last_reading_stays_for_three_intervals_and_no_longer(
    sampler: Sampler, clock: ScriptedClock
) -> None:
    source = ScriptedSource()
    sampler.add(source)
    sampler.run_round()
    source.problem = OSError("gone")
    clock.advance(2.9)
    sampler.run_round()
    assert "stallscope_host_cpus" in values(sampler)
    clock.advance(0.1)
    sampler.run_round()
    assert "stallscope_host_cpus" not in values(sampler)


def test_a_failure_that_is_kept_keeps_no_frames() -> None:
    def read() -> Iterable[Sample]:
        raise OSError("the disk went away")

    reader = Reader("failing", read, ScriptedClock())
    reader.read_once()
    assert str(reader.state.error) == "the disk went away"
    assert reader.state.error is not None
    assert reader.state.error.__traceback__ is None


def test_a_source_recovers_by_itself(sampler: Sampler, clock: ScriptedClock) -> None:
    source = ScriptedSource()
    source.problem = OSError("not yet")
    sampler.add(source)
    sampler.run_round()
    source.problem = None
    clock.advance(1)
    sampler.run_round()
    assert values(sampler)['stallscope_exporter_source_up{source="scripted"}'] == 1
    assert values(sampler)["stallscope_host_cpus"] == 4


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), "four", None])
def test_nonsense_is_not_exposed_and_counts_as_a_failure(sampler: Sampler, nonsense: float) -> None:
    sampler.add(ScriptedSource(value=nonsense))
    sampler.run_round()
    found = values(sampler)
    assert "stallscope_host_cpus" not in found
    assert found['stallscope_exporter_source_up{source="scripted"}'] == 0
    assert found['stallscope_exporter_source_failures_total{source="scripted"}'] == 1


def test_a_part_of_the_machine_that_is_not_there_is_absent_and_no_failure(sampler: Sampler) -> None:
    source = ScriptedSource()
    source.problem = NotPresent("no NFS mount")
    sampler.add(source)
    sampler.run_round()
    assert not [name for name in values(sampler) if "scripted" in name]
    assert [(status.up, status.error) for status in sampler.statuses] == [(None, "no NFS mount")]


def test_a_collector_that_raises_costs_only_itself(sampler: Sampler) -> None:
    def broken() -> Iterable[Sample]:
        yield Sample(MEMORY, (), 1)
        raise RuntimeError("broken")

    sampler.add_collector("broken", broken)
    sampler.add(ScriptedSource())
    sampler.run_round()
    assert "stallscope_host_memory_total_bytes" not in values(sampler)
    assert values(sampler)["stallscope_host_cpus"] == 4


def test_parts_come_and_go_with_what_the_source_wants(sampler: Sampler) -> None:
    source = ScriptedSource()
    source.part_reads = {"0": lambda: [Sample(UP, ("0", "a"), 1)], "1": lambda: [Sample(UP, ("1", "b"), 1)]}
    sampler.add(source)
    sampler.run_round()
    assert {name for name in values(sampler) if "gpu_up" in name} == {
        'stallscope_gpu_up{gpu="0",uuid="a"}',
        'stallscope_gpu_up{gpu="1",uuid="b"}',
    }
    source.part_reads = {"1": source.part_reads["1"]}
    sampler.run_round()
    assert {name for name in values(sampler) if "gpu_up" in name} == {'stallscope_gpu_up{gpu="1",uuid="b"}'}


def test_a_harmless_error_of_a_part_is_no_failure_of_the_source(sampler: Sampler) -> None:
    def lost() -> Iterable[Sample]:
        raise LookupError("GPU 0 is lost")

    source = ScriptedSource()
    source.harmless = (LookupError,)
    source.part_reads = {"0": lost}
    sampler.add(source)
    sampler.run_round()
    assert values(sampler)['stallscope_exporter_source_up{source="scripted"}'] == 1
    assert values(sampler)['stallscope_exporter_source_failures_total{source="scripted"}'] == 0


def test_any_other_error_of_a_part_is(sampler: Sampler) -> None:
    def broken() -> Iterable[Sample]:
        raise ValueError("GPU 0 talks nonsense")

    source = ScriptedSource()
    source.harmless = (LookupError,)
    source.part_reads = {"0": broken}
    sampler.add(source)
    sampler.run_round()
    assert values(sampler)['stallscope_exporter_source_up{source="scripted"}'] == 0
    assert values(sampler)['stallscope_exporter_source_failures_total{source="scripted"}'] == 1


def test_a_reading_that_never_returns_is_marked_and_blocks_no_other() -> None:
    hanging, well = HangingSource(), ScriptedSource("well")
    sampler = Sampler(interval=0.1)
    sampler.add(hanging)
    sampler.add(well)
    sampler.start()
    try:
        assert hanging.entered.wait(60)
        marked = {
            "stallscope_host_cpus": 4,
            'stallscope_exporter_source_up{source="well"}': 1,
            'stallscope_exporter_source_up{source="hanging"}': 0,
        }
        failures = 'stallscope_exporter_source_failures_total{source="hanging"}'
        # After a pause of the machine, the hang begins again, and counts once more.
        until(lambda: (found := values(sampler)).items() >= marked.items() and found[failures] >= 1)
        well.value = 5
        until(lambda: values(sampler).get("stallscope_host_cpus") == 5)
        hanging.resume.set()
        back = {'stallscope_exporter_source_up{source="hanging"}': 1, "stallscope_host_memory_total_bytes": 4}
        until(lambda: values(sampler).items() >= back.items())
    finally:
        hanging.resume.set()
        sampler.stop(timeout=60)
    assert hanging.closed
    assert well.closed


class PausedClock(SystemClock):
    """The machine's own time; a test adds time in which the process did not run."""

    def __init__(self) -> None:
        self.paused = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.paused


def test_after_a_pause_of_the_whole_process_no_reading_is_old_and_none_hangs() -> None:
    clock = PausedClock()
    pages: list[tuple[dict[str, bool | None], Hang | None]] = []

    sampler: Sampler

    def record() -> None:
        pages.append(({status.name: status.up for status in sampler.statuses}, sampler.longest_hang))

    sampler = Sampler(clock=clock, interval=60, on_page=record)
    hanging = HangingSource()
    sampler.add(hanging)
    sampler.add(ScriptedSource("well"))
    sampler.start()
    try:
        assert hanging.entered.wait(60)
        until(lambda: pages and pages[-1][0]["well"])
        clock.paused = 600  # more than three intervals
        before = len(pages)
        until(lambda: len(pages) >= before + 3)
    finally:
        hanging.resume.set()
        sampler.stop(timeout=60)
    for states, hang in pages[before + 1 :]:  # the page before may have been in the making
        assert states == {"hanging": None, "well": True}
        assert hang is not None
        assert hang.seconds < 600


def test_at_a_long_interval_a_late_reading_shows_long_before_the_next() -> None:
    late = HangingSource()
    late.part_reads = {"part": lambda: [Sample(CPUS, (), 4)]}
    sampler = Sampler(interval=60)
    sampler.add(late)
    sampler.start()
    try:
        until(lambda: sampler.ready)  # the first page did not wait for it
        late.resume.set()
        until(lambda: values(sampler).keys() >= {"stallscope_host_memory_total_bytes", "stallscope_host_cpus"})
    finally:
        late.resume.set()
        sampler.stop(timeout=60)


def test_a_reading_that_began_before_the_publisher_woke_belongs_to_the_same_round(
    sampler: Sampler, clock: ScriptedClock
) -> None:
    clock.advance(2.2)
    reading = ReaderState(attempts=1, ended_at=1.1, busy_since=clock.monotonic())
    clock.advance(0.1)
    assert not sampler_module._read_since(reading, sampler._round_began())
    clock.advance(1)
    assert sampler_module._read_since(reading, sampler._round_began())  # hangs since the round before


def test_no_reader_is_started_for_a_source_that_was_removed_meanwhile(clock: ScriptedClock) -> None:
    sampler = Sampler(clock=clock)
    source = ScriptedSource()
    source.part_reads = {"late": lambda: [Sample(MEMORY, (), 1)]}
    sampler.add(source)
    running = sampler._running["scripted"]
    sampler.remove("scripted")
    sampler._reconcile(running, start=True)
    assert not running.parts


def test_stopping_does_not_wait_for_a_hung_reading() -> None:
    hanging = HangingSource()
    sampler = Sampler(interval=0.1)
    sampler.add(hanging)
    sampler.start()
    try:
        assert hanging.entered.wait(60)
        sampler.stop(timeout=0.01)
        assert not hanging.closed
    finally:
        hanging.resume.set()


def test_a_removed_source_leaves_the_page_and_is_closed(sampler: Sampler) -> None:
    source = ScriptedSource()
    sampler.add(source)
    sampler.run_round()
    sampler.remove("scripted")
    sampler.publish()
    assert "stallscope_host_cpus" not in values(sampler)
    assert source.closed


def test_two_sources_of_one_name_are_refused(sampler: Sampler) -> None:
    sampler.add(ScriptedSource())
    with pytest.raises(ValueError, match="scripted is running already"):
        sampler.add(ScriptedSource())


def test_a_snapshot_is_compressed_once(sampler: Sampler) -> None:
    sampler.add(ScriptedSource())
    sampler.run_round()
    first = sampler.page(openmetrics=True, gzip=True)
    assert sampler.page(openmetrics=True, gzip=True) is first
    assert gzip.decompress(first) == sampler.page(openmetrics=True, gzip=False)
    sampler.publish()
    assert sampler.page(openmetrics=True, gzip=True) is not first


def test_series_over_the_limit_are_counted_on_the_page(clock: ScriptedClock) -> None:
    sampler = Sampler(clock=clock, max_series=3)
    source = ScriptedSource()
    source.part_reads = {"all": lambda: [Sample(UP, (str(gpu), "u"), 1) for gpu in range(5)]}
    sampler.add(source)
    sampler.run_round()
    assert values(sampler)['stallscope_exporter_series_dropped_total{limit="max_series"}'] > 0


def test_what_readings_cost_is_counted_over_main_and_parts(sampler: Sampler, clock: ScriptedClock) -> None:
    def slow() -> Iterable[Sample]:
        clock.advance(0.25)
        sum(range(100_000))  # CPU time, which a scripted clock cannot measure
        return []

    source = ScriptedSource()
    source.part_reads = {"0": slow, "1": slow}
    sampler.add(source)
    sampler.run_round()
    sampler.run_round()
    found = values(sampler)
    assert found['stallscope_exporter_source_readings_total{source="scripted"}'] == 6
    assert found['stallscope_exporter_source_reading_seconds_total{source="scripted"}'] == 1.0
    assert found['stallscope_exporter_source_cpu_seconds_total{source="scripted"}'] > 0
    assert found['stallscope_exporter_source_stuck_threads{source="scripted"}'] == 0


def test_what_a_dropped_part_cost_stays_counted(sampler: Sampler, clock: ScriptedClock) -> None:
    def broken() -> Iterable[Sample]:
        clock.advance(0.25)
        raise ValueError("talks nonsense")

    source = ScriptedSource()
    source.part_reads = {"0": broken}
    sampler.add(source)
    sampler.run_round()
    before = values(sampler)
    source.part_reads = {}
    sampler.run_round()
    after = values(sampler)
    for name, more in (("readings", 1), ("reading_seconds", 0), ("failures", 0)):
        series = f'stallscope_exporter_source_{name}_total{{source="scripted"}}'
        assert after[series] == before[series] + more
    assert after['stallscope_exporter_source_reading_seconds_total{source="scripted"}'] == 0.25


def test_a_part_of_the_machine_that_is_not_there_costs_nothing_on_the_page(sampler: Sampler) -> None:
    source = ScriptedSource()
    source.problem = NotPresent("no NFS mount")
    sampler.add(source)
    sampler.run_round()
    assert "source_readings" not in sampler.page(openmetrics=False, gzip=False).decode()


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (NotPresent("no GPU so far"), "source scripted: found on this machine"),
        (RuntimeError("no answer"), "source scripted answers again"),
    ],
)
def test_only_a_source_that_failed_answers_again(
    problem: Exception, said: str, sampler: Sampler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    source = ScriptedSource()
    source.problem = problem
    sampler.add(source)
    sampler.run_round()
    source.problem = None
    sampler.run_round()
    assert caplog.messages[-1] == said


def test_a_source_that_cannot_list_its_parts_is_down_until_it_can(
    sampler: Sampler, caplog: pytest.LogCaptureFixture
) -> None:
    source = ScriptedSource()
    source.part_reads = {"0": lambda: [Sample(UP, ("0", "a"), 1)]}
    sampler.add(source)
    sampler.run_round()
    source.parts_problem = RuntimeError("the list is broken")
    for _ in range(3):
        sampler.run_round()
    found = values(sampler)
    assert found['stallscope_exporter_source_up{source="scripted"}'] == 0
    assert found['stallscope_exporter_source_failures_total{source="scripted"}'] == 3
    assert found['stallscope_gpu_up{gpu="0",uuid="a"}'] == 1  # parts that were known are read on
    assert [status.error for status in sampler.statuses] == ["RuntimeError: the list is broken"]
    assert caplog.text.count("failed to list its parts") == 1
    source.parts_problem = None
    sampler.run_round()
    assert values(sampler)['stallscope_exporter_source_up{source="scripted"}'] == 1


class HangingPart:
    """A collector that blocks in every reading until it is released, and counts the readings."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.resume = threading.Event()

    def __call__(self) -> Iterable[Sample]:
        resume = self.resume
        self.entered.release()
        assert resume.wait(60)
        return []


class Flapping:
    """A source whose one part can be dropped and brought back while its thread hangs."""

    def __init__(self, sampler: Sampler) -> None:
        self.part = HangingPart()
        self.source = ScriptedSource()
        self._sampler = sampler
        sampler.add(self.source)
        self.running = sampler._running["scripted"]
        self.running.main.read_once()

    def bring_back(self) -> None:
        self.source.part_reads = {"0": self.part}
        self.reconcile()

    def drop(self) -> None:
        self.source.part_reads = {}
        self.reconcile()

    def reconcile(self) -> None:
        self._sampler._reconcile(self.running, start=True)

    def left_behind(self) -> int:
        """Threads of dropped parts, after looking again."""
        self.reconcile()
        return len(self.running.left)

    @staticmethod
    def threads() -> int:
        """Threads of the part that this process really has."""
        return sum(thread.name == "read scripted 0" for thread in threading.enumerate())

    def stuck(self) -> float:
        """Return the number of stuck threads on the page."""
        self._sampler.publish()
        return values(self._sampler)['stallscope_exporter_source_stuck_threads{source="scripted"}']


@pytest.fixture
def flapping(sampler: Sampler) -> Iterator[Flapping]:
    flapping = Flapping(sampler)
    yield flapping
    flapping.part.resume.set()
    flapping.drop()
    until(lambda: flapping.left_behind() == 0)


def test_a_thread_that_hangs_is_stuck_until_it_ends_though_its_part_is_gone(
    flapping: Flapping, clock: ScriptedClock
) -> None:
    flapping.bring_back()
    assert flapping.part.entered.acquire(timeout=60)
    assert flapping.stuck() == 0  # it may only be slow
    clock.advance(3)
    assert flapping.stuck() == 1
    flapping.drop()
    assert flapping.stuck() == 1
    flapping.part.resume.set()
    until(lambda: flapping.left_behind() == 0)
    assert flapping.stuck() == 0


def test_a_part_that_hangs_and_comes_back_a_thousand_times_leaves_nothing(flapping: Flapping, sampler: Sampler) -> None:
    for _ in range(1000):
        flapping.bring_back()
        assert flapping.part.entered.acquire(timeout=60)
        flapping.drop()
        assert len(flapping.running.left) == 1
        flapping.part.resume.set()
        until(lambda: flapping.left_behind() == 0, pause=0.001)
        flapping.part.resume = threading.Event()
    assert flapping.threads() == 0
    assert flapping.stuck() == 0
    assert values(sampler)['stallscope_exporter_source_readings_total{source="scripted"}'] == 1001


def test_threads_that_never_come_back_are_bounded_and_the_part_then_has_no_more(
    flapping: Flapping, sampler: Sampler, clock: ScriptedClock, caplog: pytest.LogCaptureFixture
) -> None:
    limit = sampler_module._MAX_LEFT_OF_A_PART
    for time in range(1000):
        flapping.bring_back()
        if time < limit:
            assert flapping.part.entered.acquire(timeout=60)
            flapping.drop()
    assert flapping.threads() == limit
    clock.advance(3)
    flapping.running.main.read_once()
    assert flapping.stuck() == limit
    assert values(sampler)['stallscope_exporter_source_up{source="scripted"}'] == 0
    assert [status.error for status in sampler.statuses] == ["no longer read because too many threads hang: 0"]
    assert caplog.text.count("source scripted: 0 is no longer read") == 1
    # One thread that ends makes room for a new one.
    flapping.part.resume.set()
    until(lambda: flapping.left_behind() == 0)
    assert "0" in flapping.running.parts
    assert flapping.part.entered.acquire(timeout=60)


def test_one_part_s_hung_threads_take_no_reader_from_another(flapping: Flapping) -> None:
    for _ in range(sampler_module._MAX_LEFT_OF_A_PART):
        flapping.bring_back()
        assert flapping.part.entered.acquire(timeout=60)
        flapping.drop()
    flapping.source.part_reads = {"0": flapping.part, "1": list}
    flapping.reconcile()
    assert set(flapping.running.parts) == {"1"}


def test_parts_under_ever_new_keys_are_bounded_too(flapping: Flapping) -> None:
    for number in range(1000):
        flapping.source.part_reads = {f"instance {number}": flapping.part}
        flapping.reconcile()
        if flapping.running.parts:
            assert flapping.part.entered.acquire(timeout=60)
    assert len(flapping.running.left) == sampler_module._MAX_LEFT


def test_the_longest_hang_names_its_reader_even_after_its_part_is_gone(
    flapping: Flapping, sampler: Sampler, clock: ScriptedClock
) -> None:
    nothing = sampler.longest_hang
    assert nothing is None
    flapping.bring_back()
    assert flapping.part.entered.acquire(timeout=60)
    clock.advance(7)
    assert sampler.longest_hang == Hang("scripted 0", 7)
    flapping.drop()
    clock.advance(1)
    assert sampler.longest_hang == Hang("scripted 0", 8)


def test_a_hung_part_delays_no_page_after_the_first_round(
    flapping: Flapping, sampler: Sampler, clock: ScriptedClock
) -> None:
    flapping.bring_back()
    assert flapping.part.entered.acquire(timeout=60)
    clock.advance(1)
    flapping.running.main.read_once()
    # The clock stands still: if it were waited for, that would never end.
    waiting = threading.Thread(target=sampler._await_round, args=(sampler._round_began(),), daemon=True)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_source_whose_data_does_not_keep_is_read_more_often_than_the_interval() -> None:
    lasting, fleeting = ScriptedSource("lasting"), ScriptedSource("fleeting")
    part_reads = threading.Semaphore(0)

    def part() -> Iterable[Sample]:
        part_reads.release()
        return []

    fleeting.longest_interval = 0.02
    fleeting.part_reads = {"part": part}
    sampler = Sampler(interval=60)
    sampler.add(lasting)
    sampler.add(fleeting)
    sampler.start()
    try:
        for _ in range(3):
            assert part_reads.acquire(timeout=60)
        until(lambda: sampler._running["fleeting"].main.state.attempts >= 3)
        until(lambda: sampler._running["lasting"].main.state.attempts >= 1)
        assert sampler._running["lasting"].main.state.attempts == 1
        assert sampler.stale_after == 180  # what is shown grows stale as configured
    finally:
        sampler.stop(timeout=60)


def test_a_longest_interval_above_the_interval_changes_nothing(clock: ScriptedClock) -> None:
    source = ScriptedSource()
    source.longest_interval = 60.0
    sampler = Sampler(interval=0.02)
    sampler.add(source)
    sampler.start()
    try:
        until(lambda: sampler._running["scripted"].main.state.attempts >= 3)
    finally:
        sampler.stop(timeout=60)


def test_a_scripted_round_reads_once_whatever_the_longest_interval(sampler: Sampler) -> None:
    source = ScriptedSource()
    source.longest_interval = 0.1
    sampler.add(source)
    sampler.run_round()
    assert values(sampler)['stallscope_exporter_source_readings_total{source="scripted"}'] == 1


def test_every_source_is_released_though_one_fails(sampler: Sampler, caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(ScriptedSource):
        def release(self, seconds: float) -> None:
            raise OSError("not now")

    well = ScriptedSource("well")
    sampler.add(Stubborn("stubborn"))
    sampler.add(well)
    with caplog.at_level(logging.ERROR):
        sampler.release(60)
    assert well.released == [60]
    assert "source stubborn could not release its device files" in caplog.text


def test_the_publisher_announces_every_page_and_outlives_a_failing_callback() -> None:
    reported = threading.Semaphore(0)

    def note_and_fail() -> None:
        reported.release()
        raise OSError("which ends no publisher")

    sampler = Sampler(interval=0.05, on_page=note_and_fail)
    sampler.start()
    try:
        for _ in range(3):
            assert reported.acquire(timeout=60)
    finally:
        sampler.stop(timeout=60)


@pytest.mark.parametrize(
    ("period", "spent", "rest"),
    [
        pytest.param(1.0, 0.002, 0.75, id="a usual page comes at every tick"),
        pytest.param(0.5, 0.008, 0.25, id="at shorter ticks too"),
        pytest.param(1.0, 0.015, 2.75, id="a large one at every third tick"),
        pytest.param(1.0, 0.3, 4.75, id="none comes later than after five seconds"),
    ],
)
def test_large_pages_take_a_two_hundredth_of_a_cpu(period: float, spent: float, rest: float) -> None:
    assert until_next_page(elapsed=10.25, period=period, spent=(spent, spent)) == pytest.approx(rest)


def test_a_single_expensive_page_delays_none() -> None:
    cheap = until_next_page(elapsed=10.25, period=1.0, spent=(0.001, 0.001))
    assert until_next_page(elapsed=10.25, period=1.0, spent=(0.001, 0.025)) == cheap
    assert until_next_page(elapsed=10.25, period=1.0, spent=(0.025, 0.001)) == cheap
