"""The metric of configuration files that were valid when they were last read."""

from __future__ import annotations

from collections.abc import Mapping

from stallscope.model.catalogue.metrics import family
from stallscope.node.sampling.reading import Sample

SUCCESSFUL = family("stallscope_exporter_config_last_reload_successful")


def reload_samples(validity: Mapping[str, bool]) -> list[Sample]:
    """Return a sample for each file."""
    return [Sample(SUCCESSFUL, (file,), int(is_valid)) for file, is_valid in validity.items()]
