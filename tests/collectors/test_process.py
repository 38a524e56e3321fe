from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest
from prometheus_client.process_collector import ProcessCollector

from stallscope.model.catalogue.metrics import PROCESS_FAMILIES
from stallscope.node.collectors.process import Process
from tests.collectors.recorded import source_at, values


def number(source_values: object) -> float:
    assert isinstance(source_values, (int, float))
    return source_values


def test_every_family_is_read_of_this_very_process() -> None:
    read = values(source_at(Process, Path("/")))
    assert set(read) == {(family.name,) for family in PROCESS_FAMILIES}
    assert read["process_max_fds",] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < number(read["process_start_time_seconds",]) <= time.time()
    used = resource.getrusage(resource.RUSAGE_SELF)
    assert number(read["process_cpu_seconds_total",]) == pytest.approx(used.ru_utime + used.ru_stime, abs=0.5)
    resident, virtual = number(read["process_resident_memory_bytes",]), number(read["process_virtual_memory_bytes",])
    assert 1_000_000 < resident < virtual


def test_open_files_are_counted() -> None:
    source = source_at(Process, Path("/"))
    before = number(values(source)["process_open_fds",])
    descriptors = [os.open("/", os.O_RDONLY) for _ in range(50)]
    try:
        # What tests before this one left to other threads may be closed meanwhile.
        assert number(values(source)["process_open_fds",]) == pytest.approx(before + 50, abs=10)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_on_a_recorded_tree_it_is_still_this_process() -> None:
    read = values(source_at(Process, "container"))
    assert read["process_max_fds",] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_names_and_values_are_those_of_the_client_library() -> None:
    theirs = {
        sample.name: sample.value for metric in ProcessCollector(registry=None).collect() for sample in metric.samples
    }
    ours = {name: number(value) for (name,), value in values(source_at(Process, Path("/"))).items()}
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=0.05, abs=2), name
