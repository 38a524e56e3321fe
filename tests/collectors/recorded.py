"""Recorded trees for tests of host sources, and what a source makes of one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from stallscope.node.collectors.base import Collector, Environment
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.node.sampling.reading import checked

TREES = Path(__file__).parents[1] / "recorded_trees"
Values = Mapping[tuple[str, ...], object]


def source_at(source: type[Collector], tree: str | Path, clock: Clock | None = None) -> Collector:
    """The source on a recorded tree, named, or on any other root."""
    root = TREES / tree if isinstance(tree, str) else tree
    assert root.is_dir()
    return source(Environment(root=root, clock=clock or SystemClock()))


def copy_of(tree: str, folder: Path) -> Path:
    """A copy of the tree that a test may change."""
    return Path(shutil.copytree(TREES / tree, folder / tree))


def values(source: Collector) -> Values:
    """Return the samples of one reading by family name without prefix and label values; as strict as the sampler."""
    samples = checked(source.read())
    keyed = {(sample.family.name.removeprefix("stallscope_host_"), *sample.labels): sample.value for sample in samples}
    assert len(keyed) == len(samples), "two samples of one series"
    return keyed


def edit(path: Path, before: str, after: str) -> None:
    """Replace text that is there exactly once."""
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
