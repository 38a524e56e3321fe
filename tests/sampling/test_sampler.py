"""Whatever a source does, the page is there, says what is known, and says what is wrong."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stallscope.catalogue import family
from stallscope.sampling import sampler as sampler_module
from stallscope.sampling.clock import ScriptedClock
from stallscope.sampling.reader import NotPresent, Reader, ReaderState, SourceState
from stallscope.sampling.reading import Sample
from stallscope.sampling.sampler import Sampler

CPUS = family("stallscope_host_cpus")
MEMORY = family("stallscope_host_memory_total_bytes")
UP = family("stallscope_gpu_up")


class ScriptedSource:
    """A source that does what the test tells it to."""

    harmless: tuple[type[Exception], ...] = ()

    def __init__(
        self, name: str = "scripted", value: float = 4, sample: Callable[[float], Sample] | None = None
    ) -> None:
        self.name = name
        self.value = value
        self.problem: Exception | None = None
        self.closed = False
        self.part_reads: dict[str, Callable[[], Iterable[Sample]]] = {}
        self._sample = sample or (lambda value: Sample(CPUS, (), value))

    def read(self) -> Iterable[Sample]:
        if self.problem is not None:
            raise self.problem
        return [self._sample(self.value)]

    def parts(self) -> Mapping[str, Callable[[], Iterable[Sample]]]:
        return self.part_reads

    def collect(self, state: SourceState) -> Iterable[Sample]:
        for reader in (state.main, *state.parts.values()):
            if reader.fresh(state.now, state.stale_after) and reader.present:
                yield from reader.samples

    def close(self) -> None:
        self.closed = True


class HangingSource(ScriptedSource):
    """A source whose reading does not come back until it is let go."""

    def __init__(self, name: str = "hanging") -> None:
        super().__init__(name, sample=lambda value: Sample(MEMORY, (), value))
        self.entered = threading.Event()
        self.release = threading.Event()

    def read(self) -> Iterable[Sample]:
        self.entered.set()
        assert self.release.wait(60)
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


def test_a_reading_that_never_comes_back_is_marked_and_holds_up_nobody() -> None:
    hanging, well = HangingSource(), ScriptedSource("well")
    sampler = Sampler(interval=0.1)
    sampler.add(hanging)
    sampler.add(well)
    sampler.start()
    try:
        assert hanging.entered.wait(10)
        assert eventually(lambda: values(sampler).get('stallscope_exporter_source_up{source="hanging"}') == 0)
        found = values(sampler)
        assert found["stallscope_host_cpus"] == 4
        assert found['stallscope_exporter_source_up{source="well"}'] == 1
        assert found['stallscope_exporter_source_failures_total{source="hanging"}'] == 1
        well.value = 5
        assert eventually(lambda: values(sampler)["stallscope_host_cpus"] == 5)
        hanging.release.set()
        assert eventually(lambda: values(sampler)['stallscope_exporter_source_up{source="hanging"}'] == 1)
        assert values(sampler)["stallscope_host_memory_total_bytes"] == 4
    finally:
        hanging.release.set()
        sampler.stop(timeout=10)
    assert hanging.closed
    assert well.closed


def test_at_a_long_interval_a_late_reading_shows_long_before_the_next() -> None:
    late = HangingSource()
    late.part_reads = {"part": lambda: [Sample(CPUS, (), 4)]}
    sampler = Sampler(interval=60)
    sampler.add(late)
    sampler.start()
    try:
        assert eventually(lambda: sampler.ready)  # the first page did not wait for it
        late.release.set()
        assert eventually(
            lambda: values(sampler).keys() >= {"stallscope_host_memory_total_bytes", "stallscope_host_cpus"}
        )
    finally:
        late.release.set()
        sampler.stop(timeout=10)


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
        assert hanging.entered.wait(10)
        sampler.stop(timeout=0.01)
        assert not hanging.closed
    finally:
        hanging.release.set()


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


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Wait until the condition holds; False after the deadline."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        pause.wait(0.02)
    return False
